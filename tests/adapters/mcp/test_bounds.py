"""The limits of results and the texts of errors, without a service."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from qa_cluster.client import (
    AccessDenied,
    Answer,
    AskResult,
    CollectionEntry,
    Document,
    Hit,
    InvalidInput,
    LimitReached,
    ModelError,
    QueueFull,
    SearchResult,
    VersionConflict,
)
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, QAError
from qa_cluster.integrations.mcp import bounds, results
from qa_cluster.integrations.mcp.backend import authorization_of, service_url
from qa_cluster.integrations.mcp.explaining import explained, unknown_argument, unknown_collection
from qa_cluster.integrations.mcp.process import transport_security
from qa_cluster.types import CacheUse, Index, Model, Passage, SearchTimings, Timings, Usage

INDEX = Index("1", 3, 3)
ESCAPED = "\x01" * 10_000  # each character has six characters in JSON


def answer(rank: int, context: str, start: int, end: int, **fields: Any) -> Answer:
    given: dict[str, Any] = {"score": 0.9, "title": "t" * 5000, "url": "", **fields}
    return Answer(
        rank=rank,
        answer=context[start:end],
        logit=1.0,
        start=100 + start,
        end=100 + end,
        document_id="d" * 500,
        document_version="v",
        passage_id="p",
        context=context,
        context_start=100,
        context_end=100 + len(context),
        shard="s",
        **given,
    )


def asked(answers: list[Answer], index: Index = INDEX) -> dict[str, Any]:
    result = AskResult(
        "id", 0, "q", "q", Model("m", "r", "p"), bool(answers), 0.1, tuple(answers),
        CacheUse("miss", "none", 0, 0), index, Usage(1, 1, 0, 1, False), Timings(),
    )  # fmt: skip
    return results.asked(result, "default")


def hit(number: int, text: str, document: str = "d") -> Hit:
    return Hit(
        number, 1.0, document, "v", "p", "title", text, 50, 50 + len(text), passage=Passage(f"before {text}", 43, 900)
    )


def found(hits: list[Hit], top_k: int = 10) -> dict[str, Any]:
    result = SearchResult("id", 0, "q", (), tuple(hits), 9, INDEX, SearchTimings())
    return results.found(result, "default", top_k)


def test_examples() -> None:
    assert doctest.testmod(bounds).failed == 0


def test_a_long_sentence_is_cut_around_the_answer_and_stays_exact() -> None:
    context = "x" * 3000 + "the answer" + "y" * 3000
    (shown,) = asked([answer(1, context, 3000, 3010)])["answers"]
    assert len(shown["quote"]) == bounds.MAX_QUOTE_CHARS
    assert "the answer" in shown["quote"]
    assert context[shown["start"] - 100 : shown["end"] - 100] == shown["quote"]
    assert len(shown["title"]) == bounds.MAX_TITLE_CHARS


def test_an_address_is_never_cut() -> None:
    (shown,) = asked([answer(1, "abc", 0, 1, url="https://a.example/" + "a" * 2000)])["answers"]
    assert "url" not in shown


def test_an_answer_has_a_confidence_and_a_pin_is_marked() -> None:
    read, pinned, of_an_old_service = asked(
        [
            answer(1, "abc", 0, 1, confidence="unsure"),
            answer(2, "abc", 1, 2, confidence="sure", pinned=True),
            answer(3, "abc", 2, 3),
        ]
    )["answers"]
    assert (read["confidence"], "pinned" in read) == ("unsure", False)
    assert (pinned["confidence"], pinned["pinned"]) == ("sure", True)
    assert "confidence" not in of_an_old_service


def test_improbable_answers_are_left_out() -> None:
    shown = asked([answer(1, "abc", 0, 1, score=0.001), answer(2, "abc", 1, 2, score=0.001)])
    assert len(shown["answers"]) == 1


def test_a_note_reports_no_answer_and_missing_shards() -> None:
    shown = asked([], Index("1", 3, 2, True, ("a:1",)))
    assert shown["answerable"] is False
    assert "1 of 3 shards" in shown["note"] and "search" in shown["note"]


def test_a_shortened_result_keeps_its_note() -> None:
    texts = ["a" * bounds.MAX_RESULT_CHARS] * 2
    shown = bounds.within({"results": texts, "note": "a shard is missing"}, "results")
    assert shown["note"].startswith("a shard is missing; 1 more results are left out")
    assert len(shown["results"]) == 1


def test_results_of_escaped_characters_stay_within_the_limit() -> None:
    shown = asked([answer(rank, ESCAPED, 0, 5000) for rank in range(1, 11)])
    assert len(bounds.as_text(shown)) <= bounds.MAX_RESULT_CHARS
    assert "left out" in shown["note"]
    shown = found([hit(number, ESCAPED, f"d{number}") for number in range(10)])
    assert len(bounds.as_text(shown)) <= bounds.MAX_RESULT_CHARS
    assert 1 <= len(shown["results"]) < 10


def test_a_hit_has_the_best_sentences_of_its_document() -> None:
    shown = found([hit(1, "one"), hit(2, "other", "e"), *(hit(number, str(number)) for number in range(3, 9))])
    assert [entry["id"] for entry in shown["results"]] == ["d", "e"]
    assert [quote["quote"] for quote in shown["results"][0]["quotes"]] == ["one", "3", "4"]
    assert shown["results"][0]["text"] == "before one"
    assert [entry["id"] for entry in found([hit(1, "one"), hit(2, "other", "e")], 1)["results"]] == ["d"]
    assert "different words" in found([])["note"]


def test_a_document_is_read_in_parts() -> None:
    document = Document("d", "0123456789", metadata={"a": 1, "large": "x" * 5000, "_source": {"file": "f"}})
    first = results.fetched(document, "c", 0, 4)
    assert (first["text"], first["next_offset"], first["length"]) == ("0123", 4, 10)
    assert "large" not in first["metadata"] and first["metadata"]["a"] == 1 and "1 large" in first["note"]
    last = results.fetched(document, "c", 8, 4)
    assert (last["text"], last["next_offset"]) == ("89", None)
    assert "metadata" not in last
    assert results.fetched(Document("d", ""), "c", 0, 4)["text"] == ""


def test_a_long_list_of_collections_is_cut() -> None:
    entries = tuple(CollectionEntry(f"c{number}", "ready", 1, 2) for number in range(1000))
    shown = results.listed(entries, "")
    assert (len(shown["collections"]), shown["total"]) == (bounds.MAX_COLLECTIONS, 1000)
    assert "prefix" in shown["note"]
    assert results.listed(entries, "c99")["total"] == 11
    assert results.listed((CollectionEntry("a", "deleting", 1, 2),), "")["collections"][0]["state"] == "deleting"


LIMIT = LimitReached("20 requests per second")
LIMIT.retry_after_seconds = 7.0


@pytest.mark.parametrize(
    ("error", "over_http", "words"),
    [
        (AccessDenied("key x lacks scope"), True, "Authorization header"),
        (AccessDenied("key x lacks scope"), False, "QA_SERVICE_API_KEY"),
        (VersionConflict("document 'a' has version 1"), False, "overwrite=true"),
        (InvalidInput("filter: no field 'yaer': did you mean 'year'?"), False, "year>=2020"),
        (QueueFull("queue is full"), False, "Retry in 1 s"),
        (LIMIT, False, "Retry in 7 s"),
        (ModelError("no reader"), False, "operator"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, QAError) else None,
)
def test_errors_have_advice(error: QAError, over_http: bool, words: str) -> None:
    text = explained(error, over_http=over_http)
    assert str(error) in text and words in text


def test_long_errors_are_cut_to_one_line() -> None:
    text = explained(InvalidInput("a\nb" * 5000), over_http=False)
    assert len(text) <= bounds.MAX_ERROR_CHARS and "\n" not in text


def test_the_most_similar_name_is_suggested() -> None:
    assert "Did you mean 'manuals'?" in unknown_collection("manual", ["default", "manuals"])
    assert "Did you mean" not in unknown_collection("zzz", ["default"])
    assert "did you mean 'top_k'?" in unknown_argument("ask", "topk", ["question", "top_k"])


@pytest.mark.parametrize("values", [["a", "b"], ["é"], ["a\nb"], ["x" * 2000]])
def test_a_bad_authorization_is_refused_and_not_repeated(values: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        authorization_of(values)
    assert values[0] not in str(caught.value).split("`")[0] or values == ["a", "b"]


def test_the_address_of_the_service() -> None:
    assert service_url(Settings()) == "http://127.0.0.1:8080"
    assert service_url(Settings(http_host="0.0.0.0", http_tls_cert="c")) == "https://127.0.0.1:8080"
    assert service_url(Settings(http_host="::1", http_port=1)) == "http://[::1]:1"
    assert service_url(Settings(service_url="https://qa.example/base")) == "https://qa.example/base"
    for bad in ("qa.example", "ftp://a", "http://", "http://user:pass@a", "http://a:x"):
        with pytest.raises(ConfigError, match="service_url") as caught:
            service_url(Settings(service_url=bad))
        assert "pass" not in str(caught.value)


def test_accepted_hosts_and_origins() -> None:
    found = transport_security(Settings(mcp_hosts="qa.example, b", mcp_origins="https://agent.example"))
    assert {"127.0.0.1:*", "localhost", "[::1]:*", "qa.example", "qa.example:*", "b"} <= set(found.allowed_hosts)
    assert "https://agent.example" in found.allowed_origins and found.enable_dns_rebinding_protection
    assert not {"0.0.0.0", "*"} & set(transport_security(Settings(mcp_host="0.0.0.0")).allowed_hosts)
