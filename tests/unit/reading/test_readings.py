"""`parse_readings` returns what the shard has written, and a cached answer counts only while it is valid."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest

from qa_cluster.documents.stored import SentenceRecord
from qa_cluster.errors import ClusterError, QueueFull, ReplyError
from qa_cluster.keys import SentenceRef
from qa_cluster.reading.passages import PassageSentence, ReadingPassage, around
from qa_cluster.reading.readings import (
    FoundSpan,
    ReadSentence,
    is_read,
    is_valid,
    parse_readings,
    sentence_answer,
    valid_answer,
)
from qa_cluster.reading.spans import AnswerSpan, Reading
from qa_cluster.reading.tokenization import TextTokens

DOCUMENT = "Zoë sang.\n\nShe wrote 😀 programs. Then she left."
PLACES = [(0, 9), (11, 32), (33, 47)]
NAME = "do_c:{t}:1"


def part(number: int) -> PassageSentence:
    start, end = PLACES[number]
    tokens = np.arange(2, dtype=np.int32)
    return PassageSentence(DOCUMENT[start:end], start, TextTokens(tokens, tokens, tokens + 1))


def passage(budget: int) -> ReadingPassage:
    return around(part(1), [part(0)], [part(2)], index=1, budget=budget)


def value(budget: int = 0, spans: list[AnswerSpan] | None = None, **changes: Any) -> bytes:
    record = SentenceRecord(1, part(1).text, part(1).start, "v1", "do_c", "Title", "")
    read = ReadSentence(SentenceRef("do_c", "t", 1), record, passage(budget), Reading(spans or [], 1.25), 2, True)
    found = sentence_answer(read, model_id="m", revision="r", reading_revision="r+64", created=1.0)
    return orjson.dumps({**orjson.loads(found), **changes})


def parsed(reply: bytes, cache: str = "miss") -> Any:
    (reading,) = parse_readings([NAME], [orjson.dumps({**orjson.loads(reply), "cache": cache})], "host:1")
    return reading


def test_a_sentence_alone() -> None:
    reply = value(0, [AnswerSpan(0, 3, 5.12346, 6.0), AnswerSpan(12, 20, -1.0, 0.0)])
    answer = json.loads(reply)
    assert (answer["answer"], answer["start"], answer["end"], answer["score"]) == ("She", 11, 14, 5.1235)
    assert (answer["sentence"], answer["sentence_start"], answer["sentence_end"]) == (DOCUMENT[11:32], 11, 32)
    assert answer["no_answer_score"] == 1.25
    assert "context" not in answer
    reading = parsed(reply, "shard")
    assert reading.spans == (FoundSpan(11, 14, 5.1235, 1), FoundSpan(23, 31, -1.0, 1))
    assert [reading.text(span) for span in reading.spans] == ["She", "programs"]
    assert (reading.context, reading.context_start) == (DOCUMENT[11:32], 11)
    assert (reading.cached, reading.windows, reading.truncated, reading.shard) == (True, 2, True, "host:1")
    assert answer["model"] == {"id": "m", "revision": "r"}
    assert (reading.score, reading.model, reading.version) == (5.1235, "r+64", "v1")


def test_a_sentence_with_neighbours() -> None:
    reply = value(64, [AnswerSpan(0, 3, 5.0, 6.0), AnswerSpan(11, 14, 4.0, 0.0), AnswerSpan(33, 37, 3.0, 0.0)])
    answer = json.loads(reply)
    assert (answer["answer"], answer["start"], answer["end"]) == ("Zoë", 0, 3)
    assert (answer["sentence_start"], answer["sentence_end"], answer["sentence_index"]) == (11, 32, 1)
    assert (answer["context"], answer["context_start"]) == (DOCUMENT.replace("\n", " "), 0)
    reading = parsed(reply)
    assert [(reading.text(span), span.sentence) for span in reading.spans] == [("Zoë", 0), ("She", 1), ("Then", 2)]
    assert all(DOCUMENT[span.start : span.end] == reading.text(span) for span in reading.spans)


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        (value(64), {"do_c:{t}:0", NAME, "do_c:{t}:2"}),
        (value(0), {NAME}),
        (value(64, read=[0, 10**12]), {"do_c:{t}:0", NAME, "do_c:{t}:2"}),
    ],
    ids=["with neighbours", "alone", "a number that a client wrote"],
)
def test_which_sentences_were_read(reply: bytes, read: set[str]) -> None:
    names = ["do_c:{t}:0", NAME, "do_c:{t}:2", "do_c:{t}:40", "do_c:{u}:1", "dock:{t}:1"]
    found = parsed(reply)
    assert {name for name in names if is_read(name, [found])} == read
    assert not is_read(NAME, [])


@pytest.mark.parametrize("budget", [0, 64])
def test_a_sentence_without_words_has_no_spans(budget: int) -> None:
    answer = json.loads(value(budget))
    assert (answer["answer"], answer["start"], answer["end"], answer["spans"]) == ("", 11, 11, [])
    reading = parsed(value(budget))
    assert reading.spans == ()
    assert reading.score < -50


@pytest.mark.parametrize(
    ("version", "revision", "valid"),
    [("v1", "r+64", True), ("v2", "r+64", False), ("v1", "r", False), ("v1", "r+96", False)],
)
def test_a_cached_answer_is_valid_for_its_version_and_reading_revision(
    version: str, revision: str, valid: bool
) -> None:
    assert is_valid(value(64), version, revision) is valid


@pytest.mark.parametrize(
    "lost",
    ["answer", "spans", "windows", "truncated", "sentence_start", "document_version", "model", "reading_revision"],
)
def test_an_incomplete_cached_answer_is_not_returned(lost: str) -> None:
    answer = orjson.loads(value(64))
    assert valid_answer(orjson.dumps(answer), "v1", "r+64") == answer
    del answer[lost]
    assert valid_answer(orjson.dumps(answer), "v1", "r+64") is None


@pytest.mark.parametrize("stored", ["", "7", "[]", "{}", '{"model": 1, "document_version": 2}'])
def test_a_value_that_a_client_stored_is_not_returned(stored: str) -> None:
    assert valid_answer(stored, "v1", "r+64") is None


@pytest.mark.parametrize(
    "change",
    [
        {"spans": None},
        {"spans": [[1, 2]]},
        {"read": [1]},
        {"reading_revision": ...},
        {"document_version": ...},
    ],
)
def test_a_reply_that_cannot_be_read_is_an_error(change: dict[str, Any]) -> None:
    reply = {**orjson.loads(value()), "cache": "miss", **change}
    whole = {name: item for name, item in reply.items() if item is not ...}
    with pytest.raises(ClusterError, match="do_c"):
        parse_readings([NAME], [orjson.dumps(whole)], "s")


def test_errors_in_the_place_of_answers() -> None:
    assert parse_readings([NAME], [b"-NOTFOUND no such sentence"], "s") == [None]
    with pytest.raises(ReplyError, match="MOVED 7 a:1"):
        parse_readings([NAME], [b"-MOVED 7 a:1"], "s")
    with pytest.raises(QueueFull):
        parse_readings([NAME], [ReplyError("OVERLOADED queue is full")], "s")
    with pytest.raises(ClusterError, match="asked for 1 sentences and answered 2"):
        parse_readings([NAME], [b"", b""], "s")
    for reply in (b"no JSON", b"[]", b"{}", None):
        with pytest.raises(ClusterError):
            parse_readings([NAME], [reply], "s")
