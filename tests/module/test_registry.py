"""Registrations: QA.REGISTER, events, counters, persistence, replication, removal."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest
import redis

from tests.harness.clusters import Cluster, linked
from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import fake_worker
from tests.module.registrations import NO_ARGS, dump, keys_reader, register, run, stream_reader, trigger, wait_for_bus

USER = ("user", "0")  # the class and the cost of a registration


def lacks(server: Server, registration: str) -> bool:
    return registration not in dump(server)


def test_dump_has_the_shape_of_redisgears(shared: Server) -> None:
    entries = dump(shared)
    assert sorted(entries) == ["id-do", "id-echo", "id-ev", "id-hook", "id-miss"]
    entry = entries["id-ev"]
    assert list(entry) == ["id", "reader", "desc", "RegistrationData", "PD", "ExecutionThreadPool"]
    assert (entry["reader"], entry["desc"], entry["PD"]) == ("KeysReader", "the events", "pd")
    assert list(entry["RegistrationData"]) == [
        "mode", "numTriggered", "numSuccess", "numFailures", "numAborted",
        "lastRunDurationMS", "totalRunDurationMS", "avgRunDurationMS", "lastError", "args",
    ]  # fmt: skip
    assert entry["RegistrationData"]["lastError"] is None
    assert entry["RegistrationData"]["args"][:2] == ["regex", "hook*"]
    assert entries["id-echo"]["desc"] is None


def reader(source: str, mode: str, *rest: str) -> list[str]:
    """A registration with this source, mode, events, commands, arguments, class and cost."""
    events, commands, arguments, *of = [*rest, *("", "", NO_ARGS, *USER)[len(rest) :]]
    return ["k", source, mode, "", "x", events, commands, arguments, "", *of]


@pytest.mark.parametrize(
    ("registration", "error"),
    [
        (trigger("t", "echo"), "trigger already registered: echo"),
        (trigger("id-echo", "new"), "registration id is taken: id-echo"),
        (keys_reader("k", "x*", "keymiss", "eval"), "Can not hook a command "),
        (keys_reader("k", "x*", "keymiss", "nosuch"), "Can not hook a command that does not exist: nosuch"),
        (keys_reader("k", "x*", "keymiss", "set"), "Can not hook a command which is not read only: set"),
        (keys_reader("k", "x*", "keymiss", "blpop"), "Can not hook a command "),
        (keys_reader("k", "x*", "set", "get"), "Can not hook a command without the keymiss event"),
        (reader("NoReader", "async"), "unknown reader: NoReader"),
        (reader("KeysReader", "sync"), "mode sync is left out"),
        (reader("KeysReader", "odd"), "unknown mode: odd"),
        (reader("StreamReader", "async", "set"), "a StreamReader is called for xadd only"),
        (reader("StreamReader", "async", "", "get"), "Can not hook a command without"),
        (reader("KeysReader", "async", "", "", NO_ARGS, "ours", "0"), "unknown class: ours, expected own or"),
        (reader("KeysReader", "async", "", "", NO_ARGS, "own", "-1"), "cost_from must be between 0 and"),
        (reader("KeysReader", "async", "", "", "junk"), "args of a registration is not RESP"),
    ],
)
def test_bad_registration_changes_nothing(shared: Server, registration: list[str], error: str) -> None:
    before = sorted(dump(shared))
    assert register(shared, "other", trigger("fine", "fine"), registration).startswith(f"-ERR {error}")
    assert sorted(dump(shared)) == before


def test_session_is_replaced_as_a_whole(shared: Server) -> None:
    assert register(shared, "s", trigger("a", "ta"), trigger("b", "tb")) == "OK"
    assert register(shared, "s", trigger("b", "tb2"), keys_reader("c", "c*")) == "OK"
    assert {"a", "b", "c"} & set(dump(shared)) == {"b", "c"}
    assert shared.field("sessions") == 2
    assert register(shared, "s") == "OK"
    assert shared.field("sessions") == 1


def test_events_reach_the_worker(server: Server) -> None:
    with server.client() as client:
        client.set("ev:a", "1")
        client.delete("ev:a")
        client.set("evil", "1")
        client.get("miss:a")
        with server.client(db=1) as other:
            other.set("ev:elsewhere", "1")
        run(server, ["SET", "ev:chain", "1"], ["GET", "ev:none"])
        expected = {"id-ev set ev:a", "id-ev del ev:a", "id-miss keymiss miss:a", "id-ev set ev:chain"}
        eventually(lambda: client.llen("seen") >= 4)
        assert set(client.lrange("seen", 0, -1)) == expected
    # the module counts the end of a function after the function's write
    eventually(lambda: dump(server)["id-ev"]["RegistrationData"]["numSuccess"] >= 3)
    data = dump(server)["id-ev"]["RegistrationData"]
    assert (data["numTriggered"], data["numSuccess"]) == (3, 3)


def test_dropped_events_cause_a_repair(server_binary: Path) -> None:
    with Server(server_binary, {"qa.max-events": 10}, worker=fake_worker("functions")) as server:
        server.wait_ready()
        with server.client() as client:
            pipeline = client.pipeline(transaction=True)
            for number in range(50):
                pipeline.set(f"ev:{number}", "1")
            pipeline.execute()
            eventually(lambda: client.lrange("repaired", 0, -1) == ["id-ev"])
        assert server.field("events_dropped") == 40
        assert dump(server)["id-ev"]["RegistrationData"]["numAborted"] == 40


def test_more_registrations_to_repair_than_the_queue_holds(server_binary: Path) -> None:
    with Server(server_binary, {"qa.max-events": 1}, worker=fake_worker("functions", "--bare")) as server:
        server.wait_ready()
        names = [f"r{number}" for number in range(4)]
        assert register(server, "s", *[keys_reader(name, "ev:*") for name in names]) == "OK"
        with server.client() as client:
            client.set("ev:a", "1")
            eventually(lambda: sorted(client.lrange("repaired", 0, -1)) == names[1:])


def test_registrations_survive_a_rewrite_as_commands(server_binary: Path) -> None:
    settings = {"appendonly": "yes", "aof-use-rdb-preamble": "no"}
    with (
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as server,
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as replica,
        server.client() as client,
        replica.client() as other,
    ):
        server.wait_ready()
        replica.wait_ready()  # this worker started after the load, so it knows the sessions
        assert register(server, "s", trigger("a", "ta"), stream_reader("b", "b:*")) == "OK"
        assert client.execute_command("RG.PAUSEREGISTRATIONS", "b") == "OK"
        other.execute_command("REPLICAOF", "127.0.0.1", server.port)
        eventually(lambda: sorted(dump(replica)) == ["a", "b"])
        eventually(lambda: replica.field("worker_number") == 2)
        replica.wait_ready()
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == 0)
        client.bgrewriteaof()
        eventually(lambda: "Background AOF rewrite finished successfully" in server.output())
        eventually(lambda: server.info("persistence")["aof_rewrite_in_progress"] == 0)
        client.set("x", "1")
        assert client.wait(1, 25_000) == 1
        assert replica.field("worker_restarts") == 1  # the worker knew the sessions, so it was not replaced
        assert replica.field("worker_state") == "ready"
        server.restart()
        assert sorted(dump(server)) == ["a", "b"]
        assert dump(server)["b"]["RegistrationData"]["status"] == "PAUSED"


def test_unregister(server: Server) -> None:
    with server.client() as client:
        assert client.execute_command("RG.UNREGISTER", "id-echo") == "OK"
        with pytest.raises(redis.ResponseError, match=r"^execution is not registered$"):
            client.execute_command("RG.UNREGISTER", "id-echo")
        with pytest.raises(redis.ResponseError, match="subcommand not found"):
            client.execute_command("RG.TRIGGER", "echo")
        eventually(lambda: "unregister id-echo 0" in client.lrange("notices", 0, -1))
        assert client.execute_command("RG.UNREGISTER", "id-hook", "ABORTPENDING") == "OK"
        assert client.get("hook:x") is None


def test_a_replica_of_an_empty_primary_deletes_its_registrations(server_binary: Path) -> None:
    with (
        Server(server_binary, worker=fake_worker("functions", "--bare")) as primary,
        Server(server_binary, worker=fake_worker("functions", "--bare")) as replica,
        replica.client() as other,
    ):
        replica.wait_ready()
        assert register(replica, "s", trigger("t", "word")) == "OK"
        other.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        eventually(lambda: other.info("replication")["master_link_status"] == "up")
        assert dump(replica) == {}
        eventually(lambda: replica.field("worker_number") == 2)  # the first worker still has the session


def test_replica_has_the_registrations_and_no_events(server_binary: Path) -> None:
    with Server(server_binary, worker=fake_worker("functions")) as primary:
        primary.wait_ready()
        with Server(server_binary, worker=fake_worker("functions")) as replica:
            replica.wait_ready()
            with replica.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
                eventually(lambda: client.info("replication")["master_link_status"] == "up")
            eventually(lambda: sorted(dump(replica)) == sorted(dump(primary)))
            eventually(lambda: replica.field("worker_number") == 2)  # the first worker lacks the loaded sessions
            replica.wait_ready()
            with primary.client() as client:
                client.set("ev:x", "1")
                eventually(lambda: client.llen("seen") == 1)
            with replica.client() as client:
                eventually(lambda: client.lrange("seen", 0, -1) == ["id-ev set ev:x"])
                assert client.get("hook:x") is None
            assert replica.field("jobs_event")["submitted"] == 0
            restarts = replica.field("worker_restarts")
            assert register(primary, "later", trigger("later", "later")) == "OK"
            eventually(lambda: replica.field("worker_restarts") > restarts)
            assert primary.field("worker_restarts") == 0
            with primary.client() as client:
                assert client.execute_command("RG.UNREGISTER", "id-echo") == "OK"
            eventually(lambda: "id-echo" not in dump(replica))


def test_a_cluster_unregisters_on_all_shards_and_delivers_messages(server_binary: Path) -> None:
    with Cluster(server_binary, worker=fake_worker("functions"), size=2) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        wait_for_bus(cluster)
        first, second = cluster.nodes
        with first.client() as client, second.client() as other:
            target = other.execute_command("CLUSTER MYID")
            sender = client.execute_command("CLUSTER MYID")
            words = [["QA.SEND", target, "hello"], ["QA.SEND", "0" * 40, "hello"]]
            assert run(first, *words) == ["OK", "-ERR unknown node: " + "0" * 40]
            assert sender != target
            # a known node may have no link for a moment
            eventually(lambda: target in linked(first))
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command("DEBUG", "CLUSTERLINK", "KILL", "TO", target)
            pipeline.execute_command("RG.PYEXECUTE", json.dumps({"run": words[:1]}))
            assert pipeline.execute() == ["OK", json.dumps(["OK"])]
            eventually(lambda: target in linked(first))
            reply = client.execute_command("RG.INFOCLUSTER")
            assert reply[1] == sender
            assert len(reply[4]) == 2
            assert client.execute_command("RG.UNREGISTER", "id-do") == "OK"
        for node in cluster.nodes:
            eventually(partial(lacks, node, "id-do"))
        lost = execute(second, "CLUSTER", "MYID")
        second.stop(signal.SIGKILL)
        down = f"-ERR node {lost} is down: there is no link to it"
        eventually(lambda: run(first, ["QA.SEND", lost, "hello"]) == [down], ignore=redis.RedisError)


def test_messages_that_no_worker_takes_are_bounded(server_binary: Path) -> None:
    settings = {"qa.worker-silence-ms": 60000}
    with Cluster(server_binary, settings, worker=fake_worker("functions"), size=2) as cluster:
        first, second = cluster.nodes
        first.wait_ready()
        second.wait_ready()
        wait_for_bus(cluster)
        second.signal_worker(signal.SIGSTOP)
        with second.client() as other:
            message = ["QA.SEND", other.execute_command("CLUSTER MYID"), "x" * (1 << 20)]

            def dropped() -> bool:
                assert run(first, *[message] * 10) == ["OK"] * 10
                return "bytes dropped" in second.output()

            eventually(dropped)  # repeated, because the bus loses messages when a node answers a ping late
            assert second.field("queued_notices") <= 64 + 16
