"""The keymiss hook: a client that reads a missing key waits for the answer of a function."""

from __future__ import annotations

import json
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Pending, Server
from tests.harness.workers import fake_worker


def test_miss_is_answered_by_the_function(server: Server) -> None:
    with server.client() as client:
        assert client.get("hook:x: a 'quoted' ü {tag}") == "answer of hook:x: a 'quoted' ü {tag}"
    assert server.field("hook_misses") == 1
    assert server.field("hook_inferences") == 1
    assert server.field("jobs_event")["overridden"] == 1


def test_hit_is_a_plain_read(server: Server) -> None:
    with server.client() as client:
        client.set("hook:x", "stored")
        assert client.get("hook:x") == "stored"
        assert client.get("other") is None
    assert server.field("hook_misses") == 0
    assert server.field("hook_hits") == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_captured_reply_when_the_function_gives_none(server: Server, protocol: int) -> None:
    with server.client(protocol=protocol) as client:
        assert client.get("hook:none:x") is None
        assert client.get("hook:skip:x") is None
        assert client.get("hook:error:x") is None
        client.set("hook:there", "1")
        assert client.mget("hook:there", "hook:none:y") == ["1", None]
        registrations = {entry[1]: entry for entry in raw_registrations(server)}
    data = registrations["id-hook"][7]
    fields = dict(zip(data[::2], data[1::2], strict=True))
    assert (fields["numTriggered"], fields["numSuccess"], fields["numFailures"]) == (3, 2, 1)
    assert fields["lastError"] == "ERR broken"


def raw_registrations(server: Server) -> list[list[Any]]:
    with server.client(protocol=2) as client:
        return list(client.execute_command("RG.DUMPREGISTRATIONS"))


def test_transaction_and_script_get_the_captured_reply(server: Server) -> None:
    with server.client() as client:
        pipeline = client.pipeline(transaction=True)
        pipeline.get("hook:multi")
        assert pipeline.execute() == [None]
        assert client.eval("return redis.call('GET', 'hook:lua')", 0) is None
        eventually(lambda: client.llen("seen") == 2)
        # the scriptable worker has a thread for each event
        assert set(client.lrange("seen", 0, -1)) == {"id-hook keymiss hook:multi", "id-hook keymiss hook:lua"}


def test_other_database_is_not_hooked(server: Server) -> None:
    with server.client(db=1) as client:
        assert client.get("hook:x") is None
    assert server.field("hook_misses") == 0


def test_deadline_gives_the_captured_reply(server_binary: Path) -> None:
    with Server(server_binary, {"qa.hook-timeout-ms": 150}, worker=fake_worker("functions")) as server:
        server.wait_ready()
        with server.client() as client:
            assert client.get("hook:hang:x") is None  # the function would answer after 3 s
        assert server.field("jobs_event")["deadline"] == 1


def test_a_client_gets_its_answer_although_a_worker_dies_once(server: Server) -> None:
    with server.client() as client:
        assert client.get("hook:die-once:x") == "answer of hook:die-once:x"
    assert server.field("worker_restarts") == 1


def test_a_worker_that_dies_twice_is_reported(server: Server) -> None:
    with (
        server.client() as client,
        pytest.raises(redis.ResponseError, match="WORKERLOST worker died twice on this job"),
    ):
        client.get("hook:die:x")


def test_a_client_that_disconnects_drops_its_job(server: Server) -> None:
    with Pending(server, "GET", "hook:hang:x"):
        eventually(lambda: server.field("in_flight") == 1)
    eventually(lambda: server.field("in_flight") == 0)


def test_read_of_the_worker_itself_is_not_hooked(server: Server) -> None:
    with server.client() as client:
        reply = client.execute_command("RG.PYEXECUTE", '{"run": [["GET", "hook:x"]]}')
        assert reply == "[null]"
    assert server.field("hook_misses") == 0
    assert server.field("in_flight") == 0


def test_script_of_the_worker_is_not_hooked(server: Server) -> None:
    script = ["EVAL", "return redis.call('get', KEYS[1])", "1"]
    with server.client() as client:
        client.set("hook:there", "1")
        orders = json.dumps({"run": [[*script, "hook:x"], [*script, "hook:there"]]})
        assert client.execute_command("RG.PYEXECUTE", orders) == '[null, "1"]'
    assert server.field("hook_misses") == 0


def test_read_of_another_module_is_answered_without_waiting(server_binary: Path, tmp_path: Path) -> None:
    """A module's read has no user whose rights apply."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library, source = tmp_path / "other.so", Path(__file__).with_name("calling_module.c")
    native = ROOT / "native"
    subprocess.run([compiler, "-std=c11", "-shared", "-fPIC", f"-I{native}", "-o", library, source], check=True)
    settings = {"enable-module-command": "yes"}
    with Server(server_binary, settings, worker=fake_worker("functions")) as server, server.client() as client:
        server.wait_ready()
        client.execute_command("MODULE", "LOAD", str(library))
        client.set("hook:there", "1")
        assert client.execute_command("OTHER.CALL", "GET", "hook:there") == "1"
        assert client.execute_command("OTHER.CALL", "GET", "hook:x") is None
        with pytest.raises(redis.ResponseError):
            client.execute_command("OTHER.CALL", "RG.PYEXECUTE", "x")
        assert client.ping()


def test_a_command_wrapped_in_itself(server: Server) -> None:
    """The command must not report its keys recursively: 20,000 words would overflow the stack of the server."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "asks", "on", ">pw", "~hook:*", "-@all", "+rg.innerhook")
    with server.client(username="asks", password="pw") as client:
        with pytest.raises(redis.ResponseError, match="runs only commands that a function hooks"):
            client.execute_command(*["RG.INNERHOOK"] * 20000, "GET", "hook:x")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("RG.INNERHOOK", "GET", "secret")


def test_innerhook_runs_only_hooked_commands(server: Server) -> None:
    with server.client() as client:
        client.set("hook:x", "1")
        with pytest.raises(redis.ResponseError, match="runs only commands that a function hooks"):
            client.execute_command("RG.INNERHOOK", "DEL", "hook:x")
        assert client.get("hook:x") == "1"
        with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
            client.execute_command("RG.INNERHOOK", "GET")
        with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
            client.execute_command("GET", "hook:x", "hook:y")


def test_rights_are_those_of_the_caller(server: Server) -> None:
    with server.client() as client:
        rules = ["on", ">pw", "resetkeys", "%R~hook:*", "-@all", "+@read"]
        if server.binary.name == "redis-server":
            rules.append("+rg.innerhook")  # on this server the commands of modules are in no category
        client.execute_command("ACL", "SETUSER", "reader", *rules)
        client.execute_command("ACL", "SETUSER", "noget", "on", ">pw", "~*", "-@all", "+ping", "+rg.innerhook", "+mget")
        client.execute_command("ACL", "SETUSER", "elsewhere", "on", ">pw", "~other*", "+@all")
    with server.client(username="reader", password="pw") as client:
        assert client.get("hook:x") == "answer of hook:x"
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("hidden")
    with (
        server.client(username="noget", password="pw") as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.get("hook:x")
    with (
        server.client(username="elsewhere", password="pw") as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.get("hook:x")


def test_stock_cluster_client_follows_redirections(server_binary: Path) -> None:
    with Cluster(server_binary, worker=fake_worker("functions")) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        with cluster.client() as client:
            for number in range(12):
                key = f"hook:x:{number}"
                assert client.get(key) == f"answer of {key}"
        with cluster.nodes[0].client() as client:
            replies = []
            for number in range(12):
                try:
                    replies.append(client.get(f"hook:x:{number}"))
                except redis.exceptions.MovedError:
                    replies.append("moved")
            assert "moved" in replies
            assert any(str(reply).startswith("answer") for reply in replies)
            with pytest.raises(redis.ResponseError, match=r"(?i)same slot|CROSSSLOT"):
                client.mget("hook:a", "hook:b")


def test_ping_is_answered_while_clients_wait_and_the_worker_dies(server: Server) -> None:
    waiting = [Pending(server, "GET", f"hook:held:{number}") for number in range(20)]
    eventually(lambda: server.field("in_flight") == 20)
    server.signal_worker(signal.SIGKILL)
    with server.client() as client:
        eventually(lambda: client.ping() and server.field("worker_number") == 2)
        eventually(lambda: client.ping() and server.field("in_flight") == 20)
    assert not select.select([pending.socket for pending in waiting], [], [], 0)[0]
    server.let_go()
    for number, pending in enumerate(waiting):
        answer = f"answer of hook:held:{number}"
        assert pending.reply() == f"${len(answer)}\r\n{answer}\r\n".encode()
        pending.hang_up()
