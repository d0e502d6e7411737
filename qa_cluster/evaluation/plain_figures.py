"""Figures of the answers to plain questions: right first, right in the first three, wrong and sure, risk.

A plain question has no context: the system must find the answer in all its documents (`plain_questions`).

A question whose answer is in the documents can get a right answer, a wrong answer or "no answer". A question without an
answer in the documents can get an answer or not. The curve of risk over coverage uses the best span of every question,
whether or not it was returned. Its area is the share of wrong spans among the k most probable, averaged over all k
(El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017). A span for a question without an answer is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from qa_cluster.reading.manifest import Calibration

from .choice_fit import JudgedQuestion
from .intervals import Interval, mean_interval
from .plain_questions import PlainQuestion
from .reliability import calibration_error_by_chance, expected_calibration_error
from .scoring import exact_match, f1

FIRST = 3
SURE = 0.5
VERY_SURE = 0.8
_SAMPLES_OF_AREA = 500
# Used in place of a probability of "no answer" that was rounded to 0. Answers have probabilities with six decimals.
_LEAST = 5e-7


@dataclass(frozen=True, slots=True)
class GivenSpan:
    """An answer of the system.

    Attributes:
        probability: the score of the answer in the response, 0 to 1.
        document_id: the id of the document that the answer is from.
        also_in: the ids of other documents with the same answer.
    """

    text: str
    probability: float
    document_id: str
    also_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenAnswers:
    """The answers to a question.

    Attributes:
        spans: the best answers, best first, even if they are improbable.
        answerable: whether `spans` were returned as answers. If it is false, "no answer" was returned.
        sentences_read: the number of sentences that were read.
        milliseconds: the time from the question to the answer.
        no_answer: the probability of "no answer".
    """

    spans: tuple[GivenSpan, ...]
    answerable: bool
    sentences_read: int = 0
    milliseconds: float = 0.0
    no_answer: float = 1.0


@dataclass(frozen=True, slots=True)
class PlainFigures:
    """The figures of a set of questions. A share is None if there are no questions or answers to compute it from.

    An answerable question is a question whose answer is in the documents. A first answer is the best returned answer.

    Attributes:
        without_answer: the number of questions without an answer in the documents.
        right_first: share of the answerable questions whose first answer is right.
        right_in_three: share of the answerable questions with a right answer among the first three.
        told_none: the share of the answerable questions that got "no answer".
        exact_match, f1: means for the first answer, over the questions that have `answers`, not a pattern. A question
            that got "no answer" counts as an empty answer.
        wrong_and_sure: share of all questions whose first answer is wrong and has a score above 0.5.
        answered_without: share of the questions without an answer that got an answer.
        answered_without_sure: share of the questions without an answer that got an answer with a score above 0.5.
        very_sure: the number of first answers with a score of at least 0.8.
        very_sure_right: share of the `very_sure` answers that are right.
        calibration_error: calibration error of the first answers' scores, 0 to 1.
        calibration_error_by_chance: the calibration error that perfect scores would have with so few answers.
        risk_area: area under the curve of risk over coverage, 0 to 1; less is better.
    """

    questions: int
    without_answer: int
    right_first: Interval | None
    right_in_three: Interval | None
    told_none: Interval | None
    exact_match: Interval | None
    f1: Interval | None
    wrong_and_sure: Interval
    answered_without: Interval | None
    answered_without_sure: Interval | None
    very_sure: int
    very_sure_right: Interval | None
    calibration_error: float | None
    calibration_error_by_chance: float | None
    risk_area: Interval | None


def plain_figures(questions: Sequence[PlainQuestion], given: Sequence[GivenAnswers], *, seed: int = 0) -> PlainFigures:
    """Judge the answers and compute the figures.

    `given` has the answers to each question, in the order of `questions`. `seed` is the seed of the bootstrap.
    """
    pairs = list(zip(questions, given, strict=True))
    answered = [pair for pair in pairs if pair[0].answered]
    without = [pair for pair in pairs if not pair[0].answered]
    worded = [pair for pair in answered if pair[0].answers]
    told = [(question, found.spans[0]) for question, found in pairs if found.answerable and found.spans]
    very_sure = [(question, span) for question, span in told if span.probability >= VERY_SURE]
    scores = [span.probability for _, span in told]

    def share(values: Sequence[float]) -> Interval | None:
        return mean_interval(values, seed=seed) if values else None

    return PlainFigures(
        questions=len(pairs),
        without_answer=len(without),
        right_first=share([float(right_within(*pair, 1)) for pair in answered]),
        right_in_three=share([float(right_within(*pair, FIRST)) for pair in answered]),
        told_none=share([float(not found.answerable) for _, found in answered]),
        exact_match=share([exact_match(_told(found), question.answers) for question, found in worded]),
        f1=share([f1(_told(found), question.answers) for question, found in worded]),
        wrong_and_sure=mean_interval(
            [float(_sure(found) and not right_within(question, found, 1)) for question, found in pairs], seed=seed
        ),
        answered_without=share([float(found.answerable) for _, found in without]),
        answered_without_sure=share([float(_sure(found)) for _, found in without]),
        very_sure=len(very_sure),
        very_sure_right=share([float(_right(question, span)) for question, span in very_sure]),
        calibration_error=expected_calibration_error(scores, [_right(question, span) for question, span in told])
        if told
        else None,
        calibration_error_by_chance=calibration_error_by_chance(scores, seed=seed) if told else None,
        risk_area=_risk_area([(q, found.spans[0]) for q, found in pairs if found.spans], seed),
    )


def by_label(
    questions: Sequence[PlainQuestion], given: Sequence[GivenAnswers], label: str, *, seed: int = 0
) -> dict[str, PlainFigures]:
    """Return the figures for each value of a label, most frequent first. Questions without the label are under
    ``""``.
    """
    rows: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        rows.setdefault(question.labels.get(label, ""), []).append(row)
    return {
        value: plain_figures([questions[row] for row in found], [given[row] for row in found], seed=seed)
        for value, found in sorted(rows.items(), key=lambda item: (-len(item[1]), item[0]))
    }


def costs(given: Sequence[GivenAnswers], *, seed: int = 0) -> dict[str, Any]:
    """Return the cost per question: sentences read, and milliseconds (median and 95th percentile)."""
    times = np.asarray([found.milliseconds for found in given])
    return {
        "sentences_read": asdict(mean_interval([found.sentences_read for found in given], seed=seed)),
        "milliseconds": {"p50": round(float(np.median(times)), 2), "p95": round(float(np.quantile(times, 0.95)), 2)},
    }


def right_within(question: PlainQuestion, found: GivenAnswers, first: int) -> bool:
    """Return whether one of the first `first` returned answers is right; False if "no answer" was returned."""
    return found.answerable and any(_right(question, span) for span in found.spans[:first])


def judged(
    questions: Sequence[PlainQuestion], given: Sequence[GivenAnswers], calibration: Calibration
) -> list[JudgedQuestion]:
    """Return the input of `fit_choice` for each question. `calibration` is the calibration of the reader that
    answered.
    """
    found = []
    for question, answers in zip(questions, given, strict=True):
        odds = [(span, span.probability / max(answers.no_answer, _LEAST)) for span in answers.spans]
        kept = [(span, odd) for span, odd in odds if odd > 0]
        orders = np.array([(np.log(odd) - calibration.b) / calibration.a for _, odd in kept], np.float64)
        right = np.array([_right(question, span) for span, _ in kept], np.bool_)
        found.append(JudgedQuestion(orders, right, question.answered))
    return found


def plain_rows(questions: Sequence[PlainQuestion], given: Sequence[GivenAnswers]) -> list[dict[str, object]]:
    """Return the answers to every question as JSON-ready values."""
    return [
        {
            "question": question.question,
            "answerable": found.answerable,
            "right": right_within(question, found, 1) if question.answered else not found.answerable,
            "right_in_three": right_within(question, found, FIRST) if question.answered else None,
            "answers": [{**asdict(span), "right": _right(question, span)} for span in found.spans],
            "sentences_read": found.sentences_read,
        }
        for question, found in zip(questions, given, strict=True)
    ]


def _right(question: PlainQuestion, span: GivenSpan) -> bool:
    return any(question.is_right(span.text, document) for document in (span.document_id, *span.also_in))


def _told(found: GivenAnswers) -> str:
    return found.spans[0].text if found.answerable and found.spans else ""


def _sure(found: GivenAnswers) -> bool:
    return found.answerable and bool(found.spans) and found.spans[0].probability > SURE


def _risk_area(best: Sequence[tuple[PlainQuestion, GivenSpan]], seed: int) -> Interval | None:
    """Return the area under the curve of risk over coverage, with its bootstrap interval; None if `best` is empty.

    `best` has each question with its best span. In each resample, the questions are ranked by the probabilities of
    these spans.
    """
    if not best:
        return None
    order = sorted(range(len(best)), key=lambda row: -best[row][1].probability)
    wrong = np.asarray([float(not _right(*best[row])) for row in order])
    counts = np.arange(1, len(wrong) + 1)
    random = np.random.default_rng(seed)
    areas = []
    for _ in range(_SAMPLES_OF_AREA):
        drawn = np.sort(random.integers(0, len(wrong), len(wrong)))
        areas.append(float((np.cumsum(wrong[drawn]) / counts).mean()))
    low, high = np.quantile(areas, [0.025, 0.975])
    return Interval(float((np.cumsum(wrong) / counts).mean()), float(low), float(high))
