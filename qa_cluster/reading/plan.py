"""The reading plan: which readers read for a question, how many sentences each reader gets, and when reading stops.

A plan is a list of stages. The first stage reads the best ranked sentences, a few at a time (a *wave*). A later stage
reads the best sentences of the previous stage with a different reader. Reading ends early when a reader is sure enough.
The last stage that has read decides: the answer comes from its scores, its calibration and its no-answer threshold. The
scores of the previous stage can be included (`earlier_weight`), because two readers make errors on different spans.

The stop rule is also in this module. The service applies it (`asking/answers/answering.py`). The export of a reader
fits `wave_threshold` to it (`models/evaluation/waves.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from hashlib import blake2b
from math import inf

from .manifest import Calibration, Manifest

# The total number of sentences read by the end of each wave; the setting `waves` replaces it.
WAVES = (3, 8)
# The default retriever of a plan. `ranking/meaning.py` defines all retrievers.
_BY_WORDS = "words"


@dataclass(frozen=True, slots=True)
class ReadingStage:
    """One stage of a reading plan: a reader, its limits and its thresholds.

    Attributes:
        reader: the manifest of the reader.
        waves: the total number of sentences read by the end of each wave; empty: all are read in one wave.
        candidates: the maximum number of sentences that the stage reads.
        wave_threshold: if the `certainty`, the highest `order` of a span in this stage, reaches it, the stage reads no
            more waves.
        final_threshold: if the `certainty` reaches it, no later stage reads.
        rank_weight: the weight of a sentence's ranking score in the `order` of its spans
            (`asking/answers/assembly.py`).
        calibration: converts the `order` of a span to a probability.
        no_answer_threshold: the `order` that the best answer must reach; otherwise, the result is "no answer".
        earlier_weight: the weight with which a span's `order` in the previous stage is added to its `order`.
    """

    reader: Manifest
    waves: tuple[int, ...]
    candidates: int
    wave_threshold: float
    final_threshold: float
    rank_weight: float
    calibration: Calibration
    no_answer_threshold: float
    earlier_weight: float = 0.0

    @property
    def identity(self) -> tuple[object, ...]:
        """Everything in the stage that an answer depends on.

        The thresholds and the calibration are included, because a new fit changes them while the weights of the reader
        stay the same.
        """
        limits = (self.waves, self.candidates, self.wave_threshold, self.final_threshold)
        numbers = (self.rank_weight, *astuple(self.calibration), self.no_answer_threshold, self.earlier_weight)
        return (self.reader.model_id, self.reader.reading_revision, *limits, *numbers)


@dataclass(frozen=True)
class ReadingPlan:
    """How one question is read.

    Attributes:
        stages: one or more stages, in their order.
        retriever: how the sentences are ranked: by ``words``, ``meaning`` or ``both``.
        ranking: everything about the ranking by meaning that an answer depends on; empty if the plan ranks by words
            only.
    """

    stages: tuple[ReadingStage, ...]
    retriever: str = _BY_WORDS
    ranking: tuple[object, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Identifies the plan in the names of cached answers, so that no plan gets a cached answer of a different
        plan."""
        identity = ([stage.identity for stage in self.stages], self.retriever, *self.ranking)
        return blake2b(repr(identity).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class StageOptions:
    """A stage in the options of a process. `stage` completes it for a question.

    Attributes:
        model: the reader, an id or ``id@revision``; empty: the default reader.
        waves: as in `ReadingStage`.
        candidates: as in `ReadingStage`; None: the `retriever_k` of the question.
        final_threshold: as in `ReadingStage`; by default, later stages always read.
        earlier_weight: as in `ReadingStage`.
        fitted: the calibration and the no-answer threshold of the stage; None: the values of its reader.
    """

    model: str = ""
    waves: tuple[int, ...] = ()
    candidates: int | None = None
    final_threshold: float = inf
    earlier_weight: float = 0.0
    fitted: tuple[Calibration, float] | None = None

    def stage(self, reader: Manifest, retriever_k: int, *, stops_early: bool) -> ReadingStage:
        """Return the stage for a question. Without `stops_early`, every stage reads all its candidates.

        `reader` is the manifest of the stage's reader. `retriever_k` is the question's number of ranked sentences.
        """
        calibration, no_answer = self.fitted or (reader.calibration, reader.no_answer_threshold)
        return ReadingStage(
            reader=reader,
            waves=self.waves if stops_early else (),
            candidates=retriever_k if self.candidates is None else self.candidates,
            wave_threshold=reader.wave_threshold,
            final_threshold=self.final_threshold if stops_early else inf,
            rank_weight=reader.rank_weight,
            calibration=calibration,
            no_answer_threshold=no_answer,
            earlier_weight=self.earlier_weight,
        )


# The plans that a question can name. If `SECOND_READER` is not loaded, the accurate plan has only its first stage.
FAST, BALANCED, ACCURATE = "fast", "balanced", "accurate"
SECOND_READER = "qa-reader-accurate"
PLANS: Mapping[str, tuple[StageOptions, ...]] = {
    BALANCED: (StageOptions(waves=WAVES),),
    FAST: (StageOptions(waves=(2, 6), candidates=6),),
    ACCURATE: (
        StageOptions(waves=(4, 12), candidates=12, final_threshold=4.0),
        # This stage was fitted on the half `dev` of tests/yardstick.
        StageOptions(
            model=SECOND_READER,
            candidates=4,
            earlier_weight=0.6,
            fitted=(Calibration(0.30734, -1.61737, likely=0.5481), -2.23),
        ),
    ),
}
# The default plan of a process: one stage, read by the default reader.
DEFAULT_PLAN = PLANS[BALANCED]


def wave_ends(waves: Sequence[int], sentences: int) -> list[int]:
    """Return how many of `sentences` are read by the end of each wave. The last wave reads the rest.

    >>> wave_ends((2, 6, 16), 8), wave_ends((), 8), wave_ends((2, 6, 16), 0)
    ([2, 6, 8], [8], [])
    """
    return [*(end for end in waves if end < sentences), sentences] if sentences else []


def certainty(orders: Iterable[float]) -> float:
    """Return how sure the reader is: the highest `order` of all spans that the stage has read.

    >>> certainty([-2.5, 7.0, 1.0]), certainty([])
    (7.0, -inf)
    """
    return max(orders, default=-inf)


def is_sure(certainty: float, threshold: float) -> bool:
    """Return whether the certainty reaches the threshold, so that reading stops.

    >>> is_sure(7.0, 7.0), is_sure(6.9, 7.0)
    (True, False)
    """
    return certainty >= threshold
