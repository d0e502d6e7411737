"""Splits a text into sentences, as exact spans of code points.

The text stays unchanged: ``text[start:end]`` is the sentence. Spans are in order and do not overlap, and every
character that is not white space is in a span. Text that is not prose (tables, lists, code, base64) is split at lines,
or cut to a length that fits into the reader's input.

Increase `SPLITTER_VERSION` with every change of the results. Documents that a different version has split are then
split again.

Splitting has a budget of processor time that depends on the length of the text. Prose needs less than 10% of it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from itertools import chain, pairwise

import nupunkt

from qa_cluster.errors import InvalidInput

# The first number is the version of this module. The version of the package nupunkt covers its rules and abbreviations.
SPLITTER_VERSION = f"1-nupunkt-{nupunkt.__version__}"
MAX_SENTENCE_LENGTH = 1500
MAX_SENTENCE_TOKENS = 256
MAX_BLOCK_LENGTH = 10_000
BUDGET_SECONDS = 2.0
BUDGET_SECONDS_PER_MILLION = 5.0
"""The processor time for a text is `BUDGET_SECONDS`, plus this time for each million code points."""

SentenceSpan = tuple[int, int]

_BLANK_LINE = re.compile(r"(?:\r\n|[\n\r\v\x85\u2028])[^\S\n\r]*(?:\r\n|[\n\r\v\x85\u2028])|[\f\u2029]")
# The start of a line that starts a new block, even if the previous line has no full stop.
_NEW_ITEM = re.compile(
    r"[\n\r](?=[^\S\n\r]*(?:[-*+\u2022\u2023\u25aa\u2013][^\S\n\r]|\(?\d{1,3}[.)][^\S\n\r]|[a-zA-Z][)][^\S\n\r]"
    r"|#{1,6}[^\S\n\r]|\||>>>|```))"
)
# Lines of tables, horizontal rules and code. Each such line is a block.
_STRUCTURED = re.compile(r"\t|\S {3,}+(?=\S).*?(?<! ) {3,}+\S|^\s*+\||[;{}]$|^\s*+([=\-~*_#^])\1{2,}$")
# Each structured line matches this fast pattern.
_MAY_BE_STRUCTURED = re.compile(r"\t| {3}|[|;{}]|[=\-~*_#^]{3}")
# Full stops of writing systems that have no spaces between sentences, with closing quotes and brackets.
_UNSPACED_STOP = re.compile(
    r"[\u3002\uff01\uff1f\uff61\uff0e\u203c\u2047\u2048\u2049\u0964\u0965\u06d4\u061f\u1362\u1367\u17d5\u104b\u166e]+"
    r"[\u300d\u300f\u201d\u2019\"')\uff09\u3011\u300b\u3009\]]*"
)
# If a text contains no such character, the splitter treats it as one sentence.
_STOP = re.compile(r"[.!?\u2026]")
_LIKELY_END = re.compile(r"[.!?](?=\s)")
_CLAUSE = re.compile(r"[;:,\u2014\u2013](?=\s)|[\u3001\uff0c\uff1b\uff1a\uff64]")
_WORD_OR_MARK = re.compile(r"[^\W_]+|[^\w\s]|_")
_WHITESPACE = re.compile(r"\s+")
_DENSE = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]"
)

# The splitter's model is not thread-safe: it has state while it runs.
_lock = threading.Lock()


class SplittingTooSlow(InvalidInput):
    """Splitting the text takes more than its budget of processor time."""


def split_sentences(text: str) -> list[SentenceSpan]:
    """Return the start and end of every sentence of a text; SplittingTooSlow if it takes more than its budget.

    >>> text = "Dr. Smith went home. He slept."
    >>> [text[start:end] for start, end in split_sentences(text)]
    ['Dr. Smith went home.', 'He slept.']
    """
    return list(sentence_spans(text))


def sentence_spans(text: str) -> Iterator[SentenceSpan]:
    """Yield the spans of `split_sentences` one by one. A caller that stops early saves work."""
    budget = _Budget(len(text))
    for block_start, block_end in _blocks(text):
        budget.check(block_start)
        for start, end in _prose(text, block_start, block_end, budget):
            trimmed = _trim(text, start, end)
            if trimmed is not None:
                yield from _cut(text, *trimmed)


class _Budget:
    """The budget of processor time for splitting one text of `length` code points.

    Time in which the thread waits does not count. Work of the same thread between two sentences counts.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._seconds = BUDGET_SECONDS + BUDGET_SECONDS_PER_MILLION * length / 1e6
        self._until = time.thread_time() + self._seconds

    def check(self, position: int) -> None:
        """Raise SplittingTooSlow if the budget is used up. The error says that `position` code points are split."""
        if time.thread_time() > self._until:
            raise SplittingTooSlow(
                f"text of {self._length} code points takes more than {self._seconds:.1f} s of processor time to be"
                f" split into sentences, the limit for its length: only its first {position} code points are split."
                " Divide it into several documents, or remove parts that are not prose, such as long runs of marks"
            )


def _blocks(text: str) -> Iterator[SentenceSpan]:
    """Yield the spans of paragraphs and list items.

    If a paragraph or list item has several lines, each structured line (`_is_structured`), such as a row of a table or
    a line of code, is a span of its own. The other lines between two structured lines stay together.
    """
    breaks = chain(_BLANK_LINE.finditer(text), _NEW_ITEM.finditer(text))
    for start, end in pairwise(sorted({0, len(text), *(match.end() for match in breaks)})):
        lines = text[start:end].splitlines(keepends=True) if _MAY_BE_STRUCTURED.search(text, start, end) else ()
        structured = [_is_structured(line) for line in lines] if len(lines) > 1 else ()
        if not any(structured):
            yield start, end
            continue
        position = begin = start
        for line, alone in zip(lines, structured, strict=True):
            if alone:
                if position > begin:
                    yield begin, position
                yield position, position + len(line)
                begin = position + len(line)
            position += len(line)
        if begin < end:
            yield begin, end


def _is_structured(line: str) -> bool:
    # Trailing spaces do not make a column.
    return _STRUCTURED.search(line.rstrip()) is not None


def _prose(text: str, start: int, end: int, budget: _Budget) -> Iterator[SentenceSpan]:
    # For some texts (such as a run of "!"), the splitter's time grows with the square of the length. So long blocks are
    # split in parts.
    while end - start > MAX_BLOCK_LENGTH:
        edges = (m.end() for m in _LIKELY_END.finditer(text, start, start + MAX_BLOCK_LENGTH))
        edge = max(edges, default=start + MAX_BLOCK_LENGTH)
        yield from _block_sentences(text, start, edge)
        budget.check(start)
        start = edge
    yield from _block_sentences(text, start, end)


def _block_sentences(text: str, start: int, end: int) -> Iterator[SentenceSpan]:
    block = text[start:end]
    if not block.strip():
        return
    if _STOP.search(block) is None:
        spans = [(0, len(block))]
    else:
        with _lock:
            spans = nupunkt.sent_spans(block)
    for first, last in spans:
        position = first
        if not block.isascii():
            for stop in _UNSPACED_STOP.finditer(block, first, last):
                yield start + position, start + stop.end()
                position = stop.end()
        if position < last:
            yield start + position, start + last


def _trim(text: str, start: int, end: int) -> SentenceSpan | None:
    part = text[start:end]
    kept = part.strip()
    if not kept:
        return None
    start += len(part) - len(part.lstrip())
    return start, start + len(kept)


def _token_estimate(word: str) -> int:
    """Estimate the number of tokens of a word.

    - A word with characters of a dense script (`_DENSE`, such as Chinese or Thai) has one token per character.
    - Any other word of up to 8 characters has one token.
    - A longer word has one token per 4 characters.
    """
    if not word.isascii() and _DENSE.search(word):
        return len(word)
    return (len(word) + 3) // 4 if len(word) > 8 else 1


def _limit(text: str, start: int, end: int) -> int:
    """Return the last position, at most `end`, at which a sentence that starts at `start` may end.

    The limits are `MAX_SENTENCE_LENGTH` code points and about `MAX_SENTENCE_TOKENS` tokens (`_token_estimate`).
    """
    end = min(end, start + MAX_SENTENCE_LENGTH)
    if end - start <= MAX_SENTENCE_TOKENS:
        return end
    tokens = 0
    part = text[start:end]
    if part.isascii():
        # Most sentences are short enough. For them, the ends of words are not computed.
        found = _WORD_OR_MARK.findall(part)
        if len(found) + sum([(len(word) - 1) // 4 for word in found if len(word) > 8]) <= MAX_SENTENCE_TOKENS:
            return end
    for match in _WORD_OR_MARK.finditer(text, start, end):
        size = _token_estimate(match.group())
        if tokens + size > MAX_SENTENCE_TOKENS:
            # A word is cut only if the word by itself exceeds the limit.
            return match.start() if tokens else min(match.end(), start + MAX_SENTENCE_TOKENS)
        tokens += size
    return end


def _cut(text: str, start: int, end: int) -> Iterator[SentenceSpan]:
    """Yield the parts of the sentence from `start` to `end`, each within the limits of `_limit`.

    A part ends after a clause if possible, otherwise between words. A word is cut only if the word alone is too long.
    """
    while start < end:
        limit = _limit(text, start, end)
        if limit >= end:
            yield start, end
            return
        middle = start + (limit - start) // 2
        edge = max((m.end() for m in _CLAUSE.finditer(text, middle, limit)), default=0)
        if not edge:
            edge = max((m.end() for m in _WHITESPACE.finditer(text, start + 1, limit + 1)), default=0)
        piece = _trim(text, start, edge or limit)
        if piece is not None:
            yield piece
        start = edge or limit
        while start < end and text[start].isspace():
            start += 1
