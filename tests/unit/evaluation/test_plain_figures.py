"""The figures of plain questions are the same as figures counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.evaluation.choice_fit import probabilities
from qa_cluster.evaluation.plain_figures import (
    GivenAnswers,
    GivenSpan,
    by_label,
    costs,
    judged,
    plain_figures,
    plain_rows,
)
from qa_cluster.evaluation.plain_questions import PlainQuestion
from qa_cluster.reading.manifest import Calibration


def question(answer: str = "", kind: str = "who") -> PlainQuestion:
    return PlainQuestion("Who?", (answer,) if answer else (), labels={"kind": kind})


def told(*spans: tuple[str, float], answerable: bool = True, read: int = 1, ms: float = 1.0) -> GivenAnswers:
    return GivenAnswers(tuple(GivenSpan(text, score, "d") for text, score in spans), answerable, read, ms)


CASES = [
    (question("Ada"), told(("Ada", 0.9), read=4, ms=10)),
    (question("Ada"), told(("Bob", 0.85), ("Eve", 0.1), ("Ada", 0.05), read=8, ms=30)),
    (question("Ada"), told(("Bob", 0.4), ("Ada", 0.3), read=8, ms=20)),
    (question("Ada"), told(("Ada", 0.2), answerable=False)),
    (question("Ada", "when"), told(answerable=False)),
    (question(), told(("Bob", 0.7))),
    (question(), told(("Bob", 0.3))),
    (question(), told(("Bob", 0.05), answerable=False)),
]
QUESTIONS, GIVEN = [case[0] for case in CASES], [case[1] for case in CASES]


def test_shares_count_the_given_answers() -> None:
    found = plain_figures(QUESTIONS, GIVEN)
    shares = {
        "right_first": 1 / 5,
        "right_in_three": 3 / 5,
        "told_none": 2 / 5,
        "exact_match": 1 / 5,
        "f1": 1 / 5,
        "wrong_and_sure": 2 / 8,
        "answered_without": 2 / 3,
        "answered_without_sure": 1 / 3,
        "very_sure_right": 1 / 2,
    }
    assert {name: getattr(found, name).value for name in shares} == pytest.approx(shares)
    assert (found.questions, found.without_answer, found.very_sure) == (8, 3, 2)


def test_the_area_under_risk_and_coverage_takes_the_best_spans_by_score() -> None:
    found = plain_figures(QUESTIONS, GIVEN).risk_area
    wrong = [0, 1, 1, 1, 1, 0, 1]  # scores .9 .85 .7 .4 .3 .2 .05
    expected = sum(sum(wrong[:k]) / k for k in range(1, 8)) / 7
    assert found is not None
    assert found.value == pytest.approx(expected)
    assert found.low <= found.value <= found.high


def test_the_calibration_error_compares_scores_with_right_answers() -> None:
    sure_and_right = plain_figures([question("Ada")] * 20, [told(("Ada", 1.0))] * 20)
    sure_and_wrong = plain_figures([question("Ada")] * 20, [told(("Bob", 0.75))] * 20)
    assert (sure_and_right.calibration_error, sure_and_wrong.calibration_error) == (0.0, 0.75)
    assert sure_and_right.calibration_error_by_chance == 0.0
    assert 0.05 < (sure_and_wrong.calibration_error_by_chance or 0) < 0.2


def test_a_figure_without_questions_is_none() -> None:
    found = plain_figures([question()], [told(answerable=False)])
    assert found.right_first is None
    assert found.very_sure_right is None
    assert found.risk_area is None
    assert (found.calibration_error, found.calibration_error_by_chance) == (None, None)
    assert found.answered_without is not None
    assert found.answered_without.value == 0.0


def test_figures_by_label_come_most_frequent_first() -> None:
    found = by_label(QUESTIONS, GIVEN, "kind")
    assert [(value, figures.questions) for value, figures in found.items()] == [("who", 7), ("when", 1)]
    assert list(by_label(QUESTIONS, GIVEN, "colour")) == [""]


def test_the_cost_is_sentences_and_time() -> None:
    found = costs(GIVEN)
    assert found["sentences_read"]["value"] == pytest.approx(25 / 8)
    assert found["milliseconds"]["p50"] == 1.0


def test_rows_contain_the_answers_to_every_question() -> None:
    rows = plain_rows(QUESTIONS, GIVEN)
    assert [row["right"] for row in rows] == [True, False, False, False, False, False, False, True]
    assert rows[5]["right_in_three"] is None
    assert rows[1]["answers"] == [
        {"text": "Bob", "probability": 0.85, "document_id": "d", "also_in": (), "right": False},
        {"text": "Eve", "probability": 0.1, "document_id": "d", "also_in": (), "right": False},
        {"text": "Ada", "probability": 0.05, "document_id": "d", "also_in": (), "right": True},
    ]


def test_an_answer_is_right_if_one_of_its_places_is_in_the_expected_document() -> None:
    asked = PlainQuestion("Who?", ("Ada",), document="wanted.txt")
    elsewhere = GivenAnswers((GivenSpan("Ada", 0.9, "other.txt"),), answerable=True)
    there_too = GivenAnswers((GivenSpan("Ada", 0.9, "other.txt", ("texts/wanted.txt",)),), answerable=True)
    shares = [plain_figures([asked], [found]).right_first for found in (elsewhere, there_too)]
    assert [share.value for share in shares if share] == [0.0, 1.0]


def test_orders_are_recovered_from_shown_probabilities() -> None:
    calibration, orders = Calibration(0.4, -1.5), np.array([3.0, 1.0, -2.0])
    shown = probabilities(orders, calibration)
    spans = tuple(
        GivenSpan(text, round(value, 6), "d") for text, value in zip(("Bob", "Ada", "Eve"), shown, strict=True)
    )
    (found,) = judged([question("Ada")], [GivenAnswers(spans, True, no_answer=round(1 - sum(shown), 6))], calibration)
    assert found.orders == pytest.approx(orders, abs=1e-3)
    assert (found.right.tolist(), found.answered) == ([False, True, False], True)
    (nothing,) = judged([question()], [GivenAnswers((), answerable=False)], calibration)
    assert (len(nothing.orders), nothing.answered) == (0, False)
