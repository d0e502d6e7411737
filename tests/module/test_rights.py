"""QA.AS: the command of a function runs with the rights of the user that called the function."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server
from tests.harness.workers import fake_worker
from tests.module.registrations import register, run, trigger

pytestmark = pytest.mark.hostile


def add_user(server: Server, name: str, *rules: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", name, "reset", "on", ">pw", *rules)


def test_command_runs_with_the_rights_of_the_user(shared: Server) -> None:
    add_user(shared, "tenant", "~t:*", "+@all", "-@dangerous")
    replies = run(
        shared,
        ["QA.AS", "tenant", "SET", "t:a", "1"],
        ["QA.AS", "tenant", "GET", "t:a"],
        ["QA.AS", "tenant", "INCR", "t:a"],
        ["QA.AS", "tenant", "LRANGE", "t:list", 0, -1],
        ["QA.AS", "tenant", "GET", "t:none"],
        ["QA.AS", "tenant", "HGETALL", "t:a"],
        ["QA.AS", "tenant", "AI.TENSORSET", "t:tensor", "FLOAT", 1, "VALUES", 2],
        ["QA.AS", "tenant", "AI.TENSORGET", "t:tensor", "VALUES"],
    )
    assert replies[:5] == ["OK", "1", 2, [], None]
    assert replies[5].startswith("-WRONGTYPE")
    assert replies[6:] == ["OK", ["2"]]
    refused = run(
        shared,
        ["QA.AS", "tenant", "GET", "secret"],
        ["QA.AS", "tenant", "MGET", "t:a", "secret"],
        ["QA.AS", "tenant", "AI.TENSORGET", "secret", "VALUES"],
        ["QA.AS", "tenant", "CONFIG", "GET", "port"],
        ["QA.AS", "tenant", "FLUSHALL"],
        ["QA.AS", "tenant", "RG.INNERHOOK", "GET", "t:a"],
        ["QA.AS", "tenant", "QA.SESSIONS"],
        ["QA.AS", "nobody", "GET", "t:a"],
    )
    assert all(reply.startswith("-NOPERM") for reply in refused if "script mode" not in reply)
    assert sum("script mode" in reply for reply in refused) <= 1  # Redis 7.0 has no categories of modules
    assert refused[-1] == "-NOPERM no such user: nobody"
    with shared.client() as client:
        assert client.get("t:a") == "2"


def test_commands_forbidden_in_scripts_are_refused(shared: Server) -> None:
    commands = [
        ["SUBSCRIBE", "c"],
        ["MULTI"],
        ["EVAL", "return 1", "0"],
        ["AUTH", "a"],
        ["RG.PYEXECUTE", "x"],
        ["RG.TRIGGER", "echo"],
    ]
    replies = run(shared, *[["QA.AS", "default", *words] for words in commands])
    assert all(str(reply).startswith("-") for reply in replies)
    reply = run(shared, ["QA.AS", "default", "BLPOP", "nolist", "0"])[0]  # a client's BLPOP would block forever
    assert reply is None or "not allowed on script mode" in reply


def test_malformed_commands_are_errors(shared: Server) -> None:
    """The server would crash if the module asked for the keys of a built-in command with too few arguments."""
    commands = [
        ["GET"],
        ["SET", "a"],
        ["NOSUCH", "a"],
        ["GET\0", "a"],
        ["RG.INNERHOOK\0", "GET", "hook:a"],
        ["CONFIG", "NOSUCH"],
        ["XREAD", "STREAMS"],
        ["AI.MODELEXECUTE", "a"],
    ]
    replies = run(shared, *[["QA.AS", "default", *words] for words in commands], ["QA.AS", "default"], ["QA.AS"])
    assert [reply[:4] for reply in replies] == ["-ERR"] * len(replies)


def test_users_that_change_meanwhile(shared: Server) -> None:
    add_user(shared, "changing", "~*", "+@all")
    command: list[object] = ["QA.AS", "changing", "GET", "x"]
    with shared.client() as client:
        assert run(shared, command) == [None]
        client.execute_command("ACL", "SETUSER", "changing", "off")
        assert run(shared, command) == ["-NOPERM user is disabled: changing"]
        client.execute_command("ACL", "SETUSER", "changing", "on", "-get")
        assert run(shared, command)[0].startswith("-NOPERM")
        client.execute_command("ACL", "DELUSER", "changing")
        assert run(shared, command) == ["-NOPERM no such user: changing"]


def test_writes_are_replicated_once(server_binary: Path) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with (
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as server,
        server.client() as client,
    ):
        server.wait_ready()
        assert run(server, ["QA.AS", "default", "INCR", "n"], ["QA.AS", "default", "INCR", "n"]) == [1, 2]
        client.execute_command("DEBUG", "LOADAOF")
        assert client.get("n") == "2"
        orders = json.dumps({"run": [["BLPOP", "nolist", "600"], ["QA.AS", "default", "SET", "m", "x"]]})
        with Pending(server, "RG.PYEXECUTE", orders) as waiting:
            (blocked,) = eventually(lambda: [one["id"] for one in client.client_list() if one["cmd"] == "blpop"])
            client.config_set("maxmemory", 1)
            client.client_unblock(blocked)
            assert b"-OOM" in waiting.reply()


def test_an_atomic_block_runs_commands_with_user_rights_too(server_binary: Path) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always", "qa.atomic-lease-ms": 60_000}
    with (
        Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as server,
        server.client() as client,
    ):
        server.wait_ready()
        add_user(server, "tenant", "~t:*", "+@all", "-@dangerous")
        commands = [["QA.AS", "tenant", "SET", "t:a", "1"], ["SET", "b", "1"], ["QA.AS", "tenant", "GET", "b"]]
        commands += [["QA.AS", "tenant"], ["QA.AS", "nobody", "GET", "t:a"], ["QA.AS", "tenant", "QA.SESSIONS"]]
        replies = json.loads(client.execute_command("RG.PYEXECUTE", json.dumps({"atomic": commands})))
        assert replies[:3] == ["GO", "OK", "OK"]
        assert [str(reply)[:7] for reply in replies[3:6]] == ["-NOPERM", "-ERR wr", "-NOPERM"]
        assert str(replies[6]).startswith("-")
        assert replies[7] == "OK"
        client.execute_command("DEBUG", "LOADAOF")
        assert client.mget("t:a", "b") == ["1", "1"]
        text = b"".join(path.read_bytes() for path in server.directory.glob("appendonlydir/*incr*"))
        assert text.count(b"MULTI") == 1


def test_writes_wait_for_the_end_of_a_pause(server: Server) -> None:
    with server.client() as client:
        started = time.monotonic()
        client.execute_command("CLIENT", "PAUSE", 600, "WRITE")
        assert run(server, ["QA.AS", "default", "SET", "a", "1"]) == ["OK"]
        assert time.monotonic() - started > 0.5


@pytest.mark.parametrize("words", [["RG.TRIGGER", "who"], ["RG.TRIGGERONKEY", "who", "t:key"]])
def test_a_trigger_job_names_its_caller(shared: Server, words: list[str]) -> None:
    add_user(shared, "caller", "~t:*", "+@all", "-@dangerous", "+rg.trigger", "+rg.triggeronkey")
    assert register(shared, "who", trigger("who", "who")) == "OK"
    with shared.client(username="caller", password="pw") as client:
        assert client.execute_command(*words, "user")[0] == "caller"
    with shared.client() as client:
        assert client.execute_command(*words, "user")[0] == "default"


def test_trigger_on_key_obeys_key_patterns(shared: Server) -> None:
    add_user(shared, "patterns", "~t:*", "%R~r:*", "+@all")
    with shared.client(username="patterns", password="pw") as client:
        assert client.execute_command("RG.TRIGGERONKEY", "echo", "t:key") == ["t:key"]
        for key in ("secret", "r:key"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command("RG.TRIGGERONKEY", "echo", key)
