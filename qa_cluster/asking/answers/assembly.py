"""Assembles the answers of a question from the spans that were read: sorts and merges spans, and cites documents.

Every span has an *order*, the value by which spans are compared: its score over null minus a penalty. The penalty is
the stage's weight times the distance between two ranking scores: the score of the best sentence and the score of the
span's sentence. Distances are used because ranking scores grow with the corpus and with the length of the question.

The probabilities follow a conditional logit (McFadden 1974): the odds of a span against "no answer" are ``exp(a * order
+ b)`` with the stage's calibration. The probabilities of all answers and of "no answer" add up to 1. Spans with the
same words are merged into one answer. Its probability is the sum of the probabilities of its spans.

The functions are pure: they do no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any
from unicodedata import category, normalize

from qa_cluster.documents.metadata_limits import readable_metadata
from qa_cluster.documents.source_map import NO_MAP, SourceMap, read_map, shown_metadata, url_of
from qa_cluster.options.questions import AskOptions
from qa_cluster.reading.manifest import Calibration
from qa_cluster.reading.plan import ReadingStage
from qa_cluster.reading.readings import FoundSpan, SentenceReading
from qa_cluster.types import Answer, Mention

SHORT = 3
"""Words of at most this many characters are compared with their case: ``-f`` is not ``-F``, and ``IT`` is not
``it``."""

OVERLAPPING, NOT_FOUND = 1.0, -6.0
"""The numbers in the rule of `with_earlier`: what is subtracted from the `order` of an overlapping span, and the value
for a span that the previous stage did not find."""

MAX_PLACES = 5
"""The maximum number of spans that a result shows for an answer, including the best span."""

_ARTICLES = ("the ", "a ", "an ")
_ENDS = ".,;:!?"
_ROUNDING = 1e-9
_AROUND = ("Ps", "Pe", "Pi", "Pf")  # brackets and quotation marks, by Unicode's categories


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """A span of a reading, and its `order`."""

    reading: SentenceReading
    span: FoundSpan
    order: float

    @property
    def text(self) -> str:
        """The span's text."""
        return self.reading.text(self.span)


@dataclass(frozen=True, slots=True)
class MergedAnswer:
    """One answer: all spans with its words (`same_answer`), the best first, and the probability that it is right."""

    places: tuple[ScoredSpan, ...]
    probability: float

    @property
    def best(self) -> ScoredSpan:
        """The best span. The answer shows the document and the position of this span."""
        return self.places[0]


@dataclass(frozen=True, slots=True)
class ChosenAnswers:
    """The answers, the most probable first, and the probability `none` of "no answer".

    All probabilities add up to 1.
    """

    choices: tuple[MergedAnswer, ...]
    none: float

    def reaches(self, order: float, calibration: Calibration) -> bool:
        """Return whether the first answer is at least as probable as a single span with this `order`.

        The odds against "no answer" are compared. The result is false if there are no answers.
        """
        if not self.choices:
            return False
        wanted = exp(_bounded(calibration.a * order + calibration.b)) * self.none
        return self.choices[0].probability >= wanted * (1 - _ROUNDING)


def orders(readings: Iterable[SentenceReading], ranked: Mapping[str, float], weight: float) -> list[ScoredSpan]:
    """Return all non-empty spans, each with its `order`.

    `ranked` has the ranking scores by sentence key, and `weight` is the weight of these scores
    (`ReadingStage.rank_weight`). A neighbour that was not ranked gets the score of the sentence with which it was read.
    """
    best = max(ranked.values(), default=0.0)

    def score(reading: SentenceReading, span: FoundSpan) -> float:
        own = ranked.get(str(reading.sentence), 0.0)
        return ranked.get(str(_holder(reading, span)), own) - best

    return [
        ScoredSpan(reading, span, span.score + weight * score(reading, span))
        for reading in readings
        for span in reading.spans
        if span.start < span.end
    ]


def with_earlier(spans: Iterable[ScoredSpan], earlier: Iterable[ScoredSpan], weight: float) -> list[ScoredSpan]:
    """Return the spans of a stage with new values of `order`, which include the previous stage's values.

    The new `order` is the span's own `order` plus `weight` times its previous `order`. The previous `order` is the
    highest of these values:

    - the `order` of the same span in the previous stage
    - the `order` of each overlapping span of the previous stage, minus `OVERLAPPING`
    - `NOT_FOUND`, only if the previous stage has neither the same span nor an overlapping span
    """
    if not weight:
        return list(spans)
    found: dict[str, list[ScoredSpan]] = {}
    for item in earlier:
        found.setdefault(item.reading.sentence.document_id, []).append(item)

    def before(item: ScoredSpan) -> float:
        start, end = item.span.start, item.span.end
        known = [
            other.order - (0.0 if (start, end) == (other.span.start, other.span.end) else OVERLAPPING)
            for other in found.get(item.reading.sentence.document_id, ())
            if start < other.span.end and other.span.start < end
        ]
        return max(known, default=NOT_FOUND)

    return [replace(item, order=item.order + weight * before(item)) for item in spans]


def choose(spans: Sequence[ScoredSpan], calibration: Calibration) -> ChosenAnswers:
    """Merge the spans of a question into answers. If spans of a document overlap, only the best span is used.

    `calibration` is the calibration of the last stage that has read. It converts each `order` to a probability.
    """
    kept = _without_overlaps(spans)
    utilities = [_bounded(calibration.a * item.order + calibration.b) for item in kept]
    shift = max([0.0, *utilities])  # prevents an overflow of `exp`
    weights = [exp(utility - shift) for utility in utilities]
    total = sum(weights) + exp(-shift)
    places: dict[str, list[tuple[ScoredSpan, float]]] = {}
    for item, weight in zip(kept, weights, strict=True):
        places.setdefault(same_answer(item.text), []).append((item, weight))
    choices = [
        MergedAnswer(tuple(item for item, _ in found), sum(weight for _, weight in found) / total)
        for found in places.values()
    ]
    # The sort is stable, so among equally probable answers, the answer with the best span comes first.
    return ChosenAnswers(tuple(sorted(choices, key=lambda choice: -choice.probability)), exp(-shift) / total)


def same_answer(text: str) -> str:
    """Normalise the text of an answer. Two texts with equal results are the same answer.

    Words of more than `SHORT` characters are converted to lower case. An article at the start is removed, and so are
    brackets, quotation marks and closing punctuation around the answer.

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
    """Return the text without surrounding brackets, surrounding quotation marks and closing punctuation."""
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


def _without_overlaps(spans: Sequence[ScoredSpan]) -> list[ScoredSpan]:
    """Return the spans, the best first, without spans that overlap a better span of the same document.

    Spans with an equal `order` are sorted by sentence names, so the same readings always give the same answers.
    """
    kept: list[ScoredSpan] = []
    taken: dict[str, list[tuple[int, int]]] = {}
    for item in sorted(spans, key=lambda item: (-item.order, str(item.reading.sentence))):
        span, others = item.span, taken.setdefault(item.reading.sentence.document_id, [])
        if all(span.end <= start or end <= span.start for start, end in others):
            others.append((span.start, span.end))
            kept.append(item)
    return kept


def _bounded(utility: float) -> float:
    """Limit a utility to the range of `exp`. Outside this range, probabilities round to 0 or 1."""
    return min(max(utility, -500.0), 500.0)


# ---- Citations ----


@dataclass(frozen=True, slots=True)
class CitedDocument:
    """A document that an answer cites, fetched after the reader has read its sentences.

    All answers from the document share this object.

    Attributes:
        metadata: the metadata without the source map, because answers show the source of a span separately.
        metadata_bytes: the size of the stored metadata, in bytes.
    """

    version: str
    title: str
    metadata: Mapping[str, Any]
    source: SourceMap = NO_MAP
    metadata_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AssembledAnswers:
    """The answers of a question.

    Attributes:
        answers: the answers that are returned, the most probable first.
        answerable: whether there are answers, and the best answer reaches the no-answer threshold.
        no_answer_score: the probability of "no answer", 0 to 1.
    """

    answers: tuple[Answer, ...]
    answerable: bool
    no_answer_score: float


def cited(chosen: ChosenAnswers, options: AskOptions) -> list[ScoredSpan]:
    """Return the spans whose documents `assemble` needs: the first `MAX_PLACES` spans of the first `top_k` answers."""
    return [place for choice in chosen.choices[: options.top_k] for place in choice.places[:MAX_PLACES]]


def assemble(
    chosen: ChosenAnswers, records: Mapping[str, CitedDocument], stage: ReadingStage, options: AskOptions
) -> AssembledAnswers:
    """Return the answers of a question. `stage` is the last stage that has read; its thresholds apply.

    `records` has the documents of `cited` by id. A span is left out if its document was deleted or changed after it was
    read. An answer is left out if no span of it is left, or if its probability is below `min_score`. If the best answer
    does not reach the no-answer threshold and `no_answer` is true, there are no answers.
    """
    answers: list[Answer] = []
    answerable = chosen.reaches(stage.no_answer_threshold, stage.calibration)
    if answerable or not options.no_answer:
        for choice in chosen.choices[: options.top_k]:
            places = [place for place in choice.places[:MAX_PLACES] if is_current(place, records)]
            if places and choice.probability >= options.min_score:
                confidence = stage.calibration.confidence(choice.probability)
                answers.append(_answer(len(answers) + 1, choice, confidence, places, records))
    if not answers:
        answerable = False
    return AssembledAnswers(tuple(answers), answerable, round(chosen.none, 6))


def is_current(place: ScoredSpan, records: Mapping[str, CitedDocument]) -> bool:
    """Return whether the document of a span still has the version that was read.

    `records` has the current documents by id. The result is False if the document is not in `records`.
    """
    record = records.get(place.reading.sentence.document_id)
    return record is not None and record.version == place.reading.version


def _answer(
    rank: int,
    choice: MergedAnswer,
    confidence: str,
    places: Sequence[ScoredSpan],
    records: Mapping[str, CitedDocument],
) -> Answer:
    reading, span = places[0].reading, places[0].span
    own, *others = (_mention(place, records) for place in places)
    return Answer(
        rank=rank,
        answer=places[0].text,
        score=round(choice.probability, 6),
        logit=round(span.score, 4),
        start=own.start,
        end=own.end,
        document_id=own.document_id,
        document_version=own.document_version,
        passage_id=own.passage_id,
        title=own.title,
        context=reading.context,
        context_start=reading.context_start,
        context_end=reading.context_start + len(reading.context),
        shard=own.shard,
        metadata=records[own.document_id].metadata,
        section=own.section,
        source=own.source,
        url=own.url,
        also_in=tuple(others),
        confidence=confidence,
    )


def _mention(place: ScoredSpan, records: Mapping[str, CitedDocument]) -> Mention:
    reading, span = place.reading, place.span
    document_id = reading.sentence.document_id
    record = records[document_id]
    source = record.source
    return Mention(
        document_id=document_id,
        document_version=reading.version,
        passage_id=f"{document_id}:{span.sentence}",
        title=record.title,
        start=span.start,
        end=span.end,
        shard=reading.shard,
        section=source.section_at(span.start),
        source=source.source_at(span.start),
        url=url_of(record.metadata),
    )


def parse_cited_document(reply: Sequence[Any]) -> CitedDocument | None:
    """Parse the reply to ``HMGET document:.. version title metadata``; None if the document does not exist."""
    version, title, metadata = reply
    if version is None:
        return None
    read = readable_metadata(metadata or b"")
    return CitedDocument(
        version.decode(), (title or b"").decode(), shown_metadata(read), read_map(read), len(metadata or b"")
    )
