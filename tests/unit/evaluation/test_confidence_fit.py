"""The fitted limits of `sure` and `likely` fulfil their promise on the answers of the fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.confidence_fit import (
    MIN_ANSWERS,
    MIN_SURE,
    SURE_RIGHT,
    ConfidenceLimits,
    fit_confidence,
)
from qa_cluster.reading.manifest import Calibration
from tests.yardstick.confidence import fit_from_report


def drawn(count: int, seed: int = 0) -> tuple[list[float], list[bool]]:
    """Answers that are right as often as their scores say."""
    random = np.random.default_rng(seed)
    scores = random.uniform(0, 1, count)
    return scores.tolist(), (random.uniform(0, 1, count) < scores).tolist()


def test_calibrated_scores_get_the_limits_of_the_theory() -> None:
    found = fit_confidence(*drawn(20_000))
    # the scores are uniform, so scores above 2 * .92 - 1 have the mean .92
    assert found.sure == pytest.approx(2 * SURE_RIGHT - 1, abs=0.02)
    assert found.likely == pytest.approx(0.5, abs=0.05)
    assert found.sure_answers + found.likely_answers + found.unsure_answers == 20_000
    assert found.sure_right is not None and found.likely_right is not None and found.unsure_right is not None
    assert found.sure_right >= SURE_RIGHT > found.likely_right > 0.5 > found.unsure_right


def test_overconfident_scores_get_higher_limits() -> None:
    scores, right = drawn(20_000)
    bold = [score**0.5 for score in scores]
    assert fit_confidence(bold, right).sure == pytest.approx((2 * SURE_RIGHT - 1) ** 0.5, abs=0.02)


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=MIN_ANSWERS, max_size=120))
def test_the_promise_of_each_word(pairs: list[tuple[int, bool]]) -> None:
    scores, right = [number / 20 for number, _ in pairs], [is_right for _, is_right in pairs]
    found = fit_confidence(scores, right)
    assert 0 <= found.likely <= found.sure <= 1
    if found.sure < 1:
        sure = [is_right for score, is_right in zip(scores, right, strict=True) if score >= found.sure]
        assert len(sure) >= MIN_SURE and sum(sure) >= SURE_RIGHT * len(sure)

    def errors(limit: float) -> int:
        return sum((score >= limit) != is_right for score, is_right in zip(scores, right, strict=True))

    if found.likely < found.sure:
        assert errors(found.likely) == min(errors(limit) for limit in [*scores, 2.0])


def test_answers_that_are_never_right_are_unsure() -> None:
    scores, _ = drawn(200)
    found = fit_confidence(scores, [False] * 200)
    assert (found.sure, found.likely) == (1.0, 1.0)
    assert (found.unsure_answers, found.unsure_right, found.sure_right, found.likely_right) == (200, 0.0, None, None)


def test_the_word_sure_needs_enough_answers() -> None:
    scores = [0.9] * (MIN_SURE - 1) + [0.1] * 60
    found = fit_confidence(scores, [score > 0.5 for score in scores])
    assert found.sure == 1.0
    assert found.likely == 0.9
    assert found.likely_right == 1.0


def test_the_limits_go_into_a_calibration() -> None:
    limits = ConfidenceLimits(0.8, 0.4, 1, 1.0, 1, 1.0, 1, 0.0)
    assert limits.of(Calibration(0.3, -1.0)) == Calibration(0.3, -1.0, sure=0.8, likely=0.4)


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InvalidInput, match="3 scores, but 2 judgements"):
        fit_confidence([0.1, 0.2, 0.3], [True, False])
    with pytest.raises(
        InvalidInput, match=f"{MIN_ANSWERS - 1} answers were judged, a fit needs at least {MIN_ANSWERS}"
    ):
        fit_confidence(*drawn(MIN_ANSWERS - 1))


def test_the_report_of_an_evaluation_is_read() -> None:
    scores, right = drawn(300)
    rows: list[dict[str, Any]] = [
        {
            "answerable": True,
            "answers": [{"probability": score, "right": is_right}, {"probability": 0.0, "right": True}],
        }
        for score, is_right in zip(scores, right, strict=True)
    ]
    rows += [
        {"answerable": False, "answers": [{"probability": 0.9, "right": False}]},
        {"answerable": True, "answers": []},
    ]
    assert fit_from_report({"answers": {"plain": rows}}) == fit_confidence(scores, right)
    with pytest.raises(InvalidInput, match="no answers to plain questions"):
        fit_from_report({"plain": {}})


def test_the_word_of_a_probability() -> None:
    calibration = replace(Calibration(1.0, 0.0), sure=0.8, likely=0.45)
    words = [calibration.confidence(value) for value in (1.0, 0.8, 0.79, 0.45, 0.44, 0.0)]
    assert words == ["sure", "sure", "likely", "likely", "unsure", "unsure"]
