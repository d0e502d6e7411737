"""Choosing among spans: order, overlaps, same answers, and probabilities that add up to 1."""

from __future__ import annotations

from math import exp

import pytest

from qa_cluster.asking.answers.assembly import MergedAnswer, choose, orders, same_answer
from qa_cluster.reading.manifest import Calibration
from qa_cluster.reading.readings import SentenceReading
from tests.harness.readings import reading

PLAIN = Calibration(1.0, 0.0)


def choices(
    readings: list[SentenceReading], ranked: dict[str, float] | None = None, weight: float = 1.0
) -> tuple[MergedAnswer, ...]:
    return choose(orders(readings, ranked or {}, weight), PLAIN).choices


def documents(found: tuple[MergedAnswer, ...]) -> list[str]:
    return [choice.best.reading.sentence.document_id for choice in found]


def test_order_is_by_reader_and_ranking_together() -> None:
    readings = [reading("a", (100, 103, 2.0)), reading("b", (100, 103, 1.5))]
    assert documents(choices(readings)) == ["a", "b"]
    assert documents(choices(readings, {"b:{t}:0": 1.0})) == ["b", "a"]
    assert documents(choices(readings, {"b:{t}:0": 1.0}, weight=0.3)) == ["a", "b"]


def test_only_distances_of_ranking_scores_count() -> None:
    readings = [reading("a", (100, 103, 2.0)), reading("b", (100, 103, 1.5))]
    near = choose(orders(readings, {"a:{t}:0": 3.0, "b:{t}:0": 2.0}, 0.3), PLAIN)
    far = choose(orders(readings, {"a:{t}:0": 53.0, "b:{t}:0": 52.0}, 0.3), PLAIN)
    assert [choice.probability for choice in near.choices] == pytest.approx(
        [choice.probability for choice in far.choices]
    )


def test_a_span_in_a_neighbour_counts_with_the_rank_of_the_neighbour_if_it_has_one() -> None:
    in_the_neighbour = reading("a", (100, 103, 2.0), sentence=4, holder=5)
    readings = [in_the_neighbour, reading("b", (100, 103, 1.5))]
    assert documents(choices(readings, {"a:{t}:4": 5.0, "b:{t}:0": 1.0})) == ["a", "b"]
    assert documents(choices(readings, {"a:{t}:4": 5.0, "a:{t}:5": 0.0, "b:{t}:0": 1.0})) == ["b", "a"]
    assert documents(choices(readings, {"a:{t}:5": 0.6, "b:{t}:0": 1.0})) == ["a", "b"]


def test_the_best_of_overlapping_spans_in_a_document_is_chosen() -> None:
    readings = [
        reading("a", (100, 105, 3.0), (110, 112, 0.7)),
        reading("a", (104, 108, 2.0), (105, 108, 1.0), sentence=1),
        reading("b", (100, 105, 0.5)),
    ]
    kept = [(choice.best.reading.sentence.document_id, choice.best.span.start) for choice in choices(readings)]
    assert kept == [("a", 100), ("a", 105), ("a", 110), ("b", 100)]


def test_empty_spans_are_no_answers() -> None:
    assert choices([reading("a", (103, 103, 5.0)), reading("b")]) == ()
    found = choose([], PLAIN)
    assert found.none == 1.0 and not found.reaches(-1e9, PLAIN)
    assert reading("b").score < -50


def test_odds_against_no_answer_follow_the_calibration() -> None:
    readings = [reading("a", (100, 103, 2.0)), reading("b", (100, 103, -1.0))]
    found = choose(orders(readings, {}, 0.3), Calibration(0.5, -0.25))
    assert [choice.probability / found.none for choice in found.choices] == pytest.approx([exp(0.75), exp(-0.75)])
    assert found.none + sum(choice.probability for choice in found.choices) == pytest.approx(1.0)
    assert found.reaches(2.0, Calibration(0.5, -0.25))
    assert not found.reaches(2.01, Calibration(0.5, -0.25))


def test_places_with_the_same_words_are_one_answer_with_their_total_probability() -> None:
    apart = choose(orders([reading(name, (100, 103, 1.0)) for name in "abc"], {}, 0.3), PLAIN)
    same = choose(orders([reading(name, (100, 103, 1.0), words="x") for name in "abc"], {}, 0.3), PLAIN)
    (choice,) = same.choices
    assert choice.probability == pytest.approx(sum(each.probability for each in apart.choices))
    assert same.none == pytest.approx(apart.none)
    assert [place.reading.sentence.document_id for place in choice.places] == ["a", "b", "c"]


def test_several_equal_answers_can_rank_before_one_better_answer() -> None:
    readings = [reading("z", (100, 103, 1.5)), *(reading(name, (100, 103, 1.0), words="x") for name in "abc")]
    assert documents(choices(readings)) == ["a", "z"]


@pytest.mark.parametrize("score", [1e4, -1e4])
def test_extreme_scores_give_probabilities(score: float) -> None:
    found = choose(orders([reading("a", (100, 103, score))], {}, 0.3), PLAIN)
    assert found.choices[0].probability == pytest.approx(float(score > 0))
    assert found.none == pytest.approx(float(score < 0))
    assert found.reaches(0.0, PLAIN) is (score > 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The Senate", "the Senate,"),
        ("Valkey", "VALKEY"),
        ("two  thirds", "two\nthirds"),
        ("“Apache License”", "Apache License"),
        ("cafe\u0301s", "cafés"),
    ],
)
def test_other_spellings_of_the_same_answer(one: str, other: str) -> None:
    assert same_answer(one) == same_answer(other)


@pytest.mark.parametrize(
    ("one", "other"), [("-f", "-F"), ("IT", "it"), (".bashrc", "bashrc"), ("the", "a"), ("$!", "$@"), ("10", "1.0")]
)
def test_a_text_that_may_mean_something_else_is_another_answer(one: str, other: str) -> None:
    assert same_answer(one) != same_answer(other)
