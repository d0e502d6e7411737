"""A promoted replica starts the work of a primary by itself: streams, reconciliation, triggers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER

SCRIPT = """
async def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    while not execute('EXISTS', 'go'):
        await asyncio.sleep(0.02)
def started():
    execute('INCR', 'started')
GB('StreamReader').foreach(step).register(prefix='in', onRegistered=started)
GB('CommandReader').map(lambda r: execute('GET', 'started')).register(trigger='t')
"""


def test_a_promoted_replica_continues_the_work_of_its_primary(server_binary: Path) -> None:
    with Server(server_binary, worker=WORKER) as primary, Server(server_binary, worker=WORKER) as replica:
        primary.wait_ready(30)
        execute(replica, "REPLICAOF", "127.0.0.1", primary.port)
        assert execute(primary, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
        for number in range(3):
            execute(primary, "XADD", "in", "*", "n", number)
        eventually(lambda: execute(primary, "LRANGE", "seen", 0, -1) == ["0"])
        eventually(lambda: execute(replica, "LRANGE", "seen", 0, -1) == ["0"])
        eventually(lambda: "StreamReader" in str(execute(replica, "RG.DUMPREGISTRATIONS")))
        replica.wait_ready(30)
        # The replica's worker also calls `started`, whose write must fail before the promotion.
        eventually(lambda: re.search("onRegistered of .* failed: READONLY", replica.log.read_text()))
        primary.stop(9)
        execute(replica, "REPLICAOF", "NO", "ONE")
        execute(replica, "SET", "go", 1)
        eventually(lambda: execute(replica, "LRANGE", "seen", 0, -1) == ["0", "0", "1", "2"])
        eventually(lambda: execute(replica, "XLEN", "in") == 0)
        execute(replica, "XADD", "in", "*", "n", 3)
        eventually(lambda: execute(replica, "LRANGE", "seen", 0, -1)[-1] == "3")
        assert execute(replica, "RG.TRIGGER", "t") == ["2"]


ABORTING = """
def step(r):
    if not execute('EXISTS', 'good'):
        raise ValueError('not yet')
GB('StreamReader').foreach(step).register(prefix='in', mode='async_local', onFailedPolicy='abort')
"""


def status(server: Server) -> str:
    """The status of the only registration; empty if it does not exist yet."""
    found = execute(server, "RG.DUMPREGISTRATIONS")
    if not found:
        return ""
    (entry,) = found
    return str(dict(zip(entry[7][::2], entry[7][1::2], strict=True))["status"])


def test_a_promoted_replica_does_not_stay_aborted(server_binary: Path) -> None:
    with Server(server_binary, worker=WORKER) as primary, Server(server_binary, worker=WORKER) as replica:
        primary.wait_ready(30)
        execute(replica, "REPLICAOF", "127.0.0.1", primary.port)
        assert execute(primary, "RG.PYEXECUTE", ABORTING) == "OK"
        execute(primary, "XADD", "in", "*", "n", 1)
        eventually(lambda: status(primary) == "ABORTED")
        eventually(lambda: status(replica) == "ABORTED")
        replica.wait_ready(30)
        execute(primary, "SET", "good", 1)
        eventually(lambda: execute(replica, "EXISTS", "good"))
        primary.stop(9)
        execute(replica, "REPLICAOF", "NO", "ONE")
        eventually(lambda: status(replica) == "OK")
        eventually(lambda: execute(replica, "XLEN", "in") == 0)
