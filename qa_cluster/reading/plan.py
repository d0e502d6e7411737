"""The reading plan: which readers read for a question, how many sentences each of them gets, and when they stop.

A plan is a list of stages. The first stage reads the best ranked sentences, a few at a time (a *wave*). A later stage
reads the best sentences of the stage before it, with another reader. Reading ends early when a reader is sure enough.
The last stage that has read decides: its scores, its calibration and its no-answer threshold make the answer. The
scores of the stage before can count in it (`earlier_weight`), because two readers err on different spans.

The stop rule is here, too. The service applies it (`asking/answers/answering.py`); the export of a reader fits
`wave_threshold` to it (`models/evaluation/waves.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from hashlib import blake2b
from math import inf

from .manifest import Calibration, Manifest

# How many sentences have been read after each wave, unless the setting `waves` says otherwise.
WAVES = (3, 8)
# The ranking of a plan that names no other; `ranking/meaning.py` has all.
_BY_WORDS = "words"


@dataclass(frozen=True, slots=True)
class ReadingStage:
    """One reader's turn.

    Attributes:
        reader: the manifest of the reader.
        waves: how many sentences have been read after each wave; empty: the stage reads all of them in one wave.
        candidates: how many sentences the stage reads at most.
        wave_threshold: from this certainty on, the stage reads no further wave.
        final_threshold: from this certainty on, no later stage reads.
        rank_weight: the weight of a sentence's ranking score in the order of its spans.
        calibration: makes probabilities of the orders.
        no_answer_threshold: the order that the first answer must reach.
        earlier_weight: the weight of the order that the stage before gave to a span, in the span's order.
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

        The numbers are part of it because a new fit changes them while the weights stay the same.
        """
        limits = (self.waves, self.candidates, self.wave_threshold, self.final_threshold)
        numbers = (self.rank_weight, *astuple(self.calibration), self.no_answer_threshold, self.earlier_weight)
        return (self.reader.model_id, self.reader.reading_revision, *limits, *numbers)


@dataclass(frozen=True)
class ReadingPlan:
    """How one question is read.

    Attributes:
        stages: one or more stages, in their order.
        retriever: by what the sentences are ranked: ``words``, ``meaning`` or ``both``.
        ranking: everything about the ranking by meaning that an answer depends on; empty: by words.
    """

    stages: tuple[ReadingStage, ...]
    retriever: str = _BY_WORDS
    ranking: tuple[object, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Identifies the plan in the names of cached answers, so that no plan gets a cached answer of another plan."""
        identity = ([stage.identity for stage in self.stages], self.retriever, *self.ranking)
        return blake2b(repr(identity).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class StageOptions:
    """A stage of a process's plan, before a question is known.

    Attributes:
        model: the reader, an id or ``id@revision``; empty: the default reader.
        waves: as of a `ReadingStage`.
        candidates: as of a `ReadingStage`; None: the `retriever_k` of the question.
        final_threshold: as of a `ReadingStage`; by default, every later stage reads.
        earlier_weight: as of a `ReadingStage`.
        fitted: the calibration and the no-answer threshold of the stage; None: those of its reader.
    """

    model: str = ""
    waves: tuple[int, ...] = ()
    candidates: int | None = None
    final_threshold: float = inf
    earlier_weight: float = 0.0
    fitted: tuple[Calibration, float] | None = None

    def stage(self, reader: Manifest, retriever_k: int, *, stops_early: bool) -> ReadingStage:
        """The stage for a question; without `stops_early`, all stages read all their candidates."""
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


# The plans that a question can name. Where the larger reader is not loaded, the accurate plan has its first stage only.
FAST, BALANCED, ACCURATE = "fast", "balanced", "accurate"
SECOND_READER = "qa-reader-accurate"
PLANS: Mapping[str, tuple[StageOptions, ...]] = {
    BALANCED: (StageOptions(waves=WAVES),),
    FAST: (StageOptions(waves=(2, 6), candidates=6),),
    ACCURATE: (
        StageOptions(waves=(4, 12), candidates=12, final_threshold=4.0),
        # fitted on the half `dev` of tests/yardstick
        StageOptions(
            model=SECOND_READER,
            candidates=4,
            earlier_weight=0.6,
            fitted=(Calibration(0.30734, -1.61737, likely=0.5481), -2.23),
        ),
    ),
}
# The plan of a process that sets no other: one stage, read by the default reader.
DEFAULT_PLAN = PLANS[BALANCED]


def wave_ends(waves: Sequence[int], sentences: int) -> list[int]:
    """How many of `sentences` have been read after each wave; the last wave reads the rest.

    >>> wave_ends((2, 6, 16), 8), wave_ends((), 8), wave_ends((2, 6, 16), 0)
    ([2, 6, 8], [8], [])
    """
    return [*(end for end in waves if end < sentences), sentences] if sentences else []


def certainty(orders: Iterable[float]) -> float:
    """How sure the reader is: the best order of all spans that the stage has read.

    >>> certainty([-2.5, 7.0, 1.0]), certainty([])
    (7.0, -inf)
    """
    return max(orders, default=-inf)


def is_sure(certainty: float, threshold: float) -> bool:
    """Whether reading stops.

    >>> is_sure(7.0, 7.0), is_sure(6.9, 7.0)
    (True, False)
    """
    return certainty >= threshold
