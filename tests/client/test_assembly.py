"""Answers from readings: their number, their offsets, the thresholds, and "no answer"."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from qa_cluster.asking.answers.assembly import (
    MAX_PLACES,
    AssembledAnswers,
    ChosenAnswers,
    CitedDocument,
    assemble,
    choose,
    cited,
    orders,
    parse_cited_document,
    with_earlier,
)
from qa_cluster.documents.source_map import FIELD, write_map
from qa_cluster.options.questions import AskOptions
from qa_cluster.reading.plan import StageOptions
from qa_cluster.types import Answer, Source
from tests.client.scripted_functions import manifest
from tests.harness.readings import reading

RECORDS = {name: CitedDocument("v", f"title {name}", {"of": name}) for name in "abcdefgh"}
STAGE = StageOptions().stage(manifest(), 16, stops_early=True)


def chosen(*readings: object) -> ChosenAnswers:
    return choose(orders(readings, {}, 0.3), manifest().calibration)  # type: ignore[arg-type]


def assembled(found: ChosenAnswers, **options: object) -> AssembledAnswers:
    return assemble(found, RECORDS, STAGE, AskOptions(**options))  # type: ignore[arg-type]


def test_an_answer_has_the_section_and_the_position_of_its_first_character() -> None:
    source = write_map("a.rst", "rst", 1, [(0, ["A"]), (101, ["A", "B"])], unit="page", places=[(0, 1), (101, 2)])
    record = parse_cited_document([b"v", b"T", orjson.dumps({FIELD: source, "of": "a"})])
    assert record is not None
    records = {"a": record}
    found = chosen(reading("a", (100, 103, 5.0), (104, 105, 4.0)))
    answers = assemble(found, records, STAGE, AskOptions(top_k=2))
    assert [(answer.section, answer.source) for answer in answers.answers] == [
        (("A",), Source("a.rst", page=1)),
        (("A", "B"), Source("a.rst", page=2)),
    ]
    assert answers.answers[0].metadata == {"of": "a"}
    for answer in answers.answers:
        assert Answer.from_dict(answer.to_dict()) == answer


def test_the_limits_of_the_last_stage_decide_the_confidence_of_an_answer() -> None:
    found = chosen(reading("a", (100, 103, 5.0), (104, 105, 4.0), (110, 112, 2.0)))
    first, second, _ = (choice.probability for choice in found.choices)
    calibration = replace(STAGE.calibration, sure=first, likely=second)
    answers = assemble(found, RECORDS, replace(STAGE, calibration=calibration), AskOptions(top_k=3)).answers
    assert [answer.confidence for answer in answers] == ["sure", "likely", "unsure"]


def test_the_score_of_an_earlier_stage_for_the_same_text_is_added() -> None:
    earlier = orders([reading("a", (100, 103, 4.0), (110, 120, 2.0))], {}, 0.0)
    spans = orders(
        [reading("a", (100, 103, 1.0), (112, 115, 1.0), (103, 106, 1.0)), reading("b", (100, 103, 1.0))], {}, 0.0
    )
    found = with_earlier(spans, earlier, 0.5)
    same, overlapping, neither = 1 + 0.5 * 4, 1 + 0.5 * (2 - 1), 1 + 0.5 * -6
    assert [item.order for item in found] == [same, overlapping, neither, neither]
    assert [item.span for item in found] == [item.span for item in spans]
    assert with_earlier(spans, earlier, 0.0) == spans


def test_an_answer_and_its_other_mentions_have_the_urls_of_their_documents() -> None:
    pages = {name: {"url": f"https://docs.example.org/{name}.html"} for name in "ab"} | {"c": {"url": "javascript:x"}}
    records = {name: replace(RECORDS[name], metadata=pages[name]) for name in "abc"}
    found = chosen(*(reading(name, (100, 103, 4.0), words="x") for name in "abc"))
    (answer,) = assemble(found, records, STAGE, AskOptions()).answers
    assert [answer.url, *(mention.url for mention in answer.also_in)] == [pages["a"]["url"], pages["b"]["url"], ""]
    assert Answer.from_dict(answer.to_dict()) == answer
    without = {name: value for name, value in answer.to_dict().items() if name != "url"}
    assert Answer.from_dict(without).url == ""


def test_the_passage_is_the_sentence_that_contains_the_answer() -> None:
    in_the_neighbour = reading("a", (100, 103, 2.0), sentence=4, holder=5)
    answers = assembled(chosen(in_the_neighbour, reading("b", (100, 103, 1.5)))).answers
    assert [answer.passage_id for answer in answers] == ["a:5", "b:0"]


def test_the_same_answer_from_several_documents_is_one_answer_with_all_mentions() -> None:
    found = chosen(
        *(reading(name, (100, 103, score), words="x") for name, score in (("b", 2.0), ("a", 4.0), ("c", 1.0)))
    )
    (answer,) = assembled(found).answers
    assert (answer.document_id, [mention.document_id for mention in answer.also_in]) == ("a", ["b", "c"])
    mention = answer.also_in[0]
    assert (mention.passage_id, mention.title, mention.start, mention.end) == ("b:0", "title b", 100, 103)
    assert answer.shards == ("shard",) * 3
    assert Answer.from_dict(answer.to_dict()) == answer


def test_the_number_of_mentions_is_limited() -> None:
    found = chosen(*(reading(name, (100, 103, 4.0), words="x") for name in RECORDS))
    assert len(cited(found, AskOptions())) == MAX_PLACES
    assert len(assembled(found).answers[0].also_in) == MAX_PLACES - 1


def test_a_mention_in_a_changed_document_is_left_out() -> None:
    found = chosen(*(reading(name, (100, 103, score), words="x") for name, score in (("a", 4.0), ("b", 2.0))))
    changed = {**RECORDS, "a": replace(RECORDS["a"], version="w")}
    (answer,) = assemble(found, changed, STAGE, AskOptions()).answers
    assert (answer.document_id, answer.also_in) == ("b", ())
    gone = assemble(found, {}, STAGE, AskOptions())
    assert (gone.answers, gone.answerable) == ((), False)


def test_the_scores_add_up_to_one_and_follow_the_order_of_answers() -> None:
    found = chosen(reading("a", (100, 103, 5.0), (110, 113, 2.0)), reading("b", (100, 103, 3.0)))
    result = assembled(found, top_k=9)
    assert [(answer.start, answer.document_id) for answer in result.answers] == [(100, "a"), (100, "b"), (110, "a")]
    scores = [answer.score for answer in result.answers]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) + result.no_answer_score == pytest.approx(1.0, abs=1e-5)


def test_below_the_threshold_there_is_no_answer() -> None:
    result = assembled(chosen(reading("a", (100, 103, -0.5))))
    assert (result.answers, result.answerable) == ((), False)
    assert 0.5 < result.no_answer_score < 0.6


def test_all_mentions_of_an_answer_count_for_the_threshold() -> None:
    below = [reading(name, (100, 103, -0.5), words="x") for name in "ab"]
    assert not assembled(chosen(below[0])).answerable
    assert assembled(chosen(*below)).answerable


def test_an_option_excludes_the_result_no_answer() -> None:
    result = assembled(chosen(reading("a", (100, 103, -0.5), words="x")), no_answer=False)
    assert [answer.answer for answer in result.answers] == ["xxx"]
    assert not result.answerable


def test_top_k_min_score_and_ranks() -> None:
    found = chosen(*(reading(name, (100, 103, score)) for name, score in (("a", 4.0), ("b", 1.0), ("c", 0.1))))
    result = assembled(found, top_k=2)
    assert [(answer.rank, answer.document_id) for answer in result.answers] == [(1, "a"), (2, "b")]
    assert result.answers[0].metadata == {"of": "a"}
    assert [answer.document_id for answer in assembled(found, top_k=3, min_score=0.5).answers] == ["a"]
    none = assembled(found, min_score=0.99)
    assert (none.answers, none.answerable) == ((), False)


@pytest.mark.parametrize("no_answer", [True, False])
def test_without_readings_the_score_of_no_answer_is_1(no_answer: bool) -> None:
    for readings in ([], [reading("a"), reading("b")]):
        result = assembled(chosen(*readings), no_answer=no_answer)
        assert (result.answers, result.answerable, result.no_answer_score) == ((), False, 1.0)
