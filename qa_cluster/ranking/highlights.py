"""Where in a text the words stand that match terms of a question.

The analyzer changes a text before it takes it apart: accents go, compatibility characters become letters, case is
folded. Here each piece of the text is changed on its own and remembers where it came from, so that a match can be shown
in the text as it is.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator

from .terms import stems, unaccented, words


def highlights(text: str, terms: Collection[str]) -> list[tuple[int, int]]:
    """Start and end of the words that match one of the terms, in order; those that overlap are one.

    >>> [(start, end)] = highlights("The Cafe\u0301s of Wien", ["cafe"])
    >>> (start, end)
    (4, 10)
    """
    if text.isascii():
        folded, starts, ends = text.casefold(), None, None
    else:
        folded, starts, ends = _folded(text)
    found = list(words(folded))
    merged: list[tuple[int, int]] = []
    for stem, (_, first, last) in zip(stems([word for word, _, _ in found]), found, strict=True):
        if stem not in terms:
            continue
        start, end = (first, last) if starts is None or ends is None else (starts[first], ends[last - 1])
        if merged and start < merged[-1][1]:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged


def _folded(text: str) -> tuple[str, list[int], list[int]]:
    """The text as the analyzer folds it, and for each of its characters where what it came from starts and ends."""
    folded: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for start, end in _pieces(text):
        piece = unaccented(text[start:end]).casefold()
        folded.append(piece)
        starts += [start] * len(piece)
        ends += [end] * len(piece)
    return "".join(folded), starts, ends


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Stretches of a text that normalise to the same alone and together: a letter with the marks that follow it.

    A piece ends where the next character is no mark and does not become one with what is before it, as the parts of a
    Korean syllable do.
    """
    start, before = 0, ""
    for place, character in enumerate(text):
        own = character if character.isascii() else unaccented(character)
        if place and not _joins(before, own):
            yield start, place
            start, before = place, ""
        before += own
    if text:
        yield start, len(text)


def _joins(before: str, own: str) -> bool:
    if own.isascii():
        return not own
    if unicodedata.combining(own[0]):
        return True
    return unicodedata.normalize("NFC", before + own) != unicodedata.normalize("NFC", before) + own
