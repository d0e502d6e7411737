"""StreamReader registrations: notices of new entries, their limits, statistics, pauses, and promotions."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from tests.harness.clusters import Cluster, meet
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import fake_worker
from tests.module.persistence import rewrite_and_load_aof
from tests.module.registrations import dump, keys_reader, register, run, status, stream_reader

ADD_IN_SCRIPT = "return redis.call('XADD', KEYS[1], '*', 'f', 'v')"


def notices(server: Server, kind: str) -> list[str]:
    with server.client() as client:
        return [text for text in client.lrange("notices", 0, -1) if text.startswith(kind)]


def test_additions_by_any_client_are_announced(shared: Server) -> None:
    assert register(shared, "s1", stream_reader("s1", "one:*"), stream_reader("s1exact", "one:exact")) == "OK"
    with shared.client() as client, shared.client(db=1) as elsewhere:
        client.xadd("one:a", {"f": "v"})
        pipeline = client.pipeline(transaction=True)
        pipeline.xadd("one:multi", {"f": "v"})
        pipeline.execute()
        client.eval(ADD_IN_SCRIPT, 1, "one:script")
        client.xadd("other", {"f": "v"})
        client.xtrim("one:a", 0)
        elsewhere.xadd("one:elsewhere", {"f": "v"})
        client.xadd("one:exact", {"f": "v"})
    expected = {"stream s1 one:a", "stream s1 one:multi", "stream s1 one:script", "stream s1 one:exact"}
    expected.add("stream s1exact one:exact")
    eventually(lambda: len(notices(shared, "stream s1")) >= len(expected))
    assert sorted(notices(shared, "stream s1")) == sorted(expected)


def stopped_while_it_waits(server: Server) -> int:
    """Stops the worker in a new QA.NEXT, which takes the next job. Returns 0 if QA.NEXT had returned before."""
    assert execute(server, "RG.TRIGGER", "echo", "x") == ["x"]
    eventually(lambda: server.info()["blocked_clients"])
    pid = server.signal_worker(signal.SIGSTOP)
    if server.info()["blocked_clients"]:
        return pid
    os.kill(pid, signal.SIGCONT)
    return 0


def test_unreported_additions_are_one_notice(server: Server) -> None:
    assert register(server, "s", stream_reader("s", "st:*")) == "OK"
    execute(server, "CONFIG", "SET", "qa.worker-silence-ms", 60_000)
    pid = eventually(lambda: stopped_while_it_waits(server))
    with server.client() as client:
        client.xadd("st:a", {"f": "v"})  # the blocked QA.NEXT takes this notice
        eventually(lambda: server.field("queued_events") == 0)
        for _ in range(20):
            client.xadd("st:a", {"f": "v"})
            client.xadd("st:b", {"f": "v"})
        assert server.field("queued_events") == 2
        assert server.field("queued_clients") == 0
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: len(notices(server, "stream s st:")) == 3)
        client.xadd("st:b", {"f": "v"})
        eventually(lambda: len(notices(server, "stream s st:")) == 4)


def test_dropped_notices_cause_a_repair(server_binary: Path) -> None:
    settings = {"qa.max-events": 4, "qa.worker-silence-ms": 60000}
    with Server(server_binary, settings, worker=fake_worker("functions")) as server, server.client() as client:
        server.wait_ready()
        assert register(server, "s", stream_reader("s", "st:*")) == "OK"
        pid = server.signal_worker(signal.SIGSTOP)
        for number in range(30):
            client.xadd(f"st:{number}", {"f": "v"})
        assert server.field("queued_events") == 4
        assert client.ping()
        os.kill(pid, signal.SIGCONT)
        eventually(lambda: client.lrange("repaired", 0, -1) == ["s"])


def test_statistics_and_status(shared: Server) -> None:
    assert register(shared, "stats", stream_reader("stats", "stats:*"), keys_reader("statskeys", "statskeys:*")) == "OK"
    data = dump(shared)["stats"]["RegistrationData"]
    assert list(data) == [
        "mode", "numTriggered", "numSuccess", "numFailures", "numAborted",
        "lastRunDurationMS", "totalRunDurationMS", "avgRunDurationMS",
        "lastEstimatedLagMS", "avgEstimatedLagMS", "lastError", "args", "status",
    ]  # fmt: skip
    assert (data["status"], data["lastEstimatedLagMS"], data["avgEstimatedLagMS"]) == ("OK", 0, "0.000")
    before = shared.field("rg_nexecutions")
    replies = run(
        shared,
        ["QA.STREAM", "stats", "OK", "OK", 4000, 10, ""],
        ["QA.STREAM", "stats", "WAITING_FOR_RETRY_ON_FAILURE", "ERR", 2000, 30, "ERR broken"],
        ["QA.STREAM", "stats", "ABORTED", "ABORTED", 0, 20, "ERR aborted"],
        ["QA.STREAM", "nosuch", "OK"],
        ["QA.STREAM", "statskeys", "OK"],
        ["QA.STREAM", "stats", "FINE"],
        ["QA.STREAM", "stats", "OK", "OK", -1, 0, ""],
        ["QA.STREAM", "stats", "OK", "MAYBE", 0, 0, ""],
        ["QA.STREAM", "stats", "OK", "OK"],
    )
    assert replies[:3] == ["OK", "OK", "OK"]
    assert replies[3:5] == ["-NOREG no such registration: nosuch", "-NOREG no such registration: statskeys"]
    assert [str(reply)[:4] for reply in replies[5:]] == ["-ERR"] * 4
    data = dump(shared)["stats"]["RegistrationData"]
    assert [data[name] for name in ("numTriggered", "numSuccess", "numFailures", "numAborted")] == [3, 1, 1, 1]
    assert (data["totalRunDurationMS"], data["avgRunDurationMS"]) == (6, "2.000")
    assert (data["lastEstimatedLagMS"], data["avgEstimatedLagMS"]) == (20, "20.000")
    assert (data["lastError"], data["status"]) == ("ERR aborted", "ABORTED")
    assert shared.field("rg_nexecutions") >= before + 3
    assert "status" not in dump(shared)["statskeys"]["RegistrationData"]


def test_pause_outlives_the_worker_and_the_server(server_binary: Path) -> None:
    settings = {"save": "3600 100000"}
    with (
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as server,
        server.client() as client,
    ):
        server.wait_ready()
        assert register(server, "s", stream_reader("s", "st:*"), keys_reader("k", "k:*")) == "OK"
        with pytest.raises(redis.ResponseError, match=r"^Reader KeysReader does not support pause$"):
            client.execute_command("RG.PAUSEREGISTRATIONS", "s", "k")
        with pytest.raises(redis.ResponseError, match=r"^execution is not registered$"):
            client.execute_command("RG.UNPAUSEREGISTRATIONS", "nosuch")
        assert status(server, "s") == "OK"
        assert client.execute_command("RG.PAUSEREGISTRATIONS", "s") == "OK"
        eventually(lambda: notices(server, "pause") == ["pause s 1"])
        assert run(server, ["QA.STREAM", "s", "OK", "OK", 1, 1, ""]) == ["OK"]  # a batch that started before the pause
        assert status(server, "s") == "PAUSED"
        server.signal_worker(signal.SIGKILL)
        eventually(lambda: server.field("worker_number") == 2)
        server.wait_ready()
        assert status(server, "s") == "PAUSED"
        client.save()
        server.restart()
        server.wait_ready()
        assert status(server, "s") == "PAUSED"
        assert client.execute_command("RG.UNPAUSEREGISTRATIONS", "s") == "OK"
        eventually(lambda: notices(server, "pause")[-1] == "pause s 0")
        assert status(server, "s") == "OK"
        assert run(server, ["QA.STREAM", "s", "ABORTED"]) == ["OK"]
        client.execute_command("DEBUG", "RELOAD")
        assert status(server, "s") == "ABORTED"
        server.wait_ready()
        assert run(server, ["QA.STREAM", "s", "PAUSED"]) == ["OK"]
        assert status(server, "s") == "PAUSED"


def test_an_aborted_stream_stays_aborted_after_a_restart(server_binary: Path) -> None:
    settings = {"appendonly": "yes", "aof-use-rdb-preamble": "no"}
    with (
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as server,
        Server(server_binary, worker=fake_worker("functions", "--bare")) as replica,
        server.client() as client,
        replica.client() as other,
    ):
        server.wait_ready()
        other.execute_command("REPLICAOF", "127.0.0.1", server.port)
        eventually(lambda: other.info("replication")["master_link_status"] == "up")
        assert register(server, "s", stream_reader("s", "st:*")) == "OK"
        assert run(server, ["QA.STREAM", "s", "ABORTED", "ABORTED", 1, 1, "ERR x"]) == ["OK"]
        eventually(lambda: "s" in dump(replica) and status(replica, "s") == "ABORTED")
        client.execute_command("DEBUG", "LOADAOF")
        assert status(server, "s") == "ABORTED"
        rewrite_and_load_aof(client)
        assert status(server, "s") == "ABORTED"
        assert client.execute_command("RG.UNPAUSEREGISTRATIONS", "s") == "OK"
        eventually(lambda: status(replica, "s") == "OK")
        client.execute_command("DEBUG", "LOADAOF")
        assert status(server, "s") == "OK"


def test_replica_is_silent_until_it_is_promoted(server_binary: Path) -> None:
    with (
        Server(server_binary, worker=fake_worker("functions", "--bare")) as primary,
        Server(server_binary, worker=fake_worker("functions", "--bare")) as replica,
        primary.client() as client,
        replica.client() as other,
    ):
        primary.wait_ready()
        replica.wait_ready()
        assert register(primary, "s", stream_reader("s", "st:*")) == "OK"
        other.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        eventually(lambda: other.info("replication")["master_link_status"] == "up")
        eventually(lambda: "s" in dump(replica))
        client.xadd("st:a", {"f": "v"})
        assert client.execute_command("RG.PAUSEREGISTRATIONS", "s") == "OK"
        eventually(lambda: other.exists("st:a"))
        eventually(lambda: status(replica, "s") == "PAUSED")
        assert replica.field("queued_events") == 0
        eventually(lambda: replica.field("worker_number") == 2)  # the first worker does not know the loaded sessions
        replica.wait_ready()
        other.execute_command("REPLICAOF", "NO", "ONE")
        eventually(lambda: notices(replica, "promoted") == ["promoted"])
        other.xadd("st:b", {"f": "v"})
        eventually(lambda: notices(replica, "stream s st:b"))
        assert notices(primary, "promoted") == []


def test_the_new_primary_is_notified_after_a_failover(server_binary: Path) -> None:
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": 5000}
    with (
        Cluster(server_binary, worker=fake_worker("functions", "--bare"), size=1) as cluster,
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as replica,
        cluster.nodes[0].client() as client,
        replica.client() as other,
    ):
        assert register(cluster.nodes[0], "s", stream_reader("s", "st:*")) == "OK"
        primary_id = client.execute_command("CLUSTER MYID")
        replica.wait_ready()
        meet(replica, cluster.nodes[0])
        eventually(lambda: other.execute_command("CLUSTER", "REPLICATE", primary_id), ignore=redis.ResponseError)
        eventually(lambda: other.info("replication").get("master_link_status") == "up")
        eventually(lambda: replica.field("worker_number") == 2)  # the first worker does not know the loaded sessions
        replica.wait_ready()
        # both servers must have the replica in their tables, or the failover times out
        eventually(lambda: client.execute_command("CLUSTER REPLICAS", primary_id))
        for one in (client, other):
            eventually(lambda one=one: one.execute_command("CLUSTER INFO")["cluster_state"] == "ok")  # type: ignore[misc]

        def fails_over() -> bool:  # the server gives up a failover after 5 s
            if other.role()[0] == "master":
                return True
            other.execute_command("CLUSTER", "FAILOVER")
            with suppress(AssertionError):
                eventually(lambda: other.role()[0] == "master", 6)
            return bool(other.role()[0] == "master")

        eventually(fails_over, ignore=redis.ResponseError)
        eventually(lambda: notices(replica, "promoted") == ["promoted"], ignore=redis.ResponseError)
