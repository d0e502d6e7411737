"""Invalidations for a client that tracks keys, after a read that the keymiss hook answers (docs/limitations.md)."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tests.gears.test_keymiss import ANSWER
from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server, connected, execute


class Tracker:
    """A connection with RESP3 that tracks keys."""

    def __init__(self, server: Server, options: str) -> None:
        """Connect and start tracking."""
        self.server = server
        self.socket = connected(server.socket, 60)
        self.number = 0
        self.run("HELLO 3", f"CLIENT TRACKING ON {options}")

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def run(self, *commands: str) -> bytes:
        """Send commands; return all bytes until the last reply."""
        self.send(*commands)
        return self.read()

    def send(self, *commands: str) -> None:
        """Send commands without waiting for replies."""
        self.number += 1
        text = "".join(f"{command}\r\n" for command in commands)
        self.socket.sendall(f'{text}ECHO "end {self.number}"\r\n'.encode())

    def read(self) -> bytes:
        """All bytes until the last reply to the sent commands."""
        mark, data = f"end {self.number}".encode(), b""
        while mark not in data:
            data += self.socket.recv(65536)
        return data

    def arrived(self) -> bytes:
        """The bytes that have arrived so far."""
        return self.socket.recv(65536) if select.select([self.socket], [], [], 0.1)[0] else b""


def heard(data: bytes) -> list[str]:
    return [key.decode() for key in re.findall(rb"invalidate\r\n\*1\r\n\$\d+\r\n([^\r]*)", data)]


@contextmanager
def tracking(server: Server, options: str = "", *, script: str = ANSWER) -> Iterator[Tracker]:
    execute(server, "RG.PYEXECUTE", script)
    with closing(Tracker(server, options)) as tracker:
        yield tracker


@pytest.mark.parametrize("change", ["SET ask new", "DEL ask"])
def test_broadcasting_reports_every_change_of_a_filled_key(shard: Server, change: str) -> None:
    with tracking(shard, "BCAST PREFIX ask") as tracker:
        assert b"computed 1" in tracker.run("GET ask")
        tracker.run("PING")
        execute(shard, *change.split())
        assert heard(tracker.run("PING")) == ["ask"]


def notes_late_reads(server: Server) -> bool:
    """Whether the server tracks a key that it reads after a wait. Redis 7.0 does so only until the command returns."""
    with server.client() as client:
        version = str(client.info("server")["redis_version"])
    return tuple(int(part) for part in version.split(".")[:2]) >= (7, 2)


def test_a_read_that_fills_a_key_is_tracked(shard: Server) -> None:
    """The invalidation that the read causes arrives before the value. The next change causes another invalidation."""
    with tracking(shard) as tracker:
        data = tracker.run("GET ask")
        assert heard(data) == ["ask"]
        assert data.index(b"invalidate") < data.index(b"computed 1")
        execute(shard, "SET", "ask", "new")
        assert heard(tracker.run("PING")) == (["ask"] if notes_late_reads(shard) else [])
        assert b"new" in tracker.run("GET ask")
        execute(shard, "DEL", "ask")
        assert heard(tracker.run("PING")) == ["ask"]


@pytest.mark.parametrize("end", ["override_reply('computed')", "pass", "1 / 0"])
def test_a_read_of_a_key_that_was_written_and_deleted_is_tracked(shard: Server, end: str) -> None:
    script = ANSWER.replace("override_reply('computed %d' % calls[0])", f"execute('DEL', record['key']); {end}")
    with tracking(shard, script=script) as tracker:
        data = tracker.run("GET ask")
        assert (b"computed" in data) == ("computed" in end)
        execute(shard, "SET", "ask", "new")
        assert heard(tracker.run("PING")) == (["ask"] if notes_late_reads(shard) else [])


def test_a_tracked_read_counts_in_the_statistics(shard: Server) -> None:
    def calls() -> int:
        with shard.client() as client:
            return int(client.info("commandstats")["cmdstat_rg.innerhook"]["calls"])

    with tracking(shard) as tracker:
        execute(shard, "GET", "ask:1")
        each = calls()
        tracker.run("GET ask:2")
        assert calls() == 2 * each


@pytest.mark.parametrize("options", ["", "BCAST PREFIX other"])
def test_a_connection_with_subscriptions_can_read(shard: Server, options: str) -> None:
    """On Valkey this connection cannot wait. Its read of a missing key is a plain read, and other jobs are refused."""
    with tracking(shard, options) as tracker:
        assert re.search(rb"_\r\n|computed", tracker.run("SUBSCRIBE news", "GET ask"))
        execute(shard, "SET", "ask", "there")
        assert b"there" in tracker.run("GET ask")
        execute(shard, "RG.PYEXECUTE", "GB('CommandReader').map(lambda r: 'ran').register(trigger='t')")
        assert re.search(rb"does not block a connection|ran", tracker.run("RG.TRIGGER t"))
        tracker.run("UNSUBSCRIBE news")
        assert b"ran" in tracker.run("RG.TRIGGER t")


def test_a_key_that_a_function_does_not_store_is_tracked_too(shard: Server) -> None:
    with tracking(shard, script=ANSWER.replace("execute('SET', record['key'], 'stored')", "pass")) as tracker:
        data = tracker.run("GET ask")
        assert b"computed 1" in data
        assert heard(data) == []
        execute(shard, "SET", "ask", "new")
        assert heard(tracker.run("PING")) == ["ask"]


def test_all_clients_that_read_a_key_get_answers_and_are_tracked(shard: Server) -> None:
    script = ANSWER.replace("'SET'", "'SETNX'")  # SETNX: a second SET would end the tracking for the first client
    with (
        tracking(shard, script=script) as first,
        closing(Tracker(shard, "")) as second,
        closing(Tracker(shard, "")) as third,
    ):
        trackers = (first, second, third)
        for tracker in trackers:
            tracker.send("GET ask")
        assert all(re.search(rb"computed|stored", tracker.read()) for tracker in trackers)
        execute(shard, "SET", "ask", "new")
        if notes_late_reads(shard):
            assert [heard(tracker.run("PING")) for tracker in trackers] == [["ask"]] * 3


def test_only_reads_that_the_client_has_named_are_tracked(shard: Server) -> None:
    with tracking(shard, "OPTIN") as tracker:
        tracker.run("GET ask:1")
        tracker.run("CLIENT CACHING YES", "GET ask:2")
        execute(shard, "MSET", "ask:1", "new", "ask:2", "new")
        assert heard(tracker.run("PING")) == (["ask:2"] if notes_late_reads(shard) else [])


SLOW = """
async def slow(record):
    execute('INCR', 'begun')
    try:
        while not execute('EXISTS', 'go'):
            await asyncio.sleep(.01)
        override_reply('answered')
    except asyncio.CancelledError:
        execute('INCR', 'cancelled')
        raise
GB('KeysReader').map(slow).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


def begun(server: Server, count: int) -> None:
    eventually(lambda: execute(server, "GET", "begun") == str(count))


def test_a_client_that_disconnects_cancels_its_function(shard: Server) -> None:
    with tracking(shard, script=SLOW) as tracker:
        tracker.send("GET ask")
        begun(shard, 1)
    eventually(lambda: execute(shard, "GET", "cancelled") == "1")


BUSY = """
async def busy(record):
    while True:
        for _ in range(20):
            execute('ECHO', 'left behind')
        await asyncio.sleep(0)
GB('KeysReader').map(busy).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
async def look(record):
    override_reply(' '.join(execute('ECHO', 'n%d' % number) for number in range(3)))
GB('KeysReader').map(look).register(prefix='look*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


def test_disconnecting_clients_do_not_mix_up_replies(shard: Server) -> None:
    """A disconnect interrupts a function at any point, also between a command and its reply."""
    execute(shard, "RG.PYEXECUTE", BUSY)
    for number in range(100):
        with closing(Tracker(shard, "")) as leaves:
            leaves.send(f"GET ask:{number}")
            time.sleep(0.003)
        with closing(Tracker(shard, "")) as stays:
            assert b"n0 n1 n2" in stays.run(f"GET look:{number}")


def test_a_client_that_is_unblocked_gets_the_reply_of_its_read(shard: Server) -> None:
    """CLIENT UNBLOCK ends a wait for a key. A client that does not wait for a key continues to wait."""
    with tracking(shard, script=SLOW) as tracker:
        number = int(tracker.run("CLIENT ID").split(b"\r\n")[0].removeprefix(b":"))
        tracker.send("GET ask")
        begun(shard, 1)
        unblocked = execute(shard, "CLIENT", "UNBLOCK", number)
        assert unblocked == (1 if notes_late_reads(shard) else 0)
        if unblocked:
            assert tracker.read().startswith(b"_\r\n")
            eventually(lambda: execute(shard, "GET", "cancelled") == "1")
        execute(shard, "SET", "go", "1")
        assert b"answered" in tracker.run("GET ask:again")


def test_a_client_whose_function_times_out_gets_the_reply_of_its_read(shard: Server) -> None:
    with tracking(shard, script=SLOW) as tracker:
        execute(shard, "CONFIG", "SET", "qa.hook-timeout-ms", 100)
        try:
            assert tracker.run("GET ask").startswith(b"_\r\n")
        finally:
            execute(shard, "CONFIG", "SET", "qa.hook-timeout-ms", 30000)


def test_an_answer_to_one_client_does_not_end_the_wait_of_another(shard: Server) -> None:
    """Both clients wait for one key. The end of one client's job does not end the other job."""
    script = SLOW.replace("execute('INCR', 'begun')", "number = execute('INCR', 'begun')")
    script = script.replace("'go'", "'go:%s' % number").replace("'answered'", "'answered %s' % number")
    with tracking(shard, script=script) as first, closing(Tracker(shard, "")) as second:
        first.send("GET ask")
        begun(shard, 1)
        second.send("GET ask")
        begun(shard, 2)
        execute(shard, "SET", "ask", "stored")
        execute(shard, "SET", "go:2", "1")
        assert b"answered 2" in second.read()
        assert b"answered" not in first.arrived()
        execute(shard, "SET", "go:1", "1")
        assert b"answered 1" in first.read()


ENDLESS = """
async def endless(record):
    await asyncio.sleep(3600)
GB('KeysReader').map(endless).register(prefix='ask*', commands=['get'], eventTypes=['keymiss'], mode='async_local')
"""


def holds(node: Server, slot: int) -> bool:
    ranges = [found[:2] for found in execute(node, "CLUSTER", "SLOTS") if found[2][1] == node.port]
    return any(first <= slot <= last for first, last in ranges)


def test_a_client_whose_slot_migrates_is_redirected(own_cluster: Cluster) -> None:
    slot = execute(own_cluster.nodes[0], "CLUSTER", "KEYSLOT", "ask")
    owner, target = sorted(own_cluster.nodes, key=lambda node: not holds(node, slot))[:2]
    if not notes_late_reads(owner):
        pytest.skip("on Redis 7.0 the client does not wait on the key")
    with tracking(owner, script=ENDLESS) as tracker:
        tracker.send("GET ask")
        eventually(lambda: owner.field("in_flight") == 1)
        for node in (target, owner):
            execute(node, "CLUSTER", "SETSLOT", slot, "NODE", execute(target, "CLUSTER", "MYID"))
        assert b"MOVED" in tracker.read()
        eventually(lambda: owner.field("in_flight") == 0)
