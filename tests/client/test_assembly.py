"""Answers from readings: order, overlaps, thresholds."""

from __future__ import annotations

from qa_cluster.assembly import Reading, Record, Scored, assemble, distinct
from qa_cluster.keys import SentenceRef
from qa_cluster.questions import AskOptions
from tests.client.scripted_cluster import manifest

RECORDS = {name: Record("v", f"title {name}", {"of": name}) for name in "abc"}


def scored(document: str, span: tuple[int, int], score: float, rank: float = 0.0) -> Scored:
    text = "x" * 50
    reading = Reading(
        SentenceRef(document, "t", 0), text[span[0] : span[1]], score, *span, "v", text, 0, "m", False, False
    )
    return Scored(reading, score + rank, "shard")


def test_order_is_by_reader_and_ranking_together() -> None:
    readings = [scored("a", (0, 3), 2.0), scored("b", (0, 3), 1.5, rank=1.0)]
    assert [item.reading.sentence.document_id for item in distinct(readings, 0.0)] == ["b", "a"]


def test_what_the_reader_rejects_comes_last_however_well_ranked() -> None:
    readings = [scored("a", (0, 3), -1.0, rank=9.0), scored("b", (0, 3), 0.5)]
    assert [item.reading.sentence.document_id for item in distinct(readings, 0.0)] == ["b", "a"]


def test_overlaps_in_one_document_are_one_answer() -> None:
    readings = [scored("a", (0, 5), 3), scored("a", (4, 8), 2), scored("a", (5, 8), 1), scored("b", (0, 5), 0.5)]
    kept = [(item.reading.sentence.document_id, item.reading.start) for item in distinct(readings, 0.0)]
    assert kept == [("a", 0), ("a", 5), ("b", 0)]


def test_empty_spans_are_no_answers() -> None:
    assert distinct([scored("a", (3, 3), 5)], 0.0) == []


def test_below_the_threshold_there_is_no_answer() -> None:
    chosen = distinct([scored("a", (0, 3), -0.5)], 0.0)
    result = assemble(chosen, RECORDS, manifest(), AskOptions())
    assert (result.answers, result.answerable) == ((), False)
    assert 0.5 < result.no_answer_score < 0.6


def test_no_answer_can_be_ruled_out() -> None:
    chosen = distinct([scored("a", (0, 3), -0.5)], 0.0)
    result = assemble(chosen, RECORDS, manifest(), AskOptions(no_answer=False))
    assert [answer.answer for answer in result.answers] == ["xxx"]
    assert not result.answerable


def test_top_k_min_score_and_ranks() -> None:
    chosen = distinct([scored("a", (0, 3), 4), scored("b", (0, 3), 3), scored("c", (0, 3), 0.1)], 0.0)
    result = assemble(chosen, RECORDS, manifest(), AskOptions(top_k=2))
    assert [(answer.rank, answer.document_id) for answer in result.answers] == [(1, "a"), (2, "b")]
    assert result.answers[0].metadata == {"of": "a"}
    sure = assemble(chosen, RECORDS, manifest(), AskOptions(min_score=0.85))
    assert [answer.document_id for answer in sure.answers] == ["a"]
    none = assemble(chosen, RECORDS, manifest(), AskOptions(min_score=0.99))
    assert (none.answers, none.answerable) == ((), False)


def test_nothing_read_is_surely_no_answer() -> None:
    result = assemble([], RECORDS, manifest(), AskOptions())
    assert (result.answers, result.answerable, result.no_answer_score) == ((), False, 1.0)
