"""From the spans of several sentences to answers, or to none.

Each test is a fault of an earlier reader, which its docstring names.
"""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.asking.answers.assembly import AssembledAnswers, CitedDocument, assemble, choose, orders
from qa_cluster.asking.questions import AskOptions
from qa_cluster.reading.manifest import Manifest
from qa_cluster.reading.readings import SentenceReading
from tests.harness.readings import reading

RECORDS = {name: CitedDocument("v", "", {}) for name in "abcd"}


def asked(
    readings: list[SentenceReading], manifest: Manifest, options: AskOptions, ranked: dict[str, float] | None = None
) -> AssembledAnswers:
    chosen = choose(orders(readings, ranked or {}, manifest.rank_weight), manifest.calibration)
    return assemble(chosen, RECORDS, manifest, options)


@pytest.mark.parametrize("readings", [[], [reading("a")], [reading("a"), reading("b")]])
def test_nothing_found_is_no_answer_and_no_crash(manifest: Manifest, readings: list[SentenceReading]) -> None:
    """Haystack: the removal of overlaps took `answers[0]` of a list that could be empty."""
    result = asked(readings, manifest, AskOptions(no_answer=False))
    assert (result.answers, result.answerable, result.no_answer_score) == ((), False, 1.0)


def test_the_surer_document_comes_first(manifest: Manifest) -> None:
    """Haystack #739, #1220: scores were shares within a document, so they could not be compared."""
    readings = [reading("a", (100, 103, 1.0)), reading("b", (100, 103, 22.0))]
    result = asked(readings, manifest, AskOptions(top_k=2))
    assert [answer.document_id for answer in result.answers] == ["b", "a"]


def test_probabilities_rise_with_the_score_and_stay_below_one(manifest: Manifest) -> None:
    """Haystack #1522, #2916: it presented sigmoid(0.1 x logit) as a probability."""
    shown = [manifest.calibration.probability(score) for score in np.linspace(-1e4, 1e4, 101)]
    assert shown == sorted(shown)
    assert all(0 <= value <= 1 for value in shown)


def test_every_answer_has_a_score_and_there_is_more_than_one(manifest: Manifest) -> None:
    """txtai #406, #633: one answer only, its score hidden."""
    readings = [reading("a", (100, 103, 9.0), (105, 108, 4.0)), reading("b", (100, 103, 6.0))]
    result = asked(readings, manifest, AskOptions(top_k=5))
    assert [(answer.document_id, answer.start, answer.logit) for answer in result.answers] == [
        ("a", 100, 9.0),
        ("b", 100, 6.0),
        ("a", 105, 4.0),
    ]


@pytest.mark.parametrize(("scores", "answerable"), [((-9.0, 9.0), True), ((9.0, -9.0), True), ((-9.0, -3.0), False)])
def test_no_answer_is_when_none_of_all_texts_has_one(
    manifest: Manifest, scores: tuple[float, float], answerable: bool
) -> None:
    """transformers #14277, #18719: it decided no-answer window by window; Haystack: by a product of (1 - score)."""
    readings = [reading(name, (100, 103, score)) for name, score in zip("ab", scores, strict=True)]
    result = asked(readings, manifest, AskOptions(), {"a:{t}:0": 5.0, "b:{t}:0": 0.0})
    assert result.answerable is answerable
    assert bool(result.answers) is answerable


@pytest.mark.parametrize("no_answer", [True, False])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_no_answer_is_never_one_of_the_answers(manifest: Manifest, top_k: int, no_answer: bool) -> None:
    """Haystack: "no answer" took a place among the top k, or made them k + 1; transformers #2623: an empty string."""
    readings = [reading(name, (100, 103, 5.0), (104, 104, 4.0)) for name in "abcd"]
    options = AskOptions(top_k=top_k, no_answer=no_answer)
    result = asked(readings, manifest, options)
    assert len(result.answers) == top_k
    assert all(answer.answer for answer in result.answers)
