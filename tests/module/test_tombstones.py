"""Unregistered ids do not return: tombstones and numbered pauses, on the wire, in files and on replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import fake_worker
from tests.module.registrations import dump, keys_reader, register, run, status, stream_reader, trigger

FUNCTIONS = fake_worker("functions", "--bare")


def buried(server: Server, *ids: str) -> list[str]:
    """The ids that have a tombstone."""
    (found,) = run(server, ["QA.UNREGISTERED", *ids])
    return list(found)


def orders(server: Server) -> dict[str, int]:
    """The number of the last order for each registration."""
    ((_, *fields),) = run(server, ["QA.REGISTRATIONS", 0])
    return dict(zip(fields[1::3], fields[2::3], strict=True))


@pytest.fixture(scope="module")
def bare(shared_binary: Path) -> Iterator[Server]:
    """A server without registrations; each test removes its registrations."""
    with Server(shared_binary, worker=FUNCTIONS) as server:
        server.wait_ready()
        yield server


def test_unregistered_ids_do_not_return(bare: Server) -> None:
    both = [trigger("a", "ta"), trigger("b", "tb")]
    assert register(bare, "s", *both) == "OK"
    assert execute(bare, "RG.UNREGISTER", "a") == "OK"
    assert buried(bare, "a", "b") == ["a"]
    assert register(bare, "s", *both) == "-UNREGISTERED registration has been unregistered: a"
    assert list(dump(bare)) == ["b"]
    assert register(bare, "s", both[1]) == "OK"
    with pytest.raises(redis.ResponseError, match="execution is not registered"):
        execute(bare, "RG.UNREGISTER", "never")
    assert register(bare, "s") == "OK", "a session may remove and restore a registration"
    assert buried(bare, "never", "b") == []
    assert register(bare, "s", both[1], trigger("c", "tc")) == "OK"
    assert run(bare, ["QA.UNREGISTER", "c", "later"]) == ["OK"], "of a worker, for present and future ids"
    assert list(dump(bare)) == ["b"]
    assert buried(bare, "later", "c", "b") == ["later", "c"]
    eventually(lambda: execute(bare, "LRANGE", "notices", 0, -1) == ["unregister a 0", "unregister c 0"])
    assert register(bare, "s") == "OK"


def test_the_newest_ten_thousand_tombstones_are_kept(bare: Server) -> None:
    for start in range(0, 10_001, 1000):
        assert run(bare, ["QA.UNREGISTER", *[f"r{number}" for number in range(start, start + 1000)]]) == ["OK"]
    assert buried(bare, "r0", "r999", "r1000", "r5000", "r10999") == ["r1000", "r5000", "r10999"]
    execute(bare, "DEBUG", "RELOAD")
    kept = eventually(lambda: buried(bare, "r999", "r1000", "r10999"), ignore=redis.ResponseError)
    assert kept == ["r1000", "r10999"]


def test_the_later_order_prevails(bare: Server) -> None:
    assert register(bare, "s", stream_reader("d", "d*"), trigger("e", "te")) == "OK"
    assert orders(bare) == {"d": 0, "e": 0}
    assert run(bare, ["QA.PAUSE", "d", 11, "e", 11, "absent", 11]) == ["OK"]
    assert (orders(bare), status(bare, "d")) == ({"d": 11, "e": 0}, "PAUSED")
    assert run(bare, ["QA.PAUSE", "d", 10]) == ["OK"]
    assert (orders(bare)["d"], status(bare, "d")) == (11, "PAUSED")
    execute(bare, "RG.UNPAUSEREGISTRATIONS", "d")
    resumed = orders(bare)["d"]
    assert resumed % 2 == 0
    assert (resumed > 11, status(bare, "d")) == (True, "OK")
    execute(bare, "RG.PAUSEREGISTRATIONS", "d")
    paused = orders(bare)["d"]
    assert (paused > resumed, paused % 2) == (True, 1)
    # an order from a shard whose clock is far ahead: later orders of this shard must still prevail
    assert run(bare, ["QA.PAUSE", "d", 2**59]) == ["OK"]
    execute(bare, "RG.PAUSEREGISTRATIONS", "d")
    assert (orders(bare)["d"], status(bare, "d")) == (2**59 + 3, "PAUSED")
    for order in ("0", "-1", str(2**60 + 1), str(2**64), "x"):
        assert run(bare, ["QA.PAUSE", "d", 2**59 + 5, "e", order]) == ["-ERR number of an order is out of range"]
    assert orders(bare)["d"] == 2**59 + 3
    assert register(bare, "s") == "OK"


def test_a_worker_gets_the_registrations_only_when_they_changed(bare: Server) -> None:
    ((generation, *none),) = run(bare, ["QA.REGISTRATIONS", 0])
    assert none == []
    assert run(bare, ["QA.REGISTRATIONS", generation]) == [None]
    assert register(bare, "s", stream_reader("f", "f*")) == "OK"
    ((second, *fields),) = run(bare, ["QA.REGISTRATIONS", generation])
    assert (second > generation, fields) == (True, ["s", "f", 0])
    execute(bare, "RG.PAUSEREGISTRATIONS", "f")
    ((third, *fields),) = run(bare, ["QA.REGISTRATIONS", second])
    assert fields[:2] == ["s", "f"]
    execute(bare, "RG.UNREGISTER", "f")
    ((fourth, *none),) = run(bare, ["QA.REGISTRATIONS", third])
    assert none == []
    assert run(bare, ["QA.REGISTRATIONS", fourth]) == [None]


def reload(server: Server) -> None:
    execute(server, "DEBUG", "RELOAD")


def rewrite(server: Server) -> None:
    """Rewrites the AOF and loads the data from it."""
    with server.client() as client:
        client.bgrewriteaof()
        eventually(lambda: "Background AOF rewrite finished successfully" in server.output())
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == 0)
        client.set("x", "1")
    server.restart()


PERSISTENT = {
    "rdb": ({"save": "3600 100000"}, reload),
    "rdb restart": ({"save": "3600 1"}, Server.restart),
    "aof": ({"appendonly": "yes", "appendfsync": "always"}, Server.restart),
    "aof rewritten": ({"appendonly": "yes", "appendfsync": "always"}, rewrite),
    "aof rewritten as commands": (
        {"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"},
        rewrite,
    ),
}


@pytest.mark.parametrize(("settings", "again"), PERSISTENT.values(), ids=PERSISTENT.keys())
def test_registrations_tombstones_and_orders_survive(
    server_binary: Path, settings: dict[str, object], again: Callable[[Server], None]
) -> None:
    with Server(server_binary, settings, worker=FUNCTIONS) as server:
        server.wait_ready()
        assert eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == 0)
        hook = keys_reader("k", "hook:*", "keymiss", "get")
        both = [stream_reader("b", "b*"), stream_reader("c", "c*")]
        assert register(server, "s", trigger("a", "ta"), *both, hook) == "OK"
        assert execute(server, "RG.UNREGISTER", "a") == "OK"
        assert run(server, ["QA.UNREGISTER", "later"]) == ["OK"]
        assert execute(server, "RG.PAUSEREGISTRATIONS", "b", "c") == "OK"
        assert execute(server, "RG.UNPAUSEREGISTRATIONS", "c") == "OK"
        before = orders(server)
        again(server)
        eventually(lambda: server.field("worker_state") == "ready")
        assert eventually(lambda: orders(server), ignore=redis.ResponseError) == before
        assert (status(server, "b"), status(server, "c")) == ("PAUSED", "OK")
        assert buried(server, "a", "b", "later") == ["a", "later"]
        assert run(server, ["QA.SESSIONS"]) == [[["s", "", "source", "payload", "b", "c", "k"]]]
        assert execute(server, "GET", "hook:x") == "answer of hook:x"
        assert register(server, "t", trigger("a", "ta")).startswith("-UNREGISTERED")


def test_tombstones_alone_survive(server_binary: Path) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always", "aof-use-rdb-preamble": "no"}
    with Server(server_binary, settings, worker=FUNCTIONS) as server:
        server.wait_ready()
        assert run(server, ["QA.UNREGISTER", *[f"r{number}" for number in range(2500)]]) == ["OK"]
        rewrite(server)
        server.wait_ready()
        assert buried(server, "r0", "r2499", "r2500") == ["r0", "r2499"]
        execute(server, "DEBUG", "RELOAD")
        assert eventually(lambda: buried(server, "r0", "r2500"), ignore=redis.ResponseError) == ["r0"]


def test_a_promoted_replica_has_tombstones_and_orders(server_binary: Path) -> None:
    with Server(server_binary, worker=FUNCTIONS) as primary, Server(server_binary, worker=FUNCTIONS) as replica:
        primary.wait_ready()
        replica.wait_ready()
        assert register(primary, "s", trigger("a", "ta"), trigger("b", "tb"), stream_reader("c", "c*")) == "OK"
        assert execute(primary, "RG.UNREGISTER", "a") == "OK"
        execute(replica, "REPLICAOF", "127.0.0.1", primary.port)  # the RDB file has the first change
        eventually(lambda: sorted(dump(replica)) == ["b", "c"])
        assert execute(primary, "RG.UNREGISTER", "b") == "OK"
        assert run(primary, ["QA.UNREGISTER", "later"]) == ["OK"]
        assert execute(primary, "RG.PAUSEREGISTRATIONS", "c") == "OK"
        eventually(lambda: list(dump(replica)) == ["c"] and status(replica, "c") == "PAUSED")
        expected = orders(primary)
        execute(replica, "REPLICAOF", "NO", "ONE")
        assert eventually(lambda: orders(replica), ignore=redis.ResponseError) == expected
        assert buried(replica, "a", "b", "c", "later") == ["a", "b", "later"]
        assert register(replica, "t", trigger("b", "tb")).startswith("-UNREGISTERED")
