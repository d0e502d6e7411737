"""Finds the words of a text that match terms of a question.

The analyzer changes a text before it splits the text into words: it removes accents, replaces compatibility characters
with letters, and folds case. This module folds each piece of the text separately and records its offsets, so that a
match can be shown in the original text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator

from .terms import rare_words, stems, unaccented, words


def highlights(text: str, terms: Collection[str]) -> list[tuple[int, int]]:
    """Return the start and end of each word that matches one of the terms, in order. Overlapping words are merged.

    >>> [(start, end)] = highlights("The Cafe\u0301s of Wien", ["cafe"])
    >>> (start, end)
    (4, 10)
    """
    if text.isascii():
        folded, starts, ends = text.casefold(), None, None
    else:
        folded, starts, ends = _folded(text)
    found = list(words(folded))
    stemmed = stems([word for word, _, _ in found])
    spans = [
        (first, last) if starts is None or ends is None else (starts[first], ends[last - 1])
        for stem, (_, first, last) in zip(stemmed, found, strict=True)
        if stem in terms
    ]
    rare = rare_words(text, alone=not any(stemmed))
    spans += [(word.start, word.end) for word in rare if word.term in terms]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _folded(text: str) -> tuple[str, list[int], list[int]]:
    """Return the folded text, and for each folded character, the start and end of its source in `text`."""
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
    """Yield the start and end of each piece of a text that can be normalised separately.

    A piece is a letter with the marks that follow it, or a Korean syllable, even if several characters encode the
    syllable.
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
