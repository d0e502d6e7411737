"""Fits `wave_threshold`: the order value of a span at which reading stops after a wave.

A wave is one batch of ranked sentences. The reader reads wave after wave until the order value of a span reaches the
threshold. The order value is the span's score over null plus its weighted ranking score (`in_order`).

The corpus has the sentences of all contexts, which are ranked as on the shards. The candidates of a held-out question
are its best ranked sentences, as many as all waves together read. Every candidate is read once, without its neighbours.
The recorded scores then show for any threshold which sentences would be read, and which answer would be given.

The result is the lowest threshold that passes two checks. First, the F1 with this threshold is at least the F1 of
reading all candidates. Second, with 95 % confidence (one-sided, paired bootstrap over questions), the threshold costs
at most `TOLERANCE` of F1.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qa_cluster.documents.sentences import split_sentences
from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.examples import Example, spread
from qa_cluster.evaluation.intervals import resampled_means
from qa_cluster.evaluation.scoring import f1
from qa_cluster.reading.manifest import WaveFit
from qa_cluster.reading.plan import WAVES, certainty, is_sure, wave_ends

from .evaluate import Prediction
from .sentence_index import SentenceIndex

Read = Callable[[Sequence[Example]], list[Prediction]]

TOLERANCE = 0.005
CONFIDENCE = 0.95
MIN_QUESTIONS, MAX_QUESTIONS = 200, 2000
# In a smaller corpus, most candidates would be unrelated to the question.
MIN_SENTENCES = 200
_STEPS = 100

FloatArray = NDArray[np.float64]


def fit_waves(
    examples: Sequence[Example],
    read: Read,
    *,
    rank_weight: float,
    ends: Sequence[int] = WAVES,
    seed: int = 0,
) -> WaveFit | None:
    """Return the threshold and its cost on the held-out `examples`.

    Return None if fewer than `MIN_QUESTIONS` questions have an answer, or if there are fewer than `MIN_SENTENCES`
    sentences.

    Args:
        examples: the held-out examples; questions without an answer are skipped.
        read: reads the contexts with the exported file. Each context is one sentence.
        rank_weight: the weight of the ranking score, from the manifest.
        ends: for each wave, the number of sentences of this wave and all earlier waves together, ascending.
    """
    if list(ends) != sorted(set(ends)) or not ends or ends[0] < 1:
        raise InvalidInput(f"waves end after {list(ends)} sentences, must be ascending numbers")
    asked = spread([example for example in examples if example.answers], MAX_QUESTIONS)
    sentences = _sentences(examples)
    if len(asked) < MIN_QUESTIONS or len(sentences) < MIN_SENTENCES:
        return None
    readings = _readings(asked, sentences, ends[-1], read)
    simulated = Simulation(asked, readings, rank_weight, ends)
    threshold = simulated.lowest_threshold(seed)
    found, count = simulated.at(threshold)
    return WaveFit(
        threshold=threshold,
        questions=len(asked),
        sentences=len(sentences),
        ends=tuple(ends),
        read=round(float(count.mean()), 3),
        f1=round(float(found.mean()), 4),
        f1_all=round(float(simulated.f1[:, -1].mean()), 4),
    )


class Simulation:
    """The answers that waves would have given, from the readings of all candidates.

    Attributes:
        best: [questions, waves], the `certainty` of the reader after each wave.
        read: [questions, waves], the number of sentences of each wave and all earlier waves together.
        f1: [questions, waves], the F1 of the answer after each wave.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        readings: Sequence[Sequence[tuple[Prediction, float]]],
        rank_weight: float,
        ends: Sequence[int] = WAVES,
    ) -> None:
        shape = (len(examples), len(ends))
        self.best: FloatArray = np.full(shape, -np.inf)
        self.read: FloatArray = np.zeros(shape)
        self.f1: FloatArray = np.zeros(shape)
        for row, (example, candidates) in enumerate(zip(examples, readings, strict=True)):
            # A question with few candidates has fewer waves. Its missing waves get the values of its last wave.
            ordered = in_order(candidates, rank_weight)
            for wave, end in enumerate(wave_ends(ends, len(candidates[: ends[-1]]))):
                part = ordered[:end]
                first = max(part, key=lambda item: item.order)
                self.read[row, wave:] = end
                self.best[row, wave:] = certainty(item.order for item in part)
                self.f1[row, wave:] = f1(first.text, example.answers)

    def at(self, threshold: float) -> tuple[FloatArray, FloatArray]:
        """Return the F1 and the number of read sentences of every question, as they are if reading stops at
        `threshold`.
        """
        sure = np.array([[is_sure(best, threshold) for best in waves] for waves in self.best.tolist()])
        sure[:, -1] = True
        last = sure.argmax(axis=1)
        rows = np.arange(len(last))
        return self.f1[rows, last], self.read[rows, last]

    def lowest_threshold(self, seed: int = 0) -> float:
        """Return the lowest threshold that passes both checks in the docstring of the module. `seed` is the random seed
        of the bootstrap. If no threshold passes, return a threshold at which reading never stops early. If there is
        only one wave, thresholds have no effect; return 0.
        """
        scores = self.best[:, :-1]
        scores = scores[np.isfinite(scores)]
        if not len(scores):
            return 0.0
        # The thresholds to try are quantiles of the scores, rounded up to two digits.
        steps = np.unique(np.ceil(np.quantile(scores, np.linspace(0, 1, _STEPS + 1)) * 100) / 100)
        gained = np.stack([self.at(step)[0] - self.f1[:, -1] for step in steps], axis=1)
        bounds = np.quantile(resampled_means(gained, seed=seed), 1 - CONFIDENCE, axis=0)
        free = (gained.mean(axis=0) >= 0) & (bounds >= -TOLERANCE)
        return float(steps[free.argmax()]) if free.any() else float(np.floor(steps[-1]) + 1)


def _sentences(examples: Sequence[Example]) -> list[str]:
    """Return the sentences of all contexts. A sentence of several contexts is returned once, because contexts can be
    overlapping windows of one text.
    """
    contexts = dict.fromkeys(example.context for example in examples)
    return list(dict.fromkeys(context[start:end] for context in contexts for start, end in split_sentences(context)))


def _readings(
    asked: Sequence[Example], sentences: Sequence[str], most: int, read: Read
) -> list[list[tuple[Prediction, float]]]:
    """Return the predictions for the `most` best sentences of each question, with the ranking scores of the sentences.
    Each list is in the order of the ranking.
    """
    index = SentenceIndex(sentences)
    ranked = [index.rank(example.question, most) for example in asked]
    pairs = [
        Example(example.question, sentences[number], ())
        for example, candidates in zip(asked, ranked, strict=True)
        for number, _ in candidates
    ]
    predictions = iter(read(pairs))
    return [[(next(predictions), value) for _, value in candidates] for candidates in ranked]


@dataclass(frozen=True, slots=True)
class OrderedReading:
    """The best span of a sentence: its text, and its order value (`asking/answers/assembly.py`)."""

    text: str
    order: float


def in_order(candidates: Sequence[tuple[Prediction, float]], rank_weight: float) -> list[OrderedReading]:
    """Return the readings of a question's candidates with their order values, in the order of `candidates`. The ranking
    score counts as its difference from the best ranking score.
    """
    best = max((value for _, value in candidates), default=0.0)
    return [OrderedReading(found.text, found.score + rank_weight * (value - best)) for found, value in candidates]
