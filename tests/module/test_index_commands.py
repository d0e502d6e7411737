"""QA.INDEX.*: the errors of each command, which change nothing; scripts, transactions and atomic blocks."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from tests.harness.servers import Server, execute
from tests.index.oracle import Sentence
from tests.module.indexes import Twins, info, packed

GOOD = packed([Sentence({"a": 1, "b": 2}, 3)])
ARITY = "wrong number of arguments"
NEEDED = {"PUT": "k d f s", "DEL": "k d", "RANK": "k 1 0 TERMS", "STATS": "k TERMS", "LIST": "k 0", "GET": "k d"}
NEEDED |= {"INFO": "k", "LOAD": "k 0 p", "WATCH": "k n 1 0 0 0 0 0 0 TERMS 0 DOCUMENTS 0", "WATCHED": "k n"}
NEEDED |= {"BEGIN": "k d f", "ADD": "k d 0 0 p", "COMMIT": "k d 0 0", "ABORT": "k d 0"}
NEEDED |= {"CHANGE": "k d f", "FIELDS": "k NAMES n", "VALUES": "k 0 f"}
NEEDED |= {"EMBED": "k d digest 4 0 0 p", "UNEMBEDDED": "k digest 0 1"}
OPEN_ENDED = {"FIELDS", "VALUES", "PUT", "DEL", "RANK", "STATS", "LIST", "WATCH"}


def refusal(client: redis.Redis, *words: Any) -> str:
    """The error of a command; redis-py removes `ERR`."""
    with pytest.raises(redis.ResponseError) as error:
        client.execute_command(*words)
    return str(error.value)


@pytest.fixture
def twins(shared_ai: redis.Redis) -> Twins:
    """An index with two documents."""
    made = Twins(shared_ai, "k")
    sentences = [Sentence({"a": 1, "b": 2}, 3), Sentence({"b": 1}, 9)]
    assert made.put(("one", {}, sentences), ("two", {"tag": ["x"]}, sentences[1:])) == [2, 0, 3]
    return made


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_numbers_of_arguments(twins: Twins, name: str) -> None:
    words, command = NEEDED[name].split(), f"QA.INDEX.{name}"
    for count in range(len(words) - (name in ("RANK", "STATS", "LIST") or 0)):
        assert ARITY in refusal(twins.client, command, *words[:count]), words[:count]
    if name not in OPEN_ENDED:
        assert ARITY in refusal(twins.client, command, *words, "more")
    twins.check(["a", "b"])


def test_a_document_is_three_words(twins: Twins) -> None:
    for words in (["d", b"", GOOD, "e"], ["d", b"", GOOD, "e", b""]):
        assert ARITY in refusal(twins.client, "QA.INDEX.PUT", "k", *words)
    twins.check(["a", "b"])


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (("", b"", GOOD), "its id has 0 bytes, it must have 1 to 65536"),
        (("x" * 65537, b"", GOOD), "its id has 65537 bytes, it must have 1 to 65536"),
        (("d", b"\1", GOOD), "its fields are not valid"),
        (("d", b"\1\0\1y\1\0n\0\0\0\0\0\0\xf0\x7f", GOOD), "its fields are not valid"),  # infinite
        (("d", b"\0\0" + b"x" * 65535, GOOD), "its fields are not valid"),
        (("d", b"", GOOD[:-1]), "a term extends beyond the end, at byte 7 of its sentences"),
        (("d", b"", GOOD + b"\1\1\0\1c"), "a frequency must be between 1 and 65535, at byte 10 of its sentences"),
        (("d", b"", GOOD + b"\1\1\1\0"), "a term must have 1 to 256 bytes, at byte 11 of its sentences"),
        (("d", b"", GOOD + b"\2\2\1\1b\1\1b"), "the terms of a sentence must ascend, at byte 15 of its sentences"),
    ],
)
def test_one_document_that_is_not_valid_refuses_all(twins: Twins, document: Any, error: str) -> None:
    before = info(twins.client, "k"), twins.digest()
    assert refusal(twins.client, "QA.INDEX.PUT", "k", "one", b"", GOOD, *document) == f"document 2: {error}"
    assert (info(twins.client, "k"), twins.digest()) == before
    assert refusal(twins.client, "QA.INDEX.PUT", "new", *document) == f"document 1: {error}"
    assert twins.client.exists("new") == 0


TOO_MANY = [word for number in range(33) for word in (f"t{number}", 0)]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["RANK", "k", -1, 0, "TERMS", 0], "k must be between 0 and 1000"),
        (["RANK", "k", 1001, 0, "TERMS", 0], "k must be between 0 and 1000"),
        (["RANK", "k", 1, 2**48, "TERMS", 0], "number of sentences must be between 0 and 281474976710655"),
        (["RANK", "k", 1, 0, "FILTER", "?", "TERMS", 0], "filter is not valid"),
        (["RANK", "k", 1, 0, "TERM", 0], "syntax error: TERMS is missing, or in the wrong place"),
        (["RANK", "k", 1, 0, "FILTER", b"&\0\0"], "syntax error: TERMS is missing, or in the wrong place"),
        (["RANK", "k", 1, 0, "TERMS", 33, *TOO_MANY], "number of terms must be between 0 and 32"),
        (["RANK", "k", 1, 0, "TERMS", 2, "a", 1], "number of terms does not match the arguments"),
        (["RANK", "k", 1, 0, "TERMS", 1, "a", -1], "document frequency must be between 0 and 281474976710655"),
        (["RANK", "k", 1, 0, "TERMS", 2, "a", 1, "a", 1], "a term comes twice"),
        (["STATS", "k", "TERMS", 2, "a"], "number of terms does not match the arguments"),
        (["STATS", "k", "TERMS", 2, "a", "a"], "a term comes twice"),
        (["STATS", "k", "a", "TERMS"], "syntax error: TERMS is missing, or in the wrong place"),
        (["LIST", "k", -1, 1], "invalid cursor"),
        (["LIST", "k", "x", 1], "invalid cursor"),
        (["LIST", "k", 0, 0], "count must be between 1 and 1000"),
        (["LIST", "k", 0, 1001], "count must be between 1 and 1000"),
        (["LIST", "k", 0, 1, "FILTER"], "FILTER must be followed by a filter"),
        (["LIST", "k", 0, 1, "FILTER", "!"], "filter is not valid"),
        (["LIST", "k", 0, 1, "more"], "syntax error: only FILTER may follow"),
        (["LOAD", "k", 0, "x"], "Target key name already exists."),
        (["LOAD", "new", -1, "x"], "offset must be a number that is not negative"),
        (["LOAD", "new", "x", "x"], "offset must be a number that is not negative"),
        (["LOAD", "new", 1, "x"], "offset is 1, the next part begins at 0"),
        (["LOAD", "new", 0, "x" * 65537], "a part has 65537 bytes, it must have 65536 at most"),
        (["LOAD", "new", 0, ""], "the payload of the index is damaged"),
    ],
)
def test_wrong_arguments(twins: Twins, words: list[Any], error: str) -> None:
    said = refusal(twins.client, f"QA.INDEX.{words[0]}", *words[1:])
    assert said.removeprefix("BUSYKEY ") == error
    if words[0] in ("RANK", "LIST"):  # with or without the key
        assert refusal(twins.client, f"QA.INDEX.{words[0]}", "none", *words[2:]) == error
    assert twins.client.exists("new") == 0
    twins.check(["a", "b"])


FULL = {
    "PUT": ["d", b"", GOOD],
    "DEL": ["d"],
    "RANK": [1, 0, "TERMS", 0],
    "STATS": ["TERMS", 0],
    "LIST": [0, 1],
    "GET": ["d"],
    "INFO": [],
    "LOAD": [0, "x"],
    "BEGIN": ["d", b""],
    "ADD": ["d", 0, 0, GOOD],
    "COMMIT": ["d", 0, 0],
    "ABORT": ["d", 0],
}


@pytest.mark.parametrize("name", sorted(FULL))
def test_keys_of_other_types(shared_ai: redis.Redis, name: str) -> None:
    shared_ai.set("text", "x")
    shared_ai.execute_command("AI.TENSORSET", "tensor", "INT8", 1)
    for key in ("text", "tensor"):
        assert "WRONGTYPE" in refusal(shared_ai, f"QA.INDEX.{name}", key, *FULL[name])
    assert shared_ai.get("text") == b"x"


@pytest.mark.parametrize("name", sorted(FULL.keys() - {"LOAD"}))
def test_an_index_that_is_not_complete_is_refused(shared_ai: redis.Redis, name: str) -> None:
    assert shared_ai.execute_command("QA.INDEX.LOAD", "part", 0, "QAIN") == b"OK"
    assert "index is not complete" in refusal(shared_ai, f"QA.INDEX.{name}", "part", *FULL[name])
    assert refusal(shared_ai, "QA.INDEX.LOAD", "part", 3, "DEX1") == "offset is 3, the next part begins at 4"
    assert refusal(shared_ai, "QA.INDEX.LOAD", "part", 0, "") == "offset is 0, the next part begins at 4"
    assert refusal(shared_ai, "QA.INDEX.LOAD", "part", 4, "") == "the payload of the index is damaged"
    assert shared_ai.type("part") == b"qa-index_"
    shared_ai.execute_command("QA.INDEX.LOAD", "part", 4, b"DEX1n\0e")
    shared_ai.execute_command("QA.INDEX.LOAD", "part", 11, b"")
    assert info(shared_ai, "part")["documents"] == 0


def test_part_0_starts_a_new_index(shared_ai: redis.Redis) -> None:
    for part in (b"damaged", b"QAINDEX1"):
        shared_ai.execute_command("QA.INDEX.LOAD", "part", 0, part)
    shared_ai.execute_command("QA.INDEX.LOAD", "part", 8, b"n\0e")
    shared_ai.execute_command("QA.INDEX.LOAD", "part", 11, b"")
    assert info(shared_ai, "part")["documents"] == 0
    assert "already exists" in refusal(shared_ai, "QA.INDEX.LOAD", "part", 0, b"QAINDEX1")


SCRIPT = """
redis.call('QA.INDEX.PUT', KEYS[1], 'three', '', ARGV[1])
local ranked = redis.call('QA.INDEX.RANK', KEYS[1], 1, 0, 'TERMS', 1, 'z', 0)
return {ranked[1], ranked[4][1][1], redis.call('QA.INDEX.DEL', KEYS[1], 'one', 'two', 'none')}
"""


def test_scripts_and_transactions(twins: Twins) -> None:
    blob = packed([Sentence({"z": 1}, 1)])
    assert twins.client.eval(SCRIPT, 1, "k", blob) == [4, b"three", 2]
    pipe = twins.client.pipeline(transaction=True)
    pipe.execute_command("QA.INDEX.PUT", "k", "four", b"", blob)
    pipe.execute_command("QA.INDEX.STATS", "k", "TERMS", 1, "z")
    pipe.execute_command("QA.INDEX.DEL", "k", "three", "four")
    pipe.exists("k")
    assert pipe.execute() == [[1, 0, 1], [2, 2, [2]], 2, 0]


def test_a_watched_index_that_changes_ends_the_transaction(twins: Twins) -> None:
    for change in (["QA.INDEX.PUT", "k", "d", b"", GOOD], ["QA.INDEX.DEL", "k", "d"]):
        with twins.client.pipeline(transaction=True) as pipe:
            pipe.watch("k")
            twins.client.execute_command(*change)
            pipe.multi()
            pipe.ping()
            with pytest.raises(redis.WatchError):
                pipe.execute()


def test_changes_are_announced(twins: Twins) -> None:
    client = twins.client
    client.config_set("notify-keyspace-events", "KEA")
    with client.pubsub() as events:
        events.psubscribe("__keyspace@0__:*")
        assert events.get_message(timeout=5)
        client.execute_command("QA.INDEX.DEL", "k", "none")
        client.execute_command("QA.INDEX.PUT", "k", "d", b"", GOOD)
        client.execute_command("QA.INDEX.DEL", "k", "d")
        client.execute_command("QA.INDEX.DEL", "k", "one", "two")
        client.execute_command("QA.INDEX.LOAD", "l", 0, "x")
        found = []
        while len(found) < 4 and (message := events.get_message(timeout=5)):
            found.append(message["data"])
    client.config_set("notify-keyspace-events", "")
    assert found == [b"qa.index.put", b"qa.index.del", b"del", b"qa.index.load"]


def test_an_atomic_block_writes_and_reads(shared: Server) -> None:
    """The block runs as the worker's user, who has a right to each of these commands on servers without categories."""
    commands = [["QA.INDEX.PUT", "k", "d", "", GOOD.decode()], ["QA.INDEX.STATS", "k", "TERMS", "1", "a"]]
    replies = json.loads(execute(shared, "RG.PYEXECUTE", json.dumps({"atomic": commands})))
    assert replies == ["GO", [1, 0, 1], [1, 3, [1]], "OK"]


def test_writing_is_refused_without_memory(twins: Twins) -> None:
    twins.client.config_set("maxmemory", 1)
    try:
        for name in ("PUT", "LOAD", "BEGIN", "ADD"):
            assert "maxmemory" in refusal(twins.client, f"QA.INDEX.{name}", "k", *FULL[name])
        twins.check(["a", "b"])
        assert twins.delete("one") == 1
    finally:
        twins.client.config_set("maxmemory", 0)
