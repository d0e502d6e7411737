"""Exact match and F1 follow SQuAD's definition."""

from __future__ import annotations

import pytest

from qa_cluster.evaluation.scoring import exact_match, f1, normalise


def test_normalise_drops_case_punctuation_articles_and_spaces() -> None:
    assert normalise("  The  Cat's\n(a) hat, an U.S. thing. ") == "cats hat us thing"
    assert normalise("theatre") == "theatre"


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "overlap"),
    [
        ("the 308", ["308"], 1.0, 1.0),
        ("308 points", ["308"], 0.0, 2 / 3),
        ("a b c", ["b c d", "x"], 0.0, 0.8),
        ("dog", ["cat"], 0.0, 0.0),
        ("x x", ["x"], 0.0, 2 / 3),
        ("", [], 1.0, 1.0),
        ("anything", [], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),
        ("", ["cat"], 0.0, 0.0),
    ],
)
def test_scores(prediction: str, answers: list[str], exact: float, overlap: float) -> None:
    assert exact_match(prediction, answers) == exact
    assert f1(prediction, answers) == pytest.approx(overlap)
