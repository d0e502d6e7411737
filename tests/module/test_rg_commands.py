"""The RG.* commands that the module answers or checks itself, triggers on keys and in order, ABORTPENDING."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server, execute
from tests.harness.workers import fake_worker
from tests.module.registrations import dump, keys_reader, register, status, stream_reader, trigger, wait_for_bus


def error_of(client: Any, *words: object) -> str:
    with pytest.raises(redis.ResponseError) as caught:
        client.execute_command(*words)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("RG.PYPROFILE STATS x", "RG.PYPROFILE is left out: profile in the function with Python's cProfile"),
        ("RG.PYEXPORTREQ x", "RG.PYEXPORTREQ is left out: install packages in the worker's environment"),
        ("RG.HELLO", "RG.HELLO is left out: shards find each other through the server's own cluster"),
        ("RG.CLUSTERSET", "RG.CLUSTERSET is left out: the topology is the server's own"),
        ("RG.PYFREEINTERPRETER", "RG.PYFREEINTERPRETER is left out: the interpreter is a process of its own"),
        ("RG.PYEXECUTE x ID", "ID is missing"),
        ("RG.PYEXECUTE x DESCRIPTION", "DESCRIPTION is missing"),
        ("RG.PYEXECUTE x REPLACE_WITH", "REPLACE_WITH is missing"),
        ("RG.PYEXECUTE x ID a/b", "ID must be compose of: letters, digits"),
        ("RG.PYEXECUTE x REPLACE_WITH a/b", "REPLACE_WITH must be compose of: letters, digits"),
        ("RG.PYEXECUTE x UPGRADE ODD", "Unknown arguments were given: ODD"),
        ("RG.GETEXECUTION 1-1 NODE", "unknown argument of RG.GETEXECUTION: NODE, expected SHARD or CLUSTER"),
        *((f"RG.{name}", "wrong number of arguments") for name in ("PYEXECUTE", "TRIGGER", "UNREGISTER", "CONFIGGET")),
        ("RG.ABORTEXECUTION", "wrong number of arguments"),
        ("RG.DROPEXECUTION a b", "wrong number of arguments"),
        ("RG.TRIGGERONKEY echo", "wrong number of arguments"),
        ("RG.TRIGGERONKEY nosuch key", "subcommand not found"),
        ("RG.UNREGISTER id-echo NOW", "unknown argument of RG.UNREGISTER, expected ABORTPENDING"),
    ],
)
def test_invalid_commands_have_clear_errors(shared: Server, words: str, error: str) -> None:
    with shared.client() as client:
        assert error in error_of(client, *words.split())


@pytest.mark.parametrize("protocol", [2, 3])
def test_small_replies(shared: Server, protocol: int) -> None:
    with shared.client(protocol=protocol) as client:
        assert client.execute_command("RG.DUMPPLUGINS") == [["qa", 1]]
        assert client.execute_command("RG.NETWORKTEST") == "OK"
        assert client.execute_command("RG.TRIGGERONKEY", "echo", "key", "x") == ["key", "x"]
        assert client.execute_command("RG.PYEXECUTE", "x", "ID", "my.session:v-1_", "REQUIREMENTS", "numpy") == [
            "x", "0", "my.session:v-1_", "", "0", "", "numpy",
        ]  # fmt: skip


def test_triggers_do_not_block_transactions_and_scripts(shared: Server) -> None:
    refusal = "can not run a non-sync execution inside a MULTI/LUA"
    with shared.client() as client:
        pipeline = client.pipeline(transaction=True)
        pipeline.execute_command("RG.TRIGGERONKEY", "echo", "k", "x")
        pipeline.execute_command("RG.PYDUMPREQS")
        pipeline.execute_command("RG.PYEXECUTE", "a")
        first, *others = pipeline.execute(raise_on_error=False)
        assert refusal in str(first)
        assert all("Can not run gears inside a multi exec" in str(other) for other in others)
        assert refusal in error_of(client, "EVAL", "return redis.call('RG.TRIGGERONKEY', 'echo', KEYS[1])", 1, "k")


def test_info_has_the_fields_of_the_originals(shared: Server) -> None:
    eventually(lambda: shared.field("rg_CurrAllocated"))  # from the first beat of the worker
    before = shared.info()
    with shared.client() as client:
        client.execute_command("RG.TRIGGER", "echo")
    after = shared.info()
    assert after["qa_rg_nexecutions"] == before["qa_rg_nexecutions"] + 1
    assert after["qa_rg_nregistrations"] == len(dump(shared))
    assert after["qa_rg_CurrAllocated"] >= 1000000
    assert after["qa_rg_PeakAllocated"] >= after["qa_rg_CurrAllocated"]
    assert after["qa_ai_RedisAI_version"] == 1
    assert after["qa_ai_queue_CPU_bthread_n1_used_cpu_total"] > 0


def test_jobs_in_order_run_one_at_a_time(shared: Server) -> None:
    assert register(shared, "order", trigger("order", "order", in_order=True)) == "OK"
    first = Pending(shared, "RG.TRIGGER", "order", "held", "order")
    eventually(lambda: shared.field("in_flight") == 1)
    with (
        first,
        Pending(shared, "RG.TRIGGER", "order", "gone"),
        Pending(shared, "RG.TRIGGER", "order", "last") as last,
        shared.client() as client,
    ):
        eventually(lambda: shared.field("queued_clients") == 2)
        assert client.execute_command("RG.TRIGGER", "echo", "x") == ["x"]  # only jobs in order wait
        assert shared.field("in_flight") == 1
        shared.let_go("order")
        assert first.reply().startswith(b"*3\r\n$4\r\nheld")
        assert last.reply().startswith(b"*3\r\n$4\r\nlast")
    eventually(lambda: shared.fields("in_flight", "queued_clients") == (0, 0))
    assert dump(shared)["order"]["RegistrationData"]["numSuccess"] == 3


def test_the_next_job_in_order_waits_until_the_cancelled_job_has_ended(shared: Server) -> None:
    assert register(shared, "left", trigger("left", "left", in_order=True)) == "OK"
    execute(shared, "CONFIG", "SET", "qa.cancel-grace-ms", 60_000)
    leaver = Pending(shared, "RG.TRIGGER", "left", "held", "left")
    eventually(lambda: shared.field("in_flight") == 1)
    with Pending(shared, "RG.TRIGGER", "left", "waits"), Pending(shared, "RG.TRIGGER", "left", "next") as following:
        eventually(lambda: shared.field("queued_clients") == 2)
        leaver.hang_up()
        eventually(lambda: shared.field("in_flight") == 0)
        assert execute(shared, "RG.TRIGGER", "echo", "x") == ["x"]
        assert shared.field("queued_clients") == 2
        shared.let_go("left")
        assert following.reply().startswith(b"*3\r\n$4\r\nnext")
    execute(shared, "CONFIG", "SET", "qa.cancel-grace-ms", 2000)


def test_order_survives_the_worker(server: Server) -> None:
    assert register(server, "order", trigger("order", "order", in_order=True)) == "OK"
    with (
        Pending(server, "RG.TRIGGER", "order", "die-once") as first,
        Pending(server, "RG.TRIGGER", "order", "die") as second,
        Pending(server, "RG.TRIGGER", "order", "last") as last,
    ):
        assert b"die-once" in first.reply()
        assert second.reply() == b"-WORKERLOST worker died twice on this job\r\n"
        assert b"last" in last.reply()
    data = dump(server)["order"]["RegistrationData"]
    assert [data[name] for name in ("numTriggered", "numSuccess", "numFailures", "numAborted")] == [3, 2, 0, 1]
    assert data["lastError"] == "WORKERLOST worker died twice on this job"


@pytest.mark.parametrize("everybody", [False, True])
def test_killed_clients_leave_the_queue(server: Server, everybody: bool) -> None:
    """With `everybody`, the test also kills the worker's links. The worker then ends, and the module restarts it."""
    assert register(server, "killed", trigger("killed", "killed", in_order=True)) == "OK"
    execute(server, "CONFIG", "SET", "qa.cancel-grace-ms", 60_000)  # the test releases the cancelled job
    with server.client(client_name="waiter") as waiter, server.client(client_name="waiter") as other:
        for client in (waiter, other):
            client.connection_pool.get_connection().send_command("RG.TRIGGERONKEY", "killed", "held", "killed")
        eventually(lambda: server.fields("in_flight", "queued_clients") == (1, 1))
        with server.client() as client:
            if everybody:
                client.client_kill_filter(_type="normal", skipme=True)
            else:
                for entry in client.client_list():
                    if entry["name"] == "waiter":
                        client.client_kill_filter(_id=entry["id"])
            eventually(lambda: server.fields("in_flight", "queued_clients") == (0, 0))
            server.let_go("killed")
            server.wait_ready()
            assert client.execute_command("RG.TRIGGERONKEY", "killed", "x")[0] == "x"
    assert server.field("worker_restarts") == int(everybody)


def test_abort_pending_drops_queued_jobs_and_leaves_the_others_to_the_worker(server: Server) -> None:
    assert register(server, "s", trigger("slow", "slow", in_order=True), trigger("other", "other")) == "OK"
    aborted = b"-ERR execution was aborted: its registration was removed with ABORTPENDING\r\n"
    with (
        Pending(server, "RG.TRIGGER", "other", "held", "all") as other,
        Pending(server, "RG.TRIGGER", "slow", "held", "all") as running,
        server.client() as client,
    ):
        eventually(lambda: server.field("in_flight") == 2)
        with Pending(server, "RG.TRIGGER", "slow", "x") as kept:
            eventually(lambda: server.field("queued_clients") == 1)
            assert client.execute_command("RG.UNREGISTER", "slow", "ABORTPENDING") == "OK"
            assert kept.reply() == aborted
        assert server.field("in_flight") == 2
        eventually(lambda: "unregister slow 1" in client.lrange("notices", 0, -1))
        server.let_go("all")
        assert running.reply().startswith(b"*3")
        assert other.reply().startswith(b"*3")
        assert server.field("jobs_trigger")["aborted"] == 1
        assert server.field("worker_killed") == 0


def test_abort_pending_drops_events(server_binary: Path) -> None:
    with Server(server_binary, {"qa.worker-silence-ms": 60000}, worker=fake_worker("functions")) as server:
        server.wait_ready()
        server.signal_worker(signal.SIGSTOP)
        with server.client() as client:
            for number in range(50):
                client.set(f"ev:{number}", "1")
            eventually(lambda: server.field("queued_events") >= 30)
            assert client.execute_command("RG.UNREGISTER", "id-ev", "ABORTPENDING") == "OK"
            assert server.field("queued_events") == 0


def counted(server: Server, name: str) -> int:
    return int(dump(server)["id-echo"]["RegistrationData"][name])


def test_a_command_on_one_shard_changes_all_shards(server_binary: Path) -> None:
    with Cluster(server_binary, {"appendonly": "yes"}, worker=fake_worker("functions"), size=2) as cluster:
        first, second = cluster.nodes
        for node in cluster.nodes:
            node.wait_ready()
            assert register(node, "s", stream_reader("s", "st:*"), keys_reader("k", "k:*")) == "OK"
        wait_for_bus(cluster)
        with first.client() as client, second.client() as other:
            moved: list[str] = []
            replies = []
            for number in range(20):
                try:
                    replies.append(client.execute_command("RG.TRIGGERONKEY", "echo", f"key:{number}"))
                except redis.exceptions.MovedError:
                    moved.append(f"key:{number}")
            assert replies
            assert moved
            for key in moved:
                assert other.execute_command("RG.TRIGGERONKEY", "echo", key) == [key]
            assert counted(second, "numSuccess") == len(moved)
            assert client.execute_command("RG.NETWORKTEST") == "OK"
            assert client.execute_command("RG.CLEARREGISTRATIONSSTATS") == "OK"
            for node in cluster.nodes:
                eventually(partial(lambda node: counted(node, "numTriggered") == 0, node))
            for command, expected in (("RG.PAUSEREGISTRATIONS", "PAUSED"), ("RG.UNPAUSEREGISTRATIONS", "OK")):
                assert client.execute_command(command, "s") == "OK"
                for node in cluster.nodes:
                    eventually(partial(lambda node, expected: status(node, "s") == expected, node, expected))
            other.execute_command("CLIENT", "PAUSE", 20000, "WRITE")
            assert client.execute_command("RG.PAUSEREGISTRATIONS", "s") == "OK"
            assert client.execute_command("RG.UNREGISTER", "k", "ABORTPENDING") == "OK"
            time.sleep(0.2)
            assert status(second, "s") == "OK"
            other.execute_command("CLIENT", "UNPAUSE")
            eventually(lambda: status(second, "s") == "PAUSED")
            eventually(lambda: "k" not in dump(second))
            other.execute_command("DEBUG", "LOADAOF")
            assert "k" not in dump(second)
            assert status(second, "s") == "PAUSED"


def test_a_server_that_the_worker_cannot_reach_reports_it(server_binary: Path) -> None:
    """The server listens only on a unix socket with a relative path."""
    server = Server(server_binary, {"port": 0, "unixsocket": "relative.sock"}, worker=fake_worker("functions"))
    server.socket = server.directory / "relative.sock"
    with server, server.client() as client:
        eventually(lambda: "no worker is started: NOWORKER the worker cannot connect to this server" in server.output())
        assert "NOWORKER the worker cannot connect to this server" in error_of(client, "RG.PYEXECUTE", "x")
        assert (server.field("worker_number"), server.field("worker_state")) == (0, "stopped")
        assert server.output().count("no worker is started") == 1
        client.config_set("port", server.port)
        server.wait_ready()  # the module checks every 5 s
        assert client.execute_command("RG.TRIGGER", "echo", "x") == ["x"]
