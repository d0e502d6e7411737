"""Data that a server writes and loads again: the append-only file, and DUMP payloads, intact and corrupted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import redis

from tests.harness.polling import eventually


def rewrite_and_load_aof(client: redis.Redis) -> None:
    """Rewrites the AOF as commands, and loads the data from it."""
    client.config_set("aof-use-rdb-preamble", "no")
    client.bgrewriteaof()

    def over() -> bool:
        state = client.info("persistence")
        return not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]

    eventually(over)
    client.execute_command("DEBUG", "LOADAOF")


def without_tags(log: bytes) -> bytes:
    """The commands of an append-only file without the tags of sessions, which an earlier version did not write."""
    kept, at = b"", 0
    while at < len(log):
        end = log.index(b"\r\n", at)
        count, at, words = int(log[at + 1 : end]), end + 2, []
        for _ in range(count):
            end = log.index(b"\r\n", at)
            size = int(log[at + 1 : end])
            words.append(log[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        if words[0] == b"QA.REGISTER":
            assert len(words.pop()) == 32
        kept += b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return kept


def corruptions(dump: bytes, count: int) -> Iterator[bytes]:
    """Every truncation of a DUMP payload, and payloads with random damage. Their version and checksum stay the same."""
    body, footer = dump[:-10], dump[-10:]
    yield from (body[:length] + footer for length in range(1, len(body)))
    chance = random.Random(7)
    for _ in range(count):
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            value = chance.choice([0, 1, 2, 5, 0x40, 0x80, 0x81, 0xFF, chance.randrange(256)])
            damaged[chance.randrange(9, len(damaged))] = value
        yield bytes(damaged) + footer


def restore_corrupted(
    client: redis.Redis, key: str, count: int, use: Callable[[str], object] = lambda key: None
) -> int:
    """Restores corrupted payloads as `damaged`; accepted values must be usable. Returns the number of refusals."""
    client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
    refused = 0
    dump = client.dump(key)
    assert isinstance(dump, bytes)
    assert client.restore("damaged", 0, dump, replace=True) in (b"OK", "OK")
    for payload in corruptions(dump, count):
        try:
            client.restore("damaged", 0, payload, replace=True)
        except redis.ResponseError as error:
            refused += 1
            assert "Bad data format" in str(error) or "DUMP payload" in str(error)
        else:
            client.dump("damaged")
            client.memory_usage("damaged")
            use("damaged")
    return refused
