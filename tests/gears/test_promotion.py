"""A promoted replica starts the work of a primary by itself: streams, reconciliation, triggers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute, pairs
from tests.harness.workers import WORKER
from tests.module.registrations import dump

SCRIPT = """
async def step(r):
    execute('RPUSH', 'seen', r['value']['n'])
    while not execute('EXISTS', 'go'):
        await asyncio.sleep(0.02)
def started():
    execute('INCR', 'started')
GB('StreamReader').foreach(step).register(prefix='in', onRegistered=started)
GB('CommandReader').map(lambda r: execute('GET', 'started')).register(trigger='t')
def fails(r):
    if not execute('EXISTS', 'good'):
        raise ValueError('not yet')
GB('StreamReader').foreach(fails).register(prefix='aborted', mode='async_local', onFailedPolicy='abort')
"""


def statuses(server: Server) -> dict[str, str]:
    """The status of the registration of each stream."""
    found = [entry["RegistrationData"] for entry in dump(server).values()]
    streams = [entry for entry in found if "status" in entry]
    return {pairs(entry["args"])["stream"]: entry["status"] for entry in streams}


def test_a_promoted_replica_continues_the_work_of_its_primary(server_binary: Path) -> None:
    """It also starts the streams whose registrations ended with an error on the primary."""
    with Server(server_binary, worker=WORKER) as primary, Server(server_binary, worker=WORKER) as replica:
        primary.wait_ready(30)
        execute(replica, "REPLICAOF", "127.0.0.1", primary.port)
        assert execute(primary, "RG.PYEXECUTE", SCRIPT, "ID", "s") == "OK"
        for number in range(3):
            execute(primary, "XADD", "in", "*", "n", number)
        execute(primary, "XADD", "aborted", "*", "n", 1)
        eventually(lambda: execute(primary, "LRANGE", "seen", 0, -1) == ["0"])
        eventually(lambda: execute(replica, "LRANGE", "seen", 0, -1) == ["0"])
        for server in (primary, replica):
            eventually(lambda server=server: statuses(server) == {"in": "OK", "aborted": "ABORTED"})  # type: ignore[misc]
        execute(primary, "SET", "good", 1)
        eventually(lambda: execute(replica, "EXISTS", "good"))
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
        eventually(lambda: statuses(replica) == {"in": "OK", "aborted": "OK"})
        eventually(lambda: execute(replica, "XLEN", "aborted") == 0)
