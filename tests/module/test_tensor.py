"""AI.TENSORSET and AI.TENSORGET: every type, every error."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import redis

from tests.harness.servers import Server

SHAPE = "^invalid or negative value found in tensor shape$"
COUNT = "^wrong number of values was given in 'AI.TENSORSET' command$"
BLOB = "^a single binary string should come after the BLOB argument in 'AI.TENSORSET' command$"
LENGTH = "^data length does not match tensor shape and type$"
VALUE = "^invalid value$"
BOOL = "^BOOL tensor elements must be 0 or 1$"
STRINGS = "^Number of string elements in data blob does not match tensor length$"


def values(client: redis.Redis, *tensor: Any) -> Any:
    assert client.execute_command("AI.TENSORSET", "t", *tensor) == b"OK"
    return client.execute_command("AI.TENSORGET", "t", "VALUES")


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("INT8", -(2**7), 2**7 - 1),
        ("INT16", -(2**15), 2**15 - 1),
        ("INT32", -(2**31), 2**31 - 1),
        ("INT64", -(2**63), 2**63 - 1),
        ("UINT8", 0, 2**8 - 1),
        ("UINT16", 0, 2**16 - 1),
    ],
)
def test_integer_limits(shared_ai: redis.Redis, dtype: str, low: int, high: int) -> None:
    assert values(shared_ai, dtype, 3, "VALUES", low, 1, high) == [low, 1, high]
    for beyond in (low - 1, high + 1):
        with pytest.raises(redis.ResponseError, match=VALUE):
            shared_ai.execute_command("AI.TENSORSET", "t", dtype, 1, "VALUES", beyond)
    assert shared_ai.execute_command("AI.TENSORGET", "t", "VALUES") == [low, 1, high]


def test_reals_are_printed_in_their_shortest_form(shared_ai: redis.Redis) -> None:
    given = ["0.1", "4", "1e10", "-0.5", "16777217"]
    printed = [b"0.10000000149011612", b"4", b"10000000000", b"-0.5", b"16777216"]  # each float as a double
    assert values(shared_ai, "FLOAT", 5, "VALUES", *given) == printed
    assert values(shared_ai, "DOUBLE", 4, "VALUES", "0.1", "0.30000000000000004", "1e-300", "inf") == [
        b"0.1",
        b"0.30000000000000004",
        b"1e-300",
        b"inf",
    ]
    for wrong in ("1e39", "0x10", " 1", "", "one"):
        with pytest.raises(redis.ResponseError, match=VALUE):
            shared_ai.execute_command("AI.TENSORSET", "t", "FLOAT", 1, "VALUES", wrong)


def test_bool_string_and_scalar(shared_ai: redis.Redis) -> None:
    assert values(shared_ai, "BOOL", 2, "VALUES", 0, 1) == [0, 1]
    assert values(shared_ai, "string", 1, 3, "values", "ab", "", "é") == [b"ab", b"", "é".encode()]
    assert shared_ai.execute_command("AI.TENSORGET", "t", "BLOB") == b"ab\0\0\xc3\xa9\0"
    assert values(shared_ai, "FLOAT", "BLOB", struct.pack("<f", 2.5)) == [b"2.5"]


def test_reply_formats(shared_ai: redis.Redis) -> None:
    blob = struct.pack("<6i", *range(6))
    assert values(shared_ai, "INT32", 2, 3, "BLOB", blob) == [0, 1, 2, 3, 4, 5]
    meta = [b"dtype", b"INT32", b"shape", [2, 3]]
    assert shared_ai.execute_command("AI.TENSORGET", "t") == [*meta, b"blob", blob]
    assert shared_ai.execute_command("AI.TENSORGET", "t", "META") == meta
    assert shared_ai.execute_command("AI.TENSORGET", "t", "BLOB") == blob
    assert shared_ai.execute_command("AI.TENSORGET", "t", "META", "VALUES") == [*meta, b"values", [0, 1, 2, 3, 4, 5]]
    for wrong, text in (
        (["TEXT"], "^unsupported data format$"),
        (["BLOB", "VALUES"], "^both BLOB and VALUES specified$"),
    ):
        with pytest.raises(redis.ResponseError, match=text):
            shared_ai.execute_command("AI.TENSORGET", "t", *wrong)


def test_resp3_has_doubles(shared_ai_server: Server) -> None:
    with shared_ai_server.client(protocol=3) as client:
        client.execute_command("AI.TENSORSET", "t", "FLOAT", 2, "VALUES", "0.1", "3")
        assert client.execute_command("AI.TENSORGET", "t", "VALUES") == [0.10000000149011612, 3.0]


def test_zeros_and_replacement_drops_ttl(shared_ai: redis.Redis) -> None:
    assert values(shared_ai, "INT64", 2, 2) == [0, 0, 0, 0]
    shared_ai.expire("t", 100)
    assert values(shared_ai, "STRING", 2) == [b"", b""]
    assert shared_ai.ttl("t") == -1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["INT3", 1], "^invalid data type$"),
        (["INT8", 0], SHAPE),
        (["INT8", -1], SHAPE),
        (["INT8", "x"], SHAPE),
        (["INT8", 2**40, 2**40], "limit of 1073741824 bytes"),
        (["INT64", 2**28], "limit of 1073741824 bytes"),
        (["INT8", *[1] * 33], "limit of 32"),
        (["INT8", 2, "VALUES", 1], COUNT),
        (["INT8", 2, "BLOB"], BLOB),
        (["INT8", 2, "BLOB", "a", "b"], BLOB),
        (["INT8", 2, "BLOB", "abc"], LENGTH),
        (["INT8", 1, "VALUES", "1.5"], VALUE),
        *((["BOOL", 1, "VALUES", value], VALUE) for value in (2, -1)),
        (["BOOL", 1, "BLOB", b"\2"], BOOL),
        (["STRING", 2, "BLOB", b"a\0"], STRINGS),
        (["STRING", 1, "BLOB", b"a\0b"], STRINGS),
        (["STRING", 1, "VALUES", b"a\0b"], "^C-string value contains null character$"),
    ],
)
def test_bad_input_changes_nothing(shared_ai: redis.Redis, arguments: list[Any], text: str) -> None:
    shared_ai.execute_command("AI.TENSORSET", "t", "INT8", 1, "VALUES", 7)
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command("AI.TENSORSET", "t", *arguments)
    assert shared_ai.execute_command("AI.TENSORGET", "t", "VALUES") == [7]


def test_keys_of_other_types(shared_ai: redis.Redis) -> None:
    shared_ai.set("text", "x")
    with pytest.raises(redis.ResponseError, match=r"^tensor key is empty or in a different shard$"):
        shared_ai.execute_command("AI.TENSORGET", "nothing", "WRONG")
    for command in (["AI.TENSORGET", "text"], ["AI.TENSORSET", "text", "NOTYPE", 1]):
        with pytest.raises(redis.ResponseError, match=r"^WRONGTYPE"):
            shared_ai.execute_command(*command)
    with pytest.raises(redis.ResponseError, match=r"^wrong number of arguments"):
        shared_ai.execute_command("AI.TENSORSET", "t", "INT8")


def test_events_and_watch(shared_ai: redis.Redis) -> None:
    shared_ai.config_set("notify-keyspace-events", "KEAm")
    with shared_ai.pubsub(ignore_subscribe_messages=True) as pubsub, shared_ai.pipeline() as pipeline:
        pubsub.psubscribe("__keyspace@0__:t")
        pubsub.get_message(timeout=10)  # the confirmation of the subscription
        pipeline.watch("t")
        shared_ai.execute_command("AI.TENSORSET", "t", "INT8", 1)
        message = pubsub.get_message(timeout=10)
        assert message and message["data"] == b"ai.tensorset", "and no key miss before it"
        pipeline.multi()
        pipeline.ping()
        with pytest.raises(redis.WatchError):
            pipeline.execute()
    shared_ai.config_set("notify-keyspace-events", "")
