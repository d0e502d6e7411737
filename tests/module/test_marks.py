"""QA.MARK: a text stands until a key with its prefix changes, whatever happens to the server meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.module.persistence import restore_corrupted, rewrite_and_load_aof
from tests.module.test_index_commands import refusal

MARK, OTHER = "checked:{t}", "other:{t}"


def set_mark(client: redis.Redis, text: str = "all", *condition: str, key: str = MARK) -> int:
    return int(client.execute_command("QA.MARK.SET", key, text, *condition, "PREFIX", 2, "text:", "loose:"))


def get_mark(client: redis.Redis, key: str = MARK) -> str | None:
    found = client.execute_command("QA.MARK.GET", key)
    return found.decode() if isinstance(found, bytes) else found


def test_a_mark_stands_while_others_change(shared_ai: redis.Redis) -> None:
    shared_ai.set("text:a", "before")
    assert get_mark(shared_ai) is None
    assert set_mark(shared_ai) == 1
    shared_ai.set("tex", "x")
    shared_ai.set("another text:", "x")
    shared_ai.get("text:a")
    shared_ai.get("text:none")
    shared_ai.delete("text:none", "tex")
    assert get_mark(shared_ai) == "all"
    assert shared_ai.type(MARK) in (b"qa-mark__", "qa-mark__")


CHANGES = [
    *("SET text:a new", "SET text:b new", "APPEND text:a x", "SETRANGE text:a 0 x", "DEL text:a", "UNLINK text:a"),
    *("RENAME text:a away", "RENAME from text:b", "COPY from text:b", "GETDEL text:a", "EXPIRE text:a -1"),
    *("HSET loose:a 0 x", "LPUSH text:list x", "SUNIONSTORE text:set none one", "MOVE text:a 3"),
    *("EVAL return(redis.call('SET','text:a','x')) 0", "BITOP NOT text:a text:a", "SORT list STORE text:a"),
]


@pytest.mark.parametrize("command", CHANGES)
def test_every_change_of_its_keys_ends_it(shared_ai: redis.Redis, command: str) -> None:
    shared_ai.mset({"text:a": "before", "from": "x"})
    shared_ai.sadd("one", "x")
    shared_ai.rpush("list", "1")
    assert set_mark(shared_ai)
    assert set_mark(shared_ai, key=OTHER)
    shared_ai.execute_command(*command.split())
    assert (get_mark(shared_ai), get_mark(shared_ai, OTHER)) == (None, None)
    assert set_mark(shared_ai)
    assert get_mark(shared_ai) == "all"


def test_expiry_and_restoring_end_it(shared_ai: redis.Redis) -> None:
    shared_ai.set("text:a", "before", px=20)
    assert set_mark(shared_ai)
    eventually(lambda: get_mark(shared_ai) is None)
    shared_ai.set("from", "x")
    payload = shared_ai.dump("from")
    assert set_mark(shared_ai)
    shared_ai.restore("text:c", 0, payload)  # type: ignore[arg-type]
    assert get_mark(shared_ai) is None
    assert set_mark(shared_ai)
    shared_ai.flushall()
    assert get_mark(shared_ai) is None


def test_a_change_between_two_steps_is_seen(shared_ai: redis.Redis) -> None:
    assert set_mark(shared_ai, "all", "IF", "checking") == 0
    assert get_mark(shared_ai) is None
    assert set_mark(shared_ai, "checking")
    assert set_mark(shared_ai, "all", "IF", "another") == 0
    assert set_mark(shared_ai, "all", "IF", "checking") == 1
    assert set_mark(shared_ai, "checking")
    shared_ai.set("text:a", "x")
    assert set_mark(shared_ai, "all", "IF", "checking") == 0
    assert get_mark(shared_ai) is None


def test_a_transaction_is_one_moment(shared_ai: redis.Redis) -> None:
    with shared_ai.pipeline(transaction=True) as pipe:
        pipe.set("text:a", "x")
        pipe.execute_command("QA.MARK.SET", MARK, "all", "PREFIX", 1, "text:")
        pipe.execute()
    assert get_mark(shared_ai) == "all"


def test_a_mark_that_is_restored_or_moved_does_not_stand(shared_ai: redis.Redis) -> None:
    assert set_mark(shared_ai)
    payload = shared_ai.dump(MARK)
    shared_ai.restore(OTHER, 0, payload)  # type: ignore[arg-type]
    assert (get_mark(shared_ai), get_mark(shared_ai, OTHER)) == ("all", None)
    shared_ai.rename(MARK, "renamed")
    assert (get_mark(shared_ai), get_mark(shared_ai, "renamed")) == (None, "all")
    shared_ai.set("text:a", "x")
    assert get_mark(shared_ai, "renamed") is None


@pytest.mark.parametrize("stands", [True, False])
def test_it_is_saved_and_loaded_as_it_stood(server_binary: Path, stands: bool) -> None:
    settings = {"appendonly": "yes"}
    with Server(server_binary, settings) as server, server.client(decode_responses=False, protocol=2) as client:
        client.set("text:a", "x")
        assert set_mark(client)
        if not stands:
            client.set("text:a", "y")
        for reload in (lambda: client.execute_command("DEBUG", "RELOAD"), lambda: rewrite_and_load_aof(client)):
            reload()
            assert get_mark(client) == ("all" if stands else None)
        client.set("text:b", "x")
        assert get_mark(client) is None


def test_an_append_only_file_has_changes_after_the_mark(server_binary: Path, tmp_path: Path) -> None:
    """The server is killed, so that nothing but the file tells of the last change."""
    settings = {"appendonly": "yes", "appendfsync": "always"}
    server = Server(server_binary, settings)
    with server, server.client(decode_responses=False, protocol=2) as client:
        client.set("text:a", "x")
        assert set_mark(client)
        client.set("unrelated", "x")
        client.execute_command("DEBUG", "LOADAOF")
        assert get_mark(client) == "all"
        client.set("text:a", "y")
        client.execute_command("DEBUG", "LOADAOF")
        assert get_mark(client) is None
        assert set_mark(client)
        client.bgrewriteaof()
        eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
        client.delete("text:a")
        client.execute_command("DEBUG", "LOADAOF")
        assert get_mark(client) is None


def test_a_replica_has_it_as_its_primary(server_binary: Path) -> None:
    with Server(server_binary) as primary, primary.client(decode_responses=False, protocol=2) as client:
        client.set("text:a", "x")
        assert set_mark(client)
        settings = {"replicaof": f"127.0.0.1 {primary.port}"}
        with Server(server_binary, settings) as server, server.client(decode_responses=False, protocol=2) as replica:
            eventually(lambda: get_mark(replica) == "all", ignore=redis.RedisError)
            client.set("text:a", "y")
            eventually(lambda: replica.get("text:a") == b"y")
            assert get_mark(replica) is None
            assert set_mark(client, "checking")
            assert set_mark(client, "more", "IF", "checking")
            eventually(lambda: get_mark(replica) == "more")
            replica.replicaof("NO", "ONE")
            assert get_mark(replica) == "more"
            replica.delete("text:a")
            assert (get_mark(replica), get_mark(client)) == (None, "more")


def test_damaged_payloads_are_refused(shared_ai: redis.Redis) -> None:
    assert set_mark(shared_ai)
    assert restore_corrupted(shared_ai, MARK, 300, lambda key: get_mark(shared_ai, key)) > 50


REFUSED: list[tuple[list[Any], str]] = [
    (["", "PREFIX", 1, "a"], "1 to 1024 bytes"),
    (["x" * 1025, "PREFIX", 1, "a"], "1 to 1024 bytes"),
    (["all", "PREFIXES", 1, "a"], "PREFIX is missing"),
    (["all", "IF", "PREFIX", 1, "a"], "PREFIX is missing"),
    (["all", "PREFIX", 0, "a"], "between 1 and 16"),
    (["all", "PREFIX", 17, *"abcdefghijklmnopq"], "between 1 and 16"),
    (["all", "PREFIX", 2, "a"], "does not match"),
    (["all", "PREFIX", 1, "a", "b"], "does not match"),
    (["all", "PREFIX", 1, ""], "1 to 256 bytes"),
    (["all", "PREFIX", 1, "a" * 257], "1 to 256 bytes"),
    (["all", "PREFIX", 2, "a", "check"], "must not begin with one of its prefixes"),
]


@pytest.mark.parametrize(("words", "error"), REFUSED)
def test_what_is_refused(shared_ai: redis.Redis, words: list[Any], error: str) -> None:
    assert set_mark(shared_ai)
    assert error in refusal(shared_ai, "QA.MARK.SET", MARK, *words)
    assert get_mark(shared_ai) == "all"


def test_other_types_and_too_many(shared_ai: redis.Redis) -> None:
    shared_ai.set("plain", "x")
    assert "WRONGTYPE" in refusal(shared_ai, "QA.MARK.GET", "plain")
    assert "WRONGTYPE" in refusal(shared_ai, "QA.MARK.SET", "plain", "all", "PREFIX", 1, "a")
    for number in range(1024):
        assert set_mark(shared_ai, key=f"m{number}")
    assert "1024 marks" in refusal(shared_ai, "QA.MARK.SET", "m1024", "all", "PREFIX", 1, "a")
    assert set_mark(shared_ai, "again", key="m7")
    shared_ai.flushall()
    assert set_mark(shared_ai)
