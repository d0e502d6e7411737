"""The keymiss hook: a client that reads a missing key waits for the answer of a function."""

from __future__ import annotations

import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Pending, Server, execute
from tests.harness.workers import fake_worker
from tests.module.registrations import dump, run


@contextmanager
def counted(server: Server) -> Iterator[dict[str, int]]:
    """How much the counters of the hook grow within the block."""
    names = ("hook_hits", "hook_misses", "hook_inferences")
    before, grown = server.fields(*names), dict[str, int]()
    yield grown
    for name, old, new in zip(names, before, server.fields(*names), strict=True):
        grown[name.removeprefix("hook_")] = new - old


def test_a_miss_is_answered_by_the_function_and_a_hit_is_a_plain_read(shared: Server) -> None:
    overridden = shared.field("jobs_event")["overridden"]
    with shared.client() as client, counted(shared) as grown:
        assert client.get("hook:x: a 'quoted' ü {tag}") == "answer of hook:x: a 'quoted' ü {tag}"
        client.set("hook:x", "stored")
        assert client.get("hook:x") == "stored"
        assert client.get("other") is None
        client.delete("hook:x")
    assert grown == {"hits": 1, "misses": 1, "inferences": 1}
    assert shared.field("jobs_event")["overridden"] == overridden + 1


def test_captured_reply_when_the_function_gives_none(shared: Server) -> None:
    for protocol in (2, 3):
        execute(shared, "RG.CLEARREGISTRATIONSSTATS")
        with shared.client(protocol=protocol) as client:
            for word in ("none", "skip", "error"):
                assert client.get(f"hook:{word}:x") is None
            client.set("hook:there", "1")
            assert client.mget("hook:there", "hook:none:y") == ["1", None]
        fields = dump(shared)["id-hook"]["RegistrationData"]
        assert (fields["numTriggered"], fields["numSuccess"], fields["numFailures"]) == (3, 2, 1)
        assert fields["lastError"] == "ERR broken"


def test_transaction_and_script_get_the_captured_reply(shared: Server) -> None:
    with shared.client() as client:
        pipeline = client.pipeline(transaction=True)
        pipeline.get("hook:multi")
        assert pipeline.execute() == [None]
        assert client.eval("return redis.call('GET', 'hook:lua')", 0) is None
        eventually(lambda: client.llen("seen") == 2)
        # the scriptable worker has a thread for each event
        assert set(client.lrange("seen", 0, -1)) == {"id-hook keymiss hook:multi", "id-hook keymiss hook:lua"}


def test_reads_in_another_database_and_reads_of_the_worker_are_not_hooked(shared: Server) -> None:
    script = ["EVAL", "return redis.call('get', KEYS[1])", "1"]
    with shared.client(db=1) as elsewhere, shared.client() as client, counted(shared) as grown:
        assert elsewhere.get("hook:x") is None
        client.set("hook:there", "1")
        assert run(shared, ["GET", "hook:x"], [*script, "hook:x"], [*script, "hook:there"]) == [None, None, "1"]
    assert grown["misses"] == 0
    assert shared.field("in_flight") == 0


def test_deadline_gives_the_captured_reply(server_binary: Path) -> None:
    with Server(server_binary, {"qa.hook-timeout-ms": 150}, worker=fake_worker("functions")) as server:
        server.wait_ready()
        with server.client() as client:
            assert client.get("hook:hang:x") is None  # the function would answer after 3 s
        assert server.field("jobs_event")["deadline"] == 1


def test_a_worker_that_dies_twice_is_reported(shared: Server) -> None:
    with shared.client() as client:
        with pytest.raises(redis.ResponseError, match="WORKERLOST worker died twice on this job"):
            client.get("hook:die:x")
        shared.wait_ready()


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


def test_a_command_wrapped_in_itself(shared: Server) -> None:
    """The command must not report its keys recursively: 20,000 words would overflow the stack of the server."""
    with shared.client() as client:
        client.execute_command("ACL", "SETUSER", "asks", "on", ">pw", "~hook:*", "-@all", "+rg.innerhook")
    with shared.client(username="asks", password="pw") as client:
        with pytest.raises(redis.ResponseError, match="runs only commands that a function hooks"):
            client.execute_command(*["RG.INNERHOOK"] * 20000, "GET", "hook:x")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("RG.INNERHOOK", "GET", "secret")


def test_innerhook_runs_only_hooked_commands(shared: Server) -> None:
    with shared.client() as client:
        client.set("hook:set", "1")
        with pytest.raises(redis.ResponseError, match="runs only commands that a function hooks"):
            client.execute_command("RG.INNERHOOK", "DEL", "hook:set")
        assert client.get("hook:set") == "1"
        with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
            client.execute_command("RG.INNERHOOK", "GET")
        with pytest.raises(redis.ResponseError, match="wrong number of arguments"):
            client.execute_command("GET", "hook:set", "hook:y")


def test_rights_are_those_of_the_caller(shared: Server) -> None:
    with shared.client() as client:
        rules = ["on", ">pw", "resetkeys", "%R~hook:*", "-@all", "+@read"]
        if shared.binary.name == "redis-server":
            rules.append("+rg.innerhook")  # on this server the commands of modules are in no category
        client.execute_command("ACL", "SETUSER", "reader", *rules)
        client.execute_command("ACL", "SETUSER", "noget", "on", ">pw", "~*", "-@all", "+ping", "+rg.innerhook", "+mget")
        client.execute_command("ACL", "SETUSER", "elsewhere", "on", ">pw", "~other*", "+@all")
    with shared.client(username="reader", password="pw") as client:
        assert client.get("hook:x") == "answer of hook:x"
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("hidden")
    for user in ("noget", "elsewhere"):
        with shared.client(username=user, password="pw") as client, pytest.raises(redis.exceptions.NoPermissionError):
            client.get("hook:x")


def test_stock_cluster_client_follows_redirections(server_binary: Path) -> None:
    with Cluster(server_binary, worker=fake_worker("functions"), size=2) as cluster:
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
