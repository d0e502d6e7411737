"""The module writes change notes of texts in the transaction of the change, by the rule of `qa_cluster.keys`."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.documents import stored
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

TAG = "06S"
KEY = keys.paragraphs_key("d", TAG)
HASH = keys.pending_key(TAG)
DURABLE: dict[str, object] = {"appendonly": "yes", "appendfsync": "always"}


@contextmanager
def started(binary: Path, **more: object) -> Iterator[Server]:
    """A server with an idle worker. Its files contain every acknowledged change."""
    with Server(binary, DURABLE | more, worker=fake_worker("functions", "--bare")) as server:
        if server.field("text_notes") == "off":
            pytest.skip("Redis 7.0 cannot write in the transaction of a change")
        yield server


@pytest.fixture(scope="module")
def noting(shared_binary: Path) -> Iterator[Server]:
    with started(shared_binary) as server:
        yield server


@pytest.fixture
def client(noting: Server) -> Iterator[redis.Redis]:
    with noting.client() as connection:
        connection.flushall()
        yield connection


def notes(client: redis.Redis, tag: str = TAG) -> dict[str, int]:
    return {name: int(count) for name, count in client.hgetall(keys.pending_key(tag)).items()}


def put(client: Any, name: str, text: str) -> None:
    client.execute_command(*stored.put_document(stored.check_document(name, text), TAG).command())


def delete(client: Any, name: str) -> None:
    client.execute_command(*stored.delete_document(name, TAG).command())


def test_info_says_whether_a_server_can_write_change_notes(server_binary: Path) -> None:
    with Server(server_binary, worker=fake_worker("functions", "--bare")) as server, server.client() as client:
        version = server.info("server")
        can = "valkey_version" in version or not version["redis_version"].startswith("7.0.")
        assert server.field("text_notes") == ("on" if can else "off")
        client.set(KEY, "Text.")
        assert client.exists(HASH) == can


CHANGES: dict[str, Callable[[Any], object]] = {
    "set": lambda client: client.set(KEY, "New."),
    "append": lambda client: client.append(KEY, "More."),
    "setrange": lambda client: client.setrange(KEY, 2, "x"),
    "del": lambda client: client.delete(KEY),
    "unlink": lambda client: client.unlink(KEY),
    "getdel": lambda client: client.getdel(KEY),
    "mset": lambda client: client.mset({KEY: "New.", f"other{{{TAG}}}": ""}),
    "rename away": lambda client: client.rename(KEY, f"other{{{TAG}}}"),
    "rename over": lambda client: client.rename(f"source{{{TAG}}}", KEY),
    "copy over": lambda client: client.copy(f"source{{{TAG}}}", KEY, replace=True),
    "restore over": lambda client: client.execute_command("EVAL", RESTORE, 2, f"source{{{TAG}}}", KEY),
    "script": lambda client: client.eval("return redis.call('SET', KEYS[1], 'New.')", 1, KEY),
    "transaction": lambda client: client.pipeline().set(KEY, "New.").set(KEY, "Newer.").execute(),
    "another type": lambda client: client.pipeline().delete(KEY).rpush(KEY, "x").execute(),
}
RESTORE = "return redis.call('RESTORE', KEYS[2], 0, redis.call('DUMP', KEYS[1]), 'REPLACE')"


@pytest.mark.parametrize("how", CHANGES)
def test_every_change_of_a_text_is_noted(client: redis.Redis, how: str) -> None:
    put(client, "d", "Text.")
    client.set(f"source{{{TAG}}}", "Source.")
    client.delete(HASH)
    CHANGES[how](client)
    found = notes(client)
    assert found["d"] >= 1
    assert sum(count for name, count in found.items() if name) == found[""]


def test_an_expired_text_is_noted(client: redis.Redis) -> None:
    put(client, "d", "Text.")
    client.delete(HASH)
    client.pexpire(KEY, 30)
    eventually(lambda: notes(client).get("d", 0) >= 2)  # EXPIRE is a change too


def test_a_worker_removes_a_note_only_if_it_knows_the_latest_change(client: redis.Redis) -> None:
    client.set(KEY, "One.")
    assert notes(client) == {"d": 1, "": 1}
    client.set(KEY, "Two.")
    assert notes(client) == {"d": 2, "": 2}
    execute: Any = client.execute_command
    execute(*stored.settle_note("d", TAG, "", "1").command())
    assert notes(client) == {"d": 2, "": 2}
    execute(*stored.settle_note("d", TAG, "0123456789abcdef", "2").command())
    assert notes(client) == {"d": 2, "": 2}
    execute(*stored.settle_note("d", TAG, "", "2").command())
    assert not client.exists(HASH)


def test_changes_that_the_own_scripts_note_are_not_noted_again(client: redis.Redis) -> None:
    put(client, "d", "Text.")
    assert notes(client) == {"d": 5, "": 5}
    put(client, "d", "Another.")
    assert notes(client) == {"d": 8, "": 8}
    delete(client, "d")
    assert not client.exists(HASH)


def test_a_text_that_was_never_a_document_is_removed_without_a_note(client: redis.Redis) -> None:
    client.set(KEY, "Text.")
    client.delete(HASH)
    client.delete(KEY)
    assert not client.exists(HASH)


def test_other_keys_are_not_noted(noting: Server, client: redis.Redis) -> None:
    for name in ("paragraphs", "paragraphs:", "paragraphs::{t}", "paragraph:d:{t}", "xparagraphs:d:{t}"):
        client.set(name, "x")
    for name in ("paragraphs:d", "paragraphs:d{t}", "paragraphs:50%:{t}", "paragraphs:default%/d:{t}"):
        client.set(name, "x")
    with noting.client(db=1) as elsewhere:
        elsewhere.set(KEY, "x")
    assert client.keys("pending:*") == []


Notes = dict[str, dict[bytes, int]]


def note(expected: Notes, tag: str, name: bytes) -> None:
    """Count a change of this document in the notes of its partition."""
    counts = expected.setdefault(tag, {b"": 0})
    counts[name] = counts.get(name, 0) + 1
    counts[b""] += 1


def set_all(server: Server, names: list[bytes]) -> Notes:
    """Sets all keys; returns the notes of all partitions."""
    with server.client(decode_responses=False) as client:
        pipeline = client.pipeline(transaction=False)
        for name in names:
            pipeline.set(name, "x")
        pipeline.execute()
        found = {name: client.hgetall(name) for name in client.keys("pending:*")}
    prefix = keys.pending_key("").partition("{")[0] + "{"
    return {
        name.decode().removeprefix(prefix).removesuffix("}"): {each: int(count) for each, count in counts.items()}
        for name, counts in found.items()
    }


def test_module_and_keys_have_the_same_rule(noting: Server, client: redis.Redis) -> None:
    """For random keys of relevant pieces, the module notes exactly the keys that belong to a document by the rule."""
    chance = random.Random(11)
    pieces = ["{", "}", "{}", ":", ":{", "a", "06S", "%", "%25", "%7B", "%7b", "ü", " ", "b%/", "default%/", "\0"]
    ends = [":{06S}", ":{06S}", ":{06S}", ":{ü}", ""]
    texts = [
        "paragraphs:" + "".join(chance.choices(pieces, k=chance.randint(0, 4))) + chance.choice(ends)
        for _ in range(4000)
    ]
    expected: Notes = {}
    for text in texts:
        named = keys.parse_tagged(text, keys.PARAGRAPHS_PREFIX)
        if named and named[0]:
            note(expected, named[1], str(named[0]).encode())
    assert set_all(noting, [text.encode() for text in texts]) == expected
    assert 600 < sum(counts[b""] for counts in expected.values()) < 3400


@pytest.mark.parametrize("length", [64, 65])
def test_the_length_of_a_collection_name_is_limited(client: redis.Redis, length: int) -> None:
    key = f"paragraphs:{length * 'c'}%/d:{{{TAG}}}"
    client.set(key, "x")
    assert client.exists(HASH) == (keys.parse_tagged(key, keys.PARAGRAPHS_PREFIX) is not None) == (length == 64)


def test_keys_that_are_not_utf8_are_not_noted(noting: Server, client: redis.Redis) -> None:
    """No worker could remove such a note. The keys are random bytes near the limits of the rule."""
    chance = random.Random(12)
    edges = bytes.fromhex("00417f80818f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5ff")
    points = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF]
    names = [bytes(chance.choices(edges, k=chance.randint(1, 4))) for _ in range(12_000)]
    names += [chr(point).encode() for point in points]
    expected: Notes = {}
    for name in names:
        with suppress(UnicodeDecodeError):
            if name.decode():
                note(expected, TAG, name)
    assert set_all(noting, [b"paragraphs:" + name + b":{06S}" for name in names]) == expected
    assert 500 < expected[TAG][b""] < 11_000


def test_a_text_that_expires_while_the_cluster_is_down_is_noted(server_binary: Path) -> None:
    with started(server_binary, **{"cluster-enabled": "yes"}) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, keys.SLOTS - 1)
        eventually(lambda: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")))
        put(client, "d", "Text.")
        client.pexpire(KEY, 3000)
        client.delete(HASH)
        other = keys.slot(KEY) ^ 1
        client.execute_command("CLUSTER", "DELSLOTS", other)
        eventually(lambda: server.info("keyspace")["db0"]["expires"] == 0)
        assert "cluster_state:fail" in str(client.execute_command("CLUSTER", "INFO"))
        client.execute_command("CLUSTER", "ADDSLOTS", other)
        eventually(lambda: client.exists(HASH) == 1, 20, ignore=redis.RedisError)
        assert notes(client) == {"d": 1, "": 1}
        assert client.exists(KEY) == 0


def test_a_note_survives_the_kill_of_the_server(noting: Server, client: redis.Redis) -> None:
    client.set(KEY, "Text.")
    client.set(KEY, "Another.")
    noting.stop(signal.SIGKILL)
    noting.start()
    with noting.client() as again:
        assert again.get(KEY) == "Another."
        assert notes(again) == {"d": 2, "": 2}


def test_a_note_reaches_the_replica_with_its_change(noting: Server, client: redis.Redis) -> None:
    own = {"replicaof": f"127.0.0.1 {noting.port}"}
    with Server(noting.binary, own, worker=fake_worker("functions")) as replica, replica.client() as reader:
        eventually(lambda: reader.info("replication")["master_link_status"] == "up")
        for count, text in ((1, "Text."), (2, "Another.")):
            client.set(KEY, text)
            eventually(lambda text=text: reader.get(KEY) == text)
            assert notes(reader) == {"d": count, "": count}


@pytest.mark.hostile
def test_a_damaged_key_of_notes_is_replaced(noting: Server, client: redis.Redis) -> None:
    layout, removed = keys.layout_key(TAG), f"removed the key {HASH}: its value had a wrong type"
    for number, write in enumerate(("SET", "RPUSH", "SADD"), start=1):
        client.delete(HASH)
        client.hset(layout, mapping={"layout": "2 shard", "splitter": "1"})
        client.execute_command(write, HASH, "x")
        client.set(KEY, "Text.")
        assert notes(client) == {"d": 1, "": 1}
        assert client.hgetall(layout) == {"splitter": "1"}, "the next sweep scans the partition"
        assert noting.output().count(removed) == number
    noting.stop(signal.SIGKILL)
    noting.start()
    with noting.client() as again:
        assert notes(again) == {"d": 1, "": 1}
