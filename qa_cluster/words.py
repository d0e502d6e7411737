"""Where a span of text may end: never inside of a word, nor inside of what a reader sees as one character. Pure.

Words of scripts that write no space between them cannot be completed by looking for their edges; there, only
characters stay whole: a letter with its marks, an emoji with what is joined to it.
"""

from __future__ import annotations

import re
import unicodedata

_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1980-\u19df\u1a20-\u1aaf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
# Zero-width (non-)joiner; skin tones; what spells the flags of regions.
_JOINERS = "\u200c\u200d"
_FIRST_SKIN_TONE, _LAST_SKIN_TONE = "\U0001f3fb", "\U0001f3ff"
_FIRST_TAG, _LAST_TAG = "\U000e0020", "\U000e007f"
_FIRST_REGIONAL, _LAST_REGIONAL = "\U0001f1e6", "\U0001f1ff"


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """A span of text widened to the words it begins and ends in, without white space at its ends.

    Args:
        start, end: code points, half-open; an end beyond the text is its end.

    >>> whole_words("unhappiness rules", 2, 5)
    (0, 11)
    """
    end = min(end, len(text))
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start >= end:
        return start, start
    while start > 0 and _together(text[start - 1], text[start]):
        start -= 1
    while end < len(text) and _together(text[end - 1], text[end]):
        end += 1
    return start, end


def _together(left: str, right: str) -> bool:
    """Whether no span may end between two neighbouring characters."""
    if left.isascii() and right.isascii():
        return left.isalnum() and right.isalnum()
    if _extends(right):
        return not left.isspace()
    if left in _JOINERS:
        return not right.isspace()
    if _FIRST_REGIONAL <= left <= _LAST_REGIONAL:
        return _FIRST_REGIONAL <= right <= _LAST_REGIONAL
    if not (_in_word(left) and right.isalnum()):
        return False
    return not (_UNSPACED.match(left) or _UNSPACED.match(right))


def _extends(character: str) -> bool:
    """Whether a character is part of the one before it (grapheme extenders of Unicode's UAX #29, and joiners)."""
    return (
        unicodedata.category(character)[0] == "M"
        or character in _JOINERS
        or _FIRST_SKIN_TONE <= character <= _LAST_SKIN_TONE
        or _FIRST_TAG <= character <= _LAST_TAG
    )


def _in_word(character: str) -> bool:
    """Whether a letter or digit may follow in the same word: after vowel signs and accents too, not after emoji."""
    if character.isalnum():
        return True
    return unicodedata.category(character) in ("Mn", "Mc") and not "\ufe00" <= character <= "\ufe0f"
