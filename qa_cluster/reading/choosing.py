"""Chooses among the spans that were read for a question: which are one answer, how probable each is, and "no answer".

Every span has an *order*: the reader's score over null, plus the manifest's weight times how far the ranking score of
the sentence that holds the span is below the best one's. Distances, because ranking scores themselves grow with the
corpus and the length of the question. The probabilities follow a conditional logit (McFadden 1974): the odds of a span
against "no answer" are ``exp(a * order + b)`` with the manifest's calibration, and all of a question add up to 1.

Spans with the same words are one answer, as probable as its places together. Pure: nothing here asks a shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from unicodedata import category, normalize

from .manifest import Calibration
from .readings import FoundSpan, SentenceReading

SHORT = 3
"""Words of up to so many characters may mean something else in the other case: ``-f`` and ``-F``, ``IT`` and ``it``."""

_ARTICLES = ("the ", "a ", "an ")
_ENDS = ".,;:!?"
_ROUNDING = 1e-9
_AROUND = ("Ps", "Pe", "Pi", "Pf")  # brackets and quotation marks, by Unicode's categories


@dataclass(frozen=True, slots=True)
class Scored:
    """A span of a reading, and the number by which all spans are ordered."""

    reading: SentenceReading
    span: FoundSpan
    order: float

    @property
    def text(self) -> str:
        """The span's text."""
        return self.reading.text(self.span)


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer: the places where it was read, best first, and the probability that it is right."""

    places: tuple[Scored, ...]
    probability: float

    @property
    def best(self) -> Scored:
        """The place that is shown as the answer's own."""
        return self.places[0]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The answers, most probable first, and the probability that none is right; together 1."""

    choices: tuple[Choice, ...]
    none: float

    def reaches(self, order: float, calibration: Calibration) -> bool:
        """Whether the first answer's odds against "no answer" are those of a single span of this order, or better."""
        if not self.choices:
            return False
        wanted = exp(_bounded(calibration.a * order + calibration.b)) * self.none
        return self.choices[0].probability >= wanted * (1 - _ROUNDING)


def orders(readings: Iterable[SentenceReading], ranked: Mapping[str, float], weight: float) -> list[Scored]:
    """All spans that are not empty, with their orders.

    `ranked` has the ranking scores by sentence key. A neighbour that was not ranked itself counts as ranked with 0.
    """
    best = max(ranked.values(), default=0.0)
    return [
        Scored(reading, span, span.score + weight * (ranked.get(str(_holder(reading, span)), 0.0) - best))
        for reading in readings
        for span in reading.spans
        if span.start < span.end
    ]


def choose(spans: Sequence[Scored], calibration: Calibration) -> Chosen:
    """Choose among the spans of a question. Of spans of one document that overlap, the best is kept."""
    kept = _without_overlaps(spans)
    utilities = [_bounded(calibration.a * item.order + calibration.b) for item in kept]
    shift = max([0.0, *utilities])  # keeps the largest power at 1
    weights = [exp(utility - shift) for utility in utilities]
    total = sum(weights) + exp(-shift)
    places: dict[str, list[tuple[Scored, float]]] = {}
    for item, weight in zip(kept, weights, strict=True):
        places.setdefault(same_answer(item.text), []).append((item, weight))
    choices = [
        Choice(tuple(item for item, _ in found), sum(weight for _, weight in found) / total)
        for found in places.values()
    ]
    # sorting is stable: of answers as probable as each other, the one with the best place comes first
    return Chosen(tuple(sorted(choices, key=lambda choice: -choice.probability)), exp(-shift) / total)


def same_answer(text: str) -> str:
    """What answers that count as the same one have in common.

    >>> same_answer("The  Senate,"), same_answer("-F") == same_answer("-f"), same_answer("the")
    ('senate', False, 'the')
    """
    shown = " ".join(normalize("NFC", text).split())
    shown = " ".join(word.casefold() if len(word) > SHORT else word for word in shown.split(" "))
    bare = _bare(shown) or shown
    if " " not in bare:
        return bare
    first, rest = bare.split(" ", 1)
    return rest if f"{first.casefold()} " in _ARTICLES else bare


def _bare(text: str) -> str:
    """The text without brackets and quotation marks around it, and without what ends sentences."""
    first, last = 0, len(text)
    while last > first and (text[last - 1] in _ENDS or _is_around(text[last - 1])):
        last -= 1
    while first < last and _is_around(text[first]):
        first += 1
    return text[first:last].strip()


def _is_around(letter: str) -> bool:
    return letter in "\"'" or category(letter) in _AROUND


def _holder(reading: SentenceReading, span: FoundSpan) -> object:
    return replace(reading.sentence, index=span.sentence)


def _without_overlaps(spans: Sequence[Scored]) -> list[Scored]:
    """Best first; the sentences' names decide among equals, so that the same readings give the same answers."""
    kept: list[Scored] = []
    taken: dict[str, list[tuple[int, int]]] = {}
    for item in sorted(spans, key=lambda item: (-item.order, str(item.reading.sentence))):
        span, others = item.span, taken.setdefault(item.reading.sentence.document_id, [])
        if all(span.end <= start or end <= span.start for start, end in others):
            others.append((span.start, span.end))
            kept.append(item)
    return kept


def _bounded(utility: float) -> float:
    """Far beyond what floats can tell from certainty, and within what `exp` takes."""
    return min(max(utility, -500.0), 500.0)
