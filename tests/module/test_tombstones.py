"""Unregistered ids do not return: tombstones and numbered pauses, on the wire, in files and on replicas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import fake_worker
from tests.module.registrations import dump, register, run, stream_reader, trigger

FUNCTIONS = fake_worker("functions", "--bare")


def buried(server: Server, *ids: str) -> list[str]:
    """The ids that have a tombstone."""
    (found,) = run(server, ["QA.UNREGISTERED", *ids])
    return list(found)


def orders(server: Server) -> dict[str, int]:
    """The number of the last order for each registration."""
    ((_, *fields),) = run(server, ["QA.REGISTRATIONS", 0])
    return dict(zip(fields[1::3], fields[2::3], strict=True))


def status(server: Server, registration: str) -> str:
    return str(dump(server)[registration]["RegistrationData"]["status"])


@pytest.fixture
def bare(server_binary: Path) -> Any:
    with Server(server_binary, worker=FUNCTIONS) as server:
        server.wait_ready()
        yield server


def test_unregistered_ids_are_refused(bare: Server) -> None:
    assert register(bare, "s", trigger("a", "ta"), trigger("b", "tb")) == "OK"
    assert execute(bare, "RG.UNREGISTER", "a") == "OK"
    assert buried(bare, "a", "b") == ["a"]
    refused = register(bare, "s", trigger("a", "ta"), trigger("b", "tb"))
    assert refused == "-UNREGISTERED registration has been unregistered: a"
    assert list(dump(bare)) == ["b"]
    assert register(bare, "s", trigger("b", "tb")) == "OK"


def test_an_unknown_id_of_a_client_leaves_no_tombstone(bare: Server) -> None:
    with pytest.raises(redis.ResponseError, match="execution is not registered"):
        execute(bare, "RG.UNREGISTER", "never")
    assert buried(bare, "never") == []


def test_a_worker_creates_tombstones_for_present_and_future_ids(bare: Server) -> None:
    assert register(bare, "s", trigger("a", "ta"), trigger("b", "tb")) == "OK"
    assert run(bare, ["QA.UNREGISTER", "a", "later"]) == ["OK"]
    assert list(dump(bare)) == ["b"]
    assert buried(bare, "later", "a", "b") == ["later", "a"]
    eventually(lambda: execute(bare, "LRANGE", "notices", 0, -1) == ["unregister a 0"])


def test_a_session_may_remove_and_restore_a_registration(bare: Server) -> None:
    assert register(bare, "s", trigger("a", "ta")) == "OK"
    assert register(bare, "s") == "OK"
    assert buried(bare, "a") == []
    assert register(bare, "s", trigger("a", "ta")) == "OK"


def test_the_newest_ten_thousand_tombstones_are_kept(bare: Server) -> None:
    for start in range(0, 10_001, 1000):
        assert run(bare, ["QA.UNREGISTER", *[f"r{number}" for number in range(start, start + 1000)]]) == ["OK"]
    assert buried(bare, "r0", "r999", "r1000", "r5000", "r10999") == ["r1000", "r5000", "r10999"]
    execute(bare, "DEBUG", "RELOAD")
    assert eventually(lambda: buried(bare, "r999", "r1000", "r10999"), ignore=redis.ResponseError) == [
        "r1000",
        "r10999",
    ]


def test_the_later_order_prevails(bare: Server) -> None:
    assert register(bare, "s", stream_reader("a", "a*"), trigger("b", "tb")) == "OK"
    assert orders(bare) == {"a": 0, "b": 0}
    assert run(bare, ["QA.PAUSE", "a", 11, "b", 11, "absent", 11]) == ["OK"]
    assert (orders(bare), status(bare, "a")) == ({"a": 11, "b": 0}, "PAUSED")
    assert run(bare, ["QA.PAUSE", "a", 10]) == ["OK"]
    assert (orders(bare)["a"], status(bare, "a")) == (11, "PAUSED")
    execute(bare, "RG.UNPAUSEREGISTRATIONS", "a")
    resumed = orders(bare)["a"]
    assert resumed % 2 == 0
    assert (resumed > 11, status(bare, "a")) == (True, "OK")
    execute(bare, "RG.PAUSEREGISTRATIONS", "a")
    paused = orders(bare)["a"]
    assert (paused > resumed, paused % 2) == (True, 1)
    # an order from a shard whose clock is far ahead: later orders of this shard must still prevail
    assert run(bare, ["QA.PAUSE", "a", 2**59]) == ["OK"]
    execute(bare, "RG.PAUSEREGISTRATIONS", "a")
    assert (orders(bare)["a"], status(bare, "a")) == (2**59 + 3, "PAUSED")


@pytest.mark.parametrize("order", ["0", "-1", str(2**60 + 1), str(2**64), "x"])
def test_an_order_out_of_range_is_refused(bare: Server, order: str) -> None:
    assert run(bare, ["QA.PAUSE", "a", 3, "b", order]) == ["-ERR number of an order is out of range"]


def test_a_worker_gets_the_registrations_only_when_they_changed(bare: Server) -> None:
    ((generation, *none),) = run(bare, ["QA.REGISTRATIONS", 0])
    assert none == []
    assert run(bare, ["QA.REGISTRATIONS", generation]) == [None]
    assert register(bare, "s", stream_reader("a", "a*")) == "OK"
    ((second, *fields),) = run(bare, ["QA.REGISTRATIONS", generation])
    assert (second > generation, fields) == (True, ["s", "a", 0])
    execute(bare, "RG.PAUSEREGISTRATIONS", "a")
    ((third, *fields),) = run(bare, ["QA.REGISTRATIONS", second])
    assert fields[:2] == ["s", "a"]
    execute(bare, "RG.UNREGISTER", "a")
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
def test_tombstones_and_orders_survive(
    server_binary: Path, settings: dict[str, object], again: Callable[[Server], None]
) -> None:
    with Server(server_binary, settings, worker=FUNCTIONS) as server:
        server.wait_ready()
        assert eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == 0)
        assert register(server, "s", trigger("a", "ta"), stream_reader("b", "b*"), stream_reader("c", "c*")) == "OK"
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
