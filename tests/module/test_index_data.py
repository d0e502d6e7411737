"""Indexes on disk, on replicas, in damaged payloads and in memory, and the cleaning of indexes."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.index.oracle import Sentence
from tests.module.indexes import TERMS, Twins, info, some_sentences
from tests.module.persistence import restore_corrupted, rewrite_and_load_aof

PART_BYTES = 65536


@pytest.fixture
def small(shared_ai: redis.Redis) -> Twins:
    """A few documents, some of which are replaced or removed."""
    twins = Twins(shared_ai)
    twins.fill(5, 12, 3)
    return twins


def load_commands(server: Server) -> list[bytes]:
    """The commands with parts of indexes in the base file of the append-only file."""
    text = next(server.directory.glob("appendonlydir/*.base.aof")).read_bytes()
    parts = []
    for found in re.finditer(rb"QA\.INDEX\.LOAD\r\n\$\d+\r\n[^\r]*\r\n\$\d+\r\n\d+\r\n\$(\d+)\r\n", text):
        parts.append(text[found.end() : found.end() + int(found[1])])
    return parts


def test_rdb_and_aof(ai: redis.Redis, ai_server: Server) -> None:
    twins = Twins(ai)
    twins.fill(1, 250, 60)
    digest, listed = twins.digest(), twins.listed()
    cursor, page = ai.execute_command("QA.INDEX.LIST", twins.key, 0, 20)
    rest = ai.execute_command("QA.INDEX.LIST", twins.key, cursor, 20)

    def check() -> None:
        assert twins.digest() == digest
        assert twins.listed() == listed
        assert ai.execute_command("QA.INDEX.LIST", twins.key, cursor, 20) == rest
        twins.check()

    ai.execute_command("DEBUG", "RELOAD")
    check()
    ai.execute_command("DEBUG", "LOADAOF")  # the file has the original commands
    check()
    twins.put(("after", {}, some_sentences(random.Random(8), 3)))
    digest, listed = twins.digest(), twins.listed()
    ai.execute_command("BGREWRITEAOF")  # the file starts with an RDB file
    eventually(lambda: not ai.info("persistence")["aof_rewrite_in_progress"])
    ai.execute_command("DEBUG", "LOADAOF")
    check()
    rewrite_and_load_aof(ai)
    check()
    parts = load_commands(ai_server)
    assert len(parts) >= 3 and all(PART_BYTES - 10 < len(part) <= PART_BYTES for part in parts[:-2])
    assert parts[-1] == b""
    twins.put((page[0][0].decode(), {}, some_sentences(random.Random(9), 5)))
    digest, listed = twins.digest(), twins.listed()
    rest = ai.execute_command("QA.INDEX.LIST", twins.key, cursor, 20)
    ai_server.restart()
    check()


def test_an_index_that_is_not_complete_is_kept(ai: redis.Redis) -> None:
    ai.execute_command("QA.INDEX.LOAD", "part", 0, b"QAIN")
    ai.execute_command("QA.INDEX.LOAD", "part", 4, b"DEX1")
    assert int(str(ai.memory_usage("part"))) < 1000
    digest = ai.execute_command("DEBUG", "DIGEST-VALUE", "part")
    for reload in (lambda: ai.execute_command("DEBUG", "RELOAD"), lambda: rewrite_and_load_aof(ai)):
        reload()
        assert ai.execute_command("DEBUG", "DIGEST-VALUE", "part") == digest
        with pytest.raises(redis.ResponseError, match="the next part begins at 8"):
            ai.execute_command("QA.INDEX.LOAD", "part", 9, b"x")
    dump = ai.dump("part")
    assert isinstance(dump, bytes)
    ai.restore("again", 0, dump)
    assert ai.execute_command("DEBUG", "DIGEST-VALUE", "again") == digest
    for key in ("part", "again"):
        ai.execute_command("QA.INDEX.LOAD", key, 8, b"n\0e")
        ai.execute_command("QA.INDEX.LOAD", key, 11, b"")
        assert info(ai, key)["documents"] == 0
    ai.execute_command("QA.INDEX.LOAD", "part3", 0, b"x")
    ai.flushall(asynchronous=True)
    assert ai.ping()


def test_dump_copy_and_memory(small: Twins) -> None:
    client = small.client
    dump = client.dump(small.key)
    assert isinstance(dump, bytes)
    client.restore("restored", 0, dump)
    assert small.digest() == client.execute_command("DEBUG", "DIGEST-VALUE", "restored")[0]
    with pytest.raises(redis.ResponseError):
        client.copy(small.key, "copy")
    assert not client.exists("copy")
    Twins(client, "large").fill(2, 200, 40)
    for key in (small.key, "large"):

        def fits(key: str = key) -> bool:  # repeated, because cleaning may change the size between both calls
            held = info(client, key)["bytes"]
            return held < int(str(client.memory_usage(key))) < held + 1000

        eventually(fits)
    assert int(str(client.memory_usage("large"))) > 5 * int(str(client.memory_usage(small.key)))


def use(client: redis.Redis, key: str) -> None:
    """Reads and changes an index that the server has accepted, and removes all of it."""
    if client.execute_command("DEBUG", "OBJECT", key) and not complete(client, key):
        return
    client.execute_command("QA.INDEX.RANK", key, 10, 0, "TERMS", 2, TERMS[0], 0, TERMS[1], 0)
    client.execute_command("QA.INDEX.PUT", key, "document1", b"", b"\1\1\1\1a")
    _, page = client.execute_command("QA.INDEX.LIST", key, 0, 1000)
    client.execute_command("QA.INDEX.DEL", key, *[name for name, _, _ in page])
    client.execute_command("DEBUG", "DIGEST-VALUE", key)


def complete(client: redis.Redis, key: str) -> bool:
    try:
        client.execute_command("QA.INDEX.INFO", key)
    except redis.ResponseError as error:
        assert "not complete" in str(error)
        return False
    return True


@pytest.mark.hostile
def test_damaged_dumps(small: Twins) -> None:
    """The server refuses every truncation. It refuses other damage, or the index is usable."""
    client = small.client
    dump = client.dump(small.key)
    assert isinstance(dump, bytes) and 200 < len(dump) < 4000
    assert restore_corrupted(client, small.key, 1500, lambda key: use(client, key)) > len(dump) - 20
    client.execute_command("QA.INDEX.LOAD", "part", 0, b"QAINDEX1n\0e")
    assert restore_corrupted(client, "part", 300, lambda key: use(client, key)) > 10
    small.check()


@pytest.fixture
def pair(server_binary: Path) -> Iterator[tuple[Any, Any]]:
    """Clients of a primary and of its replica."""
    with Server(server_binary) as primary, primary.client(decode_responses=False, protocol=2) as client:
        Twins(client).fill(3, 60)
        settings = {"replicaof": f"127.0.0.1 {primary.port}"}
        with Server(server_binary, settings) as server, server.client(decode_responses=False, protocol=2) as replica:
            eventually(lambda: replica.exists("index:{t}"), ignore=redis.RedisError)
            yield client, replica


def test_replicas_are_equal(pair: tuple[redis.Redis, redis.Redis]) -> None:
    client, replica = pair
    twins, chance = Twins(client, "index:{u}"), random.Random(4)

    def caught_up(number: int) -> bool:
        client.set("last", number)
        return bool(replica.get("last") == str(number).encode())

    assert Twins(client).digest() == Twins(replica).digest()
    for number in range(20):
        twins.fill(number, 12)
        with pytest.raises(redis.ResponseError):
            client.execute_command("QA.INDEX.PUT", twins.key, "good", b"", b"\1\1\1\1a", "bad", b"", b"\1")
        words = ["QA.INDEX.PUT", KEYS_1, "script", "", "\1\1\1\1a"]
        client.eval(f"redis.call({', '.join(lua(word) for word in words)})", 1, twins.key)
        twins.put(("script", {}, [Sentence({"a": 1}, 1)]))
        eventually(lambda number=number: caught_up(number))
        assert twins.digest(client) == twins.digest(replica)
        twins.check(chance.sample(TERMS, 4), client=replica)
    with pytest.raises(redis.ReadOnlyError):
        replica.execute_command("QA.INDEX.DEL", twins.key, "a")
    twins.delete(*twins.oracle.live)
    eventually(lambda: caught_up(-1))
    assert not client.exists(twins.key) and not replica.exists(twins.key)


KEYS_1 = "KEYS[1]"


def lua(word: str) -> str:
    """A word as Lua source."""
    return word if word == KEYS_1 else "'" + "".join(f"\\{byte:03}" for byte in word.encode()) + "'"


def test_both_servers_clean_for_themselves(pair: tuple[redis.Redis, redis.Redis]) -> None:
    client, replica = pair
    twins = Twins(client, "index:{u}")
    for number in range(300):
        twins.put((f"d{number}", {}, some_sentences(random.Random(number), 10)))
    before = info(client, twins.key)
    twins.delete(*[f"d{number}" for number in range(250)])
    eventually(lambda: replica.exists(twins.key))
    for each in (client, replica):

        def is_clean(each: redis.Redis = each) -> bool:
            now = info(each, twins.key)
            return now["documents"] == 50 and now["dead_postings"] == 0 and now["postings"] < before["postings"] / 3

        eventually(is_clean)
        assert info(each, twins.key)["bytes"] < before["bytes"] / 2
        twins.check(client=each)
    assert twins.digest(client) == twins.digest(replica)


def test_a_renamed_index_is_cleaned_and_counted(shared_ai_server: Server, shared_ai: redis.Redis) -> None:
    twins = Twins(shared_ai)
    twins.fill(1, 60)
    shared_ai.rename(twins.key, "index:{t}:new")
    twins.key = "index:{t}:new"
    documents, sentences, _ = twins.oracle.totals()
    fields = ("indexes", "index_documents", "index_sentences")
    # the server frees the removed values in the background
    eventually(lambda: shared_ai_server.fields(*fields) == (1, documents, sentences))
    twins.delete(*list(twins.oracle.live)[:-1])
    eventually(lambda: info(shared_ai, twins.key)["dead_postings"] == 0)
    twins.check()


def end_child(server: Server) -> None:
    """Ends the saving process by the signal that the server uses."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    (child,) = {int(pid) for pid in children} - {server.field("worker_pid")}
    os.kill(child, signal.SIGUSR1)


def test_nothing_is_cleaned_while_a_child_saves(ai: redis.Redis, ai_server: Server) -> None:
    """Cleaning would copy the pages that the server shares with the child."""
    twins = Twins(ai)
    twins.fill(1, 60)
    ai.mset({f"key{number}": 1 for number in range(100)})
    ai.config_set("rdb-key-save-delay", 600_000)
    ai.bgsave()
    twins.delete(*list(twins.oracle.live)[:-1])
    dead = info(ai, twins.key)["dead_postings"]
    time.sleep(0.5)
    assert ai.info("persistence")["rdb_bgsave_in_progress"]
    assert info(ai, twins.key)["dead_postings"] == dead > 64
    end_child(ai_server)
    eventually(lambda: info(ai, twins.key)["dead_postings"] == 0)
    assert not ai.info("persistence")["rdb_bgsave_in_progress"]
    ai.config_set("rdb-key-save-delay", 0)


def test_info_counts_all_indexes(shared_ai: redis.Redis, shared_ai_server: Server) -> None:
    def counted() -> tuple[int, ...]:
        names = ("indexes", "index_documents", "index_sentences", "index_bytes")
        return tuple(int(number) for number in shared_ai_server.fields(*names))

    eventually(lambda: counted() == (0, 0, 0, 0))
    twins = [Twins(shared_ai, f"index:{{{tag}}}") for tag in "abc"]
    for number, each in enumerate(twins):
        each.fill(number, 20)
    shared_ai.execute_command("QA.INDEX.LOAD", "part", 0, b"QAINDEX1")
    totals = [each.oracle.totals() for each in twins]
    assert counted()[:3] == (3, sum(one[0] for one in totals), sum(one[1] for one in totals))
    eventually(lambda: counted()[3] == sum(info(shared_ai, each.key)["bytes"] for each in twins))  # after cleaning
    shared_ai.unlink(*(each.key for each in twins[1:]))
    eventually(lambda: counted()[:2] == (1, totals[0][0]))
    shared_ai.flushall(asynchronous=True)
    eventually(lambda: counted() == (0, 0, 0, 0))
