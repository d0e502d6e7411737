"""The scripts that count what API keys use, on every server."""

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


def test_a_seconds_worth_may_come_at_once_and_no_more(server_binary: Path) -> None:
    with Server(server_binary) as server, server.client() as client:
        assert begin(client, 1_000_000_000, 0, "x")[0] == 0
        client.delete(*KEYS)
        first = begin(client, 1, 0, "x")
        assert first[:2] == [0, 0] and 0 < first[2] <= 1_000_000
        # as if ten requests had started at this moment
        client.hset(KEYS[0], "paced", str(now_us(client) + 900_000_000))
        refused, left, wait, _ = begin(client, 10, 0, "y")
        assert (refused, left) == (1, 0)
        assert 0 < wait <= 100_000, "a clock that was set back holds nobody up for longer than the limit"
        client.hset(KEYS[0], "paced", str(now_us(client) - 5_000_000))
        assert begin(client, 10, 0, "z")[:2] == [0, 9], "rest is not saved for later"
        assert client.ttl(KEYS[0]) == -1, "what is counted must not be evicted"


def test_requests_at_a_time_end_by_themselves(server_binary: Path) -> None:
    with Server(server_binary) as server, server.client() as client:
        assert begin(client, 0, 2, "a") == [0, 0, 0, 1]
        assert begin(client, 0, 2, "b") == [0, 0, 0, 0]
        assert begin(client, 5, 2, "c")[0] == 2
        assert client.exists(KEYS[0]) == 0, "a request that is refused takes nothing of the other limit"
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
        count(0, -3, day - 1)  # the day has ended
        assert client.hget(KEYS[0], "sentences") in (b"3", "3")
