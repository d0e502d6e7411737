"""Answers from readings: order, overlaps, thresholds."""

from __future__ import annotations

from qa_cluster.asking.assembly import CitedDocument, Scored, assemble
from qa_cluster.asking.assembly import distinct as distinct_spans
from qa_cluster.asking.questions import AskOptions
from qa_cluster.keys import SentenceRef
from qa_cluster.reading.readings import FoundSpan, SentenceReading
from qa_cluster.source_map import FIELD, write_map
from qa_cluster.types import Answer, Source
from tests.client.scripted_functions import manifest

RECORDS = {name: CitedDocument("v", f"title {name}", {"of": name}) for name in "abc"}


def read(
    document: str, *spans: tuple[int, int, float], sentence: int = 0, holder: int | None = None
) -> SentenceReading:
    """A sentence of a document, read with the 50 code points from 100 on; `spans` are start, end and score."""
    at = sentence if holder is None else holder
    found = tuple(FoundSpan(start, end, score, at) for start, end, score in spans)
    return SentenceReading(
        SentenceRef(document, "t", sentence), found, "v", "x" * 50, 100, "m", "shard", False, 1, False
    )


def distinct(
    readings: list[SentenceReading], ranked: dict[str, float] | None = None, threshold: float = 0.0
) -> list[Scored]:
    return distinct_spans(readings, ranked or {}, threshold)


def documents(scored: list[Scored]) -> list[str]:
    return [item.reading.sentence.document_id for item in scored]


def test_an_answer_has_the_section_and_the_place_of_its_first_character() -> None:
    source = write_map("a.rst", "rst", 1, [(0, ["A"]), (101, ["A", "B"])], unit="page", places=[(0, 1), (101, 2)])
    records = {"a": CitedDocument("v", "T", {FIELD: source, "of": "a"})}
    answers = assemble(
        distinct([read("a", (100, 103, 5.0), (104, 105, 4.0))]), records, manifest("1"), AskOptions(top_k=2)
    )
    assert [(answer.section, answer.source) for answer in answers.answers] == [
        (("A",), Source("a.rst", page=1)),
        (("A", "B"), Source("a.rst", page=2)),
    ]
    assert answers.answers[0].metadata == {"of": "a"}
    for answer in answers.answers:
        assert Answer.from_dict(answer.to_dict()) == answer


def test_order_is_by_reader_and_ranking_together() -> None:
    readings = [read("a", (100, 103, 2.0)), read("b", (100, 103, 1.5))]
    assert documents(distinct(readings)) == ["a", "b"]
    assert documents(distinct(readings, {"b:{t}:0": 1.0})) == ["b", "a"]


def test_what_the_reader_rejects_comes_last_however_well_ranked() -> None:
    readings = [read("a", (100, 103, -1.0)), read("b", (100, 103, 0.5))]
    assert documents(distinct(readings, {"a:{t}:0": 9.0})) == ["b", "a"]


def test_a_span_in_a_neighbour_earns_the_rank_of_that_neighbour() -> None:
    in_the_neighbour = read("a", (100, 103, 2.0), sentence=4, holder=5)
    readings = [in_the_neighbour, read("b", (100, 103, 1.5))]
    assert documents(distinct(readings, {"a:{t}:4": 5.0})) == ["a", "b"]
    assert documents(distinct(readings, {"a:{t}:4": 5.0, "b:{t}:0": 1.0})) == ["b", "a"]
    assert documents(distinct(readings, {"a:{t}:5": 0.6, "b:{t}:0": 1.0})) == ["a", "b"]
    answers = assemble(distinct(readings), RECORDS, manifest(), AskOptions()).answers
    assert [answer.passage_id for answer in answers] == ["a:5", "b:0"]


def test_overlaps_in_one_document_are_one_answer_whichever_sentence_they_were_read_for() -> None:
    readings = [
        read("a", (100, 105, 3.0), (110, 112, 0.7)),
        read("a", (104, 108, 2.0), (105, 108, 1.0), sentence=1),
        read("b", (100, 105, 0.5)),
    ]
    kept = [(item.reading.sentence.document_id, item.span.start) for item in distinct(readings)]
    assert kept == [("a", 100), ("a", 105), ("a", 110), ("b", 100)]


def test_further_spans_of_one_sentence_are_answers_on_the_same_scale() -> None:
    readings = [read("a", (100, 103, 5.0), (110, 113, 2.0)), read("b", (100, 103, 3.0))]
    chosen = distinct(readings)
    assert [item.span.score for item in chosen] == [5.0, 3.0, 2.0]
    answers = assemble(chosen, RECORDS, manifest(), AskOptions(top_k=3)).answers
    assert [answer.score for answer in answers] == sorted((answer.score for answer in answers), reverse=True)
    assert [(answer.start, answer.document_id) for answer in answers] == [(100, "a"), (100, "b"), (110, "a")]


def test_empty_spans_are_no_answers() -> None:
    assert distinct([read("a", (103, 103, 5.0)), read("b")]) == []
    assert read("b").score < -50


def test_below_the_threshold_there_is_no_answer() -> None:
    chosen = distinct([read("a", (100, 103, -0.5))])
    result = assemble(chosen, RECORDS, manifest(), AskOptions())
    assert (result.answers, result.answerable) == ((), False)
    assert 0.5 < result.no_answer_score < 0.6


def test_no_answer_can_be_ruled_out() -> None:
    chosen = distinct([read("a", (100, 103, -0.5))])
    result = assemble(chosen, RECORDS, manifest(), AskOptions(no_answer=False))
    assert [answer.answer for answer in result.answers] == ["xxx"]
    assert not result.answerable


def test_top_k_min_score_and_ranks() -> None:
    chosen = distinct([read(name, (100, 103, score)) for name, score in (("a", 4.0), ("b", 3.0), ("c", 0.1))])
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
