"""QA.ATOMIC: the server serves only the worker until the lease ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.harness.polling import eventually
from tests.harness.servers import Pending, Server
from tests.harness.workers import fake_worker


def atomic(server: Server, commands: list[list[str]], **options: Any) -> list[Any]:
    with server.client() as client:
        return list(json.loads(client.execute_command("RG.PYEXECUTE", json.dumps({"atomic": commands, **options}))))


def test_commands_run_and_read_their_own_writes(shared: Server) -> None:
    replies = atomic(shared, [["SET", "a", "1"], ["INCR", "a"], ["GET", "a"], ["NOSUCH"], ["LRANGE", "l", "0", "-1"]])
    assert replies[:4] == ["GO", "OK", 2, "2"]
    assert str(replies[4]).startswith("-")
    assert replies[5:] == [[], "OK"]
    administration = [["CONFIG", "SET", "save", ""], ["SUBSCRIBE", "x"], ["MULTI"], ["QA.DONE", "1", "OK"]]
    _, *refused, end = atomic(shared, administration)
    assert all(str(reply).startswith("-") for reply in refused)
    assert end == "OK"


def test_other_clients_wait_until_the_lease_ends(server: Server) -> None:
    expected = ["GO", "OK", "-ERR atomic block exceeded its lease of 2500 ms", "-ATOMICEND atomic block is over"]
    # on a busy machine the worker may lose its lease before the command
    eventually(lambda: atomic(server, [["SET", "a", "1"]], lease=2500, pause=3500) == expected)
    with server.client() as client:
        assert client.get("a") == "1"
    assert atomic(server, [["GET", "a"]]) == ["GO", "1", "OK"]


def test_lease_is_bounded_by_the_setting(server_binary: Path) -> None:
    with Server(server_binary, {"qa.atomic-lease-ms": 100}, worker=fake_worker("functions")) as server:
        server.wait_ready()
        replies = atomic(server, [], lease=60000, pause=400)
        assert replies[1] == "-ERR atomic block exceeded its lease of 100 ms"


def test_worker_death_ends_the_block_at_once(server: Server) -> None:
    """During the block no client gets an answer. The lease is twice the timeout of this test's clients."""
    orders = json.dumps({"atomic": [["SET", "a", "1"]], "lease": 60000, "die": 1})
    with server.client() as client:
        client.config_set("qa.atomic-lease-ms", 60000)
        with Pending(server, "RG.PYEXECUTE", orders):
            eventually(lambda: server.field("worker_restarts") >= 1)
            assert client.get("a") == "1"
    server.wait_ready()


def test_block_reaches_the_append_only_file_as_one_transaction(server_binary: Path) -> None:
    settings = {"appendonly": "yes", "appendfsync": "always", "qa.atomic-lease-ms": 60_000}
    with Server(server_binary, settings, worker=fake_worker("functions", "--bare")) as server:
        server.wait_ready()
        atomic(server, [["SET", "a", "1"], ["SET", "b", "2"]])
        text = b"".join(path.read_bytes() for path in server.directory.glob("appendonlydir/*incr*"))
        inside = text[text.index(b"MULTI") : text.index(b"EXEC")]
        assert inside.count(b"SET") == 2
        server.restart()
        with server.client() as client:
            assert client.mget("a", "b") == ["1", "2"]
