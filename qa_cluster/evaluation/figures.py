"""Figures of answers to a question set: exact match, F1, no-answer accuracy and recall, per type, with intervals.

If every question of the set has an answer, the best span is judged, as in SQuAD 1.1. Otherwise the returned answer is
judged, as in SQuAD 2.0: "no answer" if the best span is below the reader's threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .examples import Example
from .intervals import Interval, difference_interval, mean_interval, mean_intervals
from .question_types import QUESTION_TYPES, question_type
from .reliability import (
    RIGHT,
    Bin,
    Coverage,
    calibration_error_by_chance,
    expected_calibration_error,
    reliability,
    risk_coverage,
)
from .scoring import exact_match, f1

DEPTHS = (1, 5, 8, 20)

_Figures = TypeVar("_Figures")


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """The answer given to a question.

    Attributes:
        text: the best span; empty if there is no span.
        answerable: whether the best span was returned as the answer. If it is false, "no answer" was returned.
        probability: the probability of the best span; None if there is no span.
    """

    text: str
    answerable: bool = True
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The result for every question, in the order of the questions.

    Attributes:
        exact_match, f1: the scores of the judged answers, 0 to 1.
        refused: whether "no answer" was returned.
    """

    exact_match: list[float]
    f1: list[float]
    refused: list[bool]


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over the questions of a set.

    Attributes:
        no_answer_accuracy: share of the questions without an answer that got "no answer"; None if all questions have an
            answer.
        refused: share of the questions with an answer that got "no answer".
    """

    questions: int
    exact_match: Interval
    f1: Interval
    no_answer_accuracy: Interval | None
    refused: float


@dataclass(frozen=True, slots=True)
class Recall:
    """The share of the questions for which one of the first 1, 5, 8 or 20 ranked sentences has an answer.

    `recall` has one share for each of these four depths (`DEPTHS`). Its keys are the depths as text.
    """

    questions: int
    recall: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class Trust:
    """Compares the probabilities of given answers with the shares of right answers. An answer with an F1 of 0.5 or more
    is right.

    Attributes:
        calibration_error_by_chance: the error that perfect probabilities would have with so few answers.
    """

    calibration_error: float
    calibration_error_by_chance: float
    bins: list[Bin]
    coverage: list[Coverage]


def judge(examples: Sequence[Example], given: Sequence[GivenAnswer]) -> Verdicts:
    """Compare the given answers with the right answers.

    If a question of the set has no answer, each "no answer" is judged as an empty text. Otherwise, the best span of
    every question is judged.
    """
    may_refuse = any(not example.answers for example in examples)
    verdicts = Verdicts([], [], [])
    for example, found in zip(examples, given, strict=True):
        text = found.text if found.answerable or not may_refuse else ""
        verdicts.exact_match.append(exact_match(text, example.answers))
        verdicts.f1.append(f1(text, example.answers))
        verdicts.refused.append(not found.answerable)
    return verdicts


def figures(examples: Sequence[Example], verdicts: Verdicts, *, seed: int = 0) -> Figures:
    """Return the means of the verdicts with their intervals. `seed` is the seed of the bootstrap."""
    columns = list(zip(verdicts.exact_match, verdicts.f1, strict=True))
    exact, overlap = mean_intervals(columns, seed=seed)
    pairs = list(zip(examples, verdicts.refused, strict=True))
    without = [float(refused) for example, refused in pairs if not example.answers]
    wrongly = [float(refused) for example, refused in pairs if example.answers]
    return Figures(
        questions=len(examples),
        exact_match=exact,
        f1=overlap,
        no_answer_accuracy=mean_interval(without, seed=seed) if without else None,
        refused=sum(wrongly) / len(wrongly) if wrongly else 0.0,
    )


def figures_by_type(examples: Sequence[Example], verdicts: Verdicts, *, seed: int = 0) -> dict[str, Figures]:
    """Return the figures of each question type that occurs, by the name of the type (`QUESTION_TYPES`)."""

    def of(rows: list[int]) -> Figures:
        part = Verdicts(
            [verdicts.exact_match[row] for row in rows],
            [verdicts.f1[row] for row in rows],
            [verdicts.refused[row] for row in rows],
        )
        return figures([examples[row] for row in rows], part, seed=seed)

    return _by_type(examples, of)


def recall(ranks: Sequence[int | None], *, seed: int = 0) -> Recall:
    """Return the share of the questions with an answer in the first sentences, for each depth of `DEPTHS`.

    Args:
        ranks: for each question, the rank (from 0) of the first sentence with an answer; None if no such sentence was
            found.
    """
    columns = [[float(rank is not None and rank < depth) for depth in DEPTHS] for rank in ranks]
    found = mean_intervals(columns, seed=seed)
    return Recall(len(ranks), {str(depth): interval for depth, interval in zip(DEPTHS, found, strict=True)})


def recall_by_type(examples: Sequence[Example], ranks: Sequence[int | None], *, seed: int = 0) -> dict[str, Recall]:
    """Return the recall of each question type that occurs, by the name of the type (`QUESTION_TYPES`)."""
    return _by_type(examples, lambda rows: recall([ranks[row] for row in rows], seed=seed))


def recall_difference(
    first: Sequence[int | None], second: Sequence[int | None], *, seed: int = 0
) -> dict[str, Interval]:
    """Return the recall of `first` minus the recall of `second`, for each depth of `DEPTHS` (as text).

    `first` and `second` are results of two rankings for the same questions, in the form of the `ranks` of `recall`.
    """
    return {
        str(depth): difference_interval(
            [float(rank is not None and rank < depth) for rank in first],
            [float(rank is not None and rank < depth) for rank in second],
            seed=seed,
        )
        for depth in DEPTHS
    }


def first_place(sentences: Sequence[str], gold: frozenset[str]) -> int | None:
    """Return the rank, from 0, of the first of the ranked `sentences` that is in `gold`; None if no sentence is.

    `gold` has the texts of the sentences that contain an answer.
    """
    return next((place for place, sentence in enumerate(sentences) if sentence in gold), None)


def trust(given: Sequence[GivenAnswer], examples: Sequence[Example]) -> Trust | None:
    """Measure how well the probabilities of the best spans agree with the shares of right spans.

    None if no span has a probability.
    """
    pairs = [
        (found.probability, bool(example.answers) and f1(found.text, example.answers) >= RIGHT)
        for found, example in zip(given, examples, strict=True)
        if found.probability is not None
    ]
    if not pairs:
        return None
    probabilities, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Trust(
        expected_calibration_error(probabilities, right),
        calibration_error_by_chance(probabilities),
        reliability(probabilities, right),
        risk_coverage(probabilities, right),
    )


def answer_rows(
    examples: Sequence[Example], given: Sequence[GivenAnswer], verdicts: Verdicts
) -> list[dict[str, object]]:
    """Return the answer given to every question and its scores, as JSON-ready values."""
    rows = zip(examples, given, verdicts.exact_match, verdicts.f1, strict=True)
    return [
        {
            "question": example.question,
            "answer": found.text,
            "probability": found.probability,
            "refused": not found.answerable,
            "exact_match": exact,
            "f1": round(overlap, 4),
        }
        for example, found, exact, overlap in rows
    ]


def _by_type(examples: Sequence[Example], of: Callable[[list[int]], _Figures]) -> dict[str, _Figures]:
    rows: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        rows.setdefault(question_type(example.question), []).append(row)
    return {name: of(rows[name]) for name in QUESTION_TYPES if name in rows}
