"""Encodes and parses sentence answers in JSON: the values of `bertqa..` keys and the replies of `qa.read`.

A reply of `qa.read` also has the field `cache`: ``shard`` if the answer was in the shard's cache when the request
arrived, ``miss`` if it was not. The shard encodes a sentence answer with `sentence_answer`; the service parses the
reply with `parse_readings`. All offsets are code points of the document. The fields whose names do not explain them:

- `spans`: the best spans without overlaps, the best first. Each has its score over null (the difference between its
  logit and the logit of the null answer), and the number of the sentence that contains it.
- `answer`: the text of the first span.
- `context`: present if the sentence was read with its neighbours. A span may then be in a neighbour.
- `read`: the numbers of the first and the last sentence of the context; present if `context` is present.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from qa_cluster.documents.stored import SentenceRecord
from qa_cluster.errors import ClusterError, NotFound, ReplyError, from_reply
from qa_cluster.keys import SentenceRef, parse_sentence

from .passages import MAX_NEIGHBOURS, ReadingPassage
from .spans import Reading

_REDIRECTS = ("MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN ")


NO_SPAN_SCORE = -100.0
"""The score of a sentence without spans."""


@dataclass(frozen=True, slots=True)
class FoundSpan:
    """A span in code points of the document, its score over null, and the number of the sentence that contains it."""

    start: int
    end: int
    score: float
    sentence: int


@dataclass(frozen=True, slots=True)
class SentenceReading:
    """The result of reading one sentence.

    Attributes:
        spans: the spans, the best first.
        context: the text that was read: the sentence, or the sentence with its neighbours.
        context_start: the offset of `context` in the document.
        read: the numbers of all sentences in `context`.
        version: the version of the document that was read.
        model: the manifest's `reading_revision`.
        shard: the name of the shard that sent the result.
        cached: whether the result comes from the shard's cache.
        windows: the number of windows in which the text was read.
        truncated: whether the question was too long, so that its end was not read.
    """

    sentence: SentenceRef
    spans: tuple[FoundSpan, ...]
    version: str
    context: str
    context_start: int
    model: str
    shard: str
    cached: bool
    windows: int
    truncated: bool
    read: range = range(0)

    @property
    def score(self) -> float:
        """The score of the best span; `NO_SPAN_SCORE` if there is no span."""
        return self.spans[0].score if self.spans else NO_SPAN_SCORE

    def text(self, span: FoundSpan) -> str:
        """Return the text of a span."""
        return self.context[span.start - self.context_start : span.end - self.context_start]


@dataclass(frozen=True, slots=True)
class ReadSentence:
    """A sentence that the shard has read: its record, its passage and the decoded spans.

    `windows` and `truncated` are as in `SentenceReading`.
    """

    sentence: SentenceRef
    record: SentenceRecord
    passage: ReadingPassage
    decoded: Reading
    windows: int
    truncated: bool


def sentence_answer(
    read: ReadSentence, *, model_id: str, revision: str, reading_revision: str, created: float
) -> bytes:
    """Return a sentence answer as JSON. `model_id` and the revisions are the manifest's.

    `created` is the time of the reading, in seconds since 1970.
    """
    record, passage, begin = read.record, read.passage, read.passage.start
    own = begin + passage.begins[read.sentence.index - passage.first]
    spans = [
        (begin + span.start, begin + span.end, round(span.score, 4), passage.sentence_of(span.start))
        for span in read.decoded.spans
    ]
    best = read.decoded.spans[0] if spans else None
    value: dict[str, Any] = {
        "answer": passage.text[best.start : best.end] if best else "",
        "score": round(best.score, 4) if best else NO_SPAN_SCORE,
        "logit": round(best.logit, 4) if best else NO_SPAN_SCORE,
        "start": begin + best.start if best else own,
        "end": begin + best.end if best else own,
        "spans": spans,
        "no_answer_score": round(read.decoded.null_logit, 4),
        "document_id": read.sentence.document_id,
        "document_version": record.version,
        "title": record.title,
        "sentence": record.text,
        "sentence_index": read.sentence.index,
        "sentence_start": own,
        "sentence_end": own + len(record.text),
        "model": {"id": model_id, "revision": revision},
        "reading_revision": reading_revision,
        "created": round(created, 3),
        "windows": read.windows,
        "truncated": read.truncated,
    }
    if passage.breaks:
        value |= {"context": passage.text, "context_start": begin, "read": (passage.first, passage.last)}
    return orjson.dumps(value)


def parse_readings(sentences: Sequence[str], replies: Sequence[Any], shard: str) -> list[SentenceReading | None]:
    """Parse the replies of a shard for the sentences with these keys; None for a sentence that does not exist.

    The results are in the order of `sentences`. `shard` is the name of the shard.

    Raises:
        ReplyError: a sentence is on another shard or migrating, or the cluster is down. The text is the shard's reply.
        ClusterError: a reply cannot be parsed, or the number of replies is wrong.
        QAError: any other error with which the shard replied for a sentence.
    """
    if len(replies) != len(sentences):
        raise ClusterError(f"a shard was asked for {len(sentences)} sentences and answered {len(replies)}")
    return [_parse(parse_sentence(name), reply, shard) for name, reply in zip(sentences, replies, strict=True)]


def _parse(sentence: SentenceRef, reply: Any, shard: str) -> SentenceReading | None:
    text = str(reply) if isinstance(reply, ReplyError) else _error_text(reply)
    if text is not None:
        if text.startswith(_REDIRECTS):
            raise ReplyError(text)
        error = from_reply(text)
        if isinstance(error, NotFound):
            return None
        raise error
    try:
        value = orjson.loads(reply)
        return SentenceReading(
            sentence=sentence,
            spans=tuple(FoundSpan(start, end, score, holder) for start, end, score, holder in value["spans"]),
            version=value["document_version"],
            context=value.get("context", value["sentence"]),
            context_start=value.get("context_start", value["sentence_start"]),
            model=value["reading_revision"],
            shard=shard,
            cached=value["cache"] == "shard",
            windows=value["windows"],
            truncated=value["truncated"],
            read=_numbers(*value.get("read", (sentence.index, sentence.index))),
        )
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"a shard's answer for sentence {sentence} cannot be read: {error!r}") from error


def is_read(sentence: str, readings: Iterable[SentenceReading]) -> bool:
    """Return whether a reading covers the sentence with this key, as its own sentence or as a neighbour."""
    ref = parse_sentence(sentence)
    return any(
        (ref.document, ref.tag) == (reading.sentence.document, reading.sentence.tag)
        and (ref.index == reading.sentence.index or ref.index in reading.read)
        for reading in readings
    )


def _numbers(first: int, last: int) -> range:
    """Return the sentence numbers from `first` to `last`, but at most as many as the largest passage has sentences.

    The largest passage has one sentence with `MAX_NEIGHBOURS` neighbours on each side.
    """
    return range(first, min(last, first + 2 * MAX_NEIGHBOURS) + 1)


def _error_text(reply: Any) -> str | None:
    """Return the text of an error in the form of a string ``-CODE text``; None for other replies."""
    return reply[1:].decode("utf-8", "replace") if isinstance(reply, bytes) and reply.startswith(b"-") else None


# A client may have written any value to the key of a sentence answer, so the fields are checked.
_NEEDED = frozenset(
    {"answer", "score", "start", "end", "spans", "sentence", "sentence_start", "windows", "truncated", "model"}
)


def valid_answer(value: str | bytes | bytearray, version: str, revision: str) -> dict[str, Any] | None:
    """Return a cached answer if it is complete and has this document version and this reading revision;
    otherwise None.
    """
    try:
        answer: dict[str, Any] = orjson.loads(value)
        valid = answer["document_version"] == version and answer["reading_revision"] == revision
        return answer if valid and answer.keys() >= _NEEDED else None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None


def is_valid(value: str | bytes | bytearray, version: str, revision: str) -> bool:
    """Return whether `valid_answer` accepts a cached answer."""
    return valid_answer(value, version, revision) is not None
