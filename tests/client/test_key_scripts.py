"""The scripts that count the use of API keys, on every supported server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis

from qa_cluster.scripts.calls import ScriptCall
from tests.harness.servers import Server

KEYS = ("api-use:{a}", "api-running:{a}")


def run(client: redis.Redis, call: ScriptCall) -> Any:
    return client.execute_command(*call.command())


def begin(client: redis.Redis, rate: int, most: int, member: str, lease_ms: int = 60_000) -> list[int]:
    found: list[int] = run(client, ScriptCall("begin_api_use", KEYS, (rate, most, member, lease_ms)))
    return found


def now_us(client: redis.Redis) -> int:
    seconds, more = client.time()
    return int(seconds) * 1_000_000 + int(more)


def test_the_requests_of_one_second_may_arrive_at_once(server_binary: Path) -> None:
    with Server(server_binary) as server, server.client() as client:
        assert begin(client, 1_000_000_000, 0, "x")[0] == 0
        client.delete(*KEYS)
        first = begin(client, 1, 0, "x")
        assert first[:2] == [0, 0] and 0 < first[2] <= 1_000_000
        # the state after ten requests at this moment
        client.hset(KEYS[0], "paced", str(now_us(client) + 900_000_000))
        refused, left, wait, _ = begin(client, 10, 0, "y")
        assert (refused, left) == (1, 0)
        assert 0 < wait <= 100_000, "even after the clock was set back, a client waits at most one interval"
        client.hset(KEYS[0], "paced", str(now_us(client) - 5_000_000))
        assert begin(client, 10, 0, "z")[:2] == [0, 9], "unused requests do not accumulate"
        assert client.ttl(KEYS[0]) == -1, "counts must not be evicted"


def test_concurrent_requests_expire(server_binary: Path) -> None:
    with Server(server_binary) as server, server.client() as client:
        assert begin(client, 0, 2, "a") == [0, 0, 0, 1]
        assert begin(client, 0, 2, "b") == [0, 0, 0, 0]
        assert begin(client, 5, 2, "c")[0] == 2
        assert client.exists(KEYS[0]) == 0, "a refused request does not count against the other limit"
        client.zadd(KEYS[1], {"a": now_us(client) - 1})
        assert begin(client, 0, 2, "d")[0] == 0
        assert 0 < client.pttl(KEYS[1]) <= 60_000


def test_sentences_of_one_day(server_binary: Path) -> None:
    with Server(server_binary) as server, server.client() as client:

        def count(limit: int, sentences: int, day: object = "") -> list[int]:
            found: list[int] = run(client, ScriptCall("count_sentences", KEYS[:1], (limit, sentences, str(day))))
            return found

        allowed, day, used, rest = count(10, 8)
        assert (allowed, used) == (1, 8) and 0 < rest <= 86_400
        assert count(10, 8)[:3] == [1, day, 16]
        assert count(10, 1)[:3] == [0, day, 16]
        assert count(0, -12, day)[:3] == [1, day, 4]
        assert count(0, -100, day)[2] == 0
        count(10, 3)
        count(0, -3, day - 1)  # a correction for the previous day changes nothing
        assert client.hget(KEYS[0], "sentences") in (b"3", "3")
