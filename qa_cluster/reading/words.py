"""Widens spans of text to whole words and whole visible characters, and decides which texts can be answers.

In scripts without spaces, this module cannot find the edges of words. It only keeps visible characters whole: a letter
with its marks, or an emoji with all joined characters. The functions are pure.
"""

from __future__ import annotations

import re
import unicodedata

_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1980-\u19df\u1a20-\u1aaf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf"
    r"\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
# The zero-width joiner and non-joiner, and the characters that are letters in Unicode, but extend the previous
# character: Thai and Lao AM, half-width voicing marks.
_JOINERS = "\u200c\u200d"
_LETTERS_THAT_EXTEND = "\u0e33\u0eb3\uff9e\uff9f"
# Invisible characters inside words (soft hyphen, word joiner, byte order mark, direction marks), and how many in a row
# are skipped.
_INVISIBLE = "\u00ad\u061c\u200e\u200f\u2060\ufeff"
_MOST_INVISIBLE = 3
# Skin tones, and tag characters, which spell the flags of regions.
_FIRST_SKIN_TONE, _LAST_SKIN_TONE = "\U0001f3fb", "\U0001f3ff"
_FIRST_TAG, _LAST_TAG = "\U000e0020", "\U000e007f"
_FIRST_REGIONAL, _LAST_REGIONAL = "\U0001f1e6", "\U0001f1ff"

# Function words that cannot be an answer alone. "no", "can" and "both" can be an answer.
_JOINING_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by for from had has have he her his how i if in into is it its me my of on or "
        "our she so such than that the their them then there these they this those to was we were what when where "
        "which while who whom whose why will with would you your",
    )
)
# These characters are removed from words before the words are compared. The dash is not removed, because "-a" is an
# option of a command.
_QUOTES_AND_STOPS = ".,;:!?()[]{}\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb"

# Paired marks: each closing mark with its opening marks. A mark can be an opening and a closing mark: German closes a
# quotation with the mark that opens a quotation in English.
_OPENERS = {
    ")": "(",
    "]": "[",
    "}": "{",
    '"': '"',
    "`": "`",
    "'": "'",
    "\u201d": "\u201c\u201e\u201d",
    "\u201c": "\u201e\u201d",
    "\u2019": "\u2018\u201a\u2019",
    "\u2018": "\u201a",
    "\u00bb": "\u00ab\u00bb",
    "\u00ab": "\u00bb",
    "\u203a": "\u2039\u203a",
    "\u2039": "\u203a",
    "\u300d": "\u300c",
    "\u300f": "\u300e",
    "\u3011": "\u3010",
    "\u300b": "\u300a",
    "\uff09": "\uff08",
}
_CLOSERS = {
    opener: "".join(closer for closer, openers in _OPENERS.items() if opener in openers)
    for opener in {*"".join(_OPENERS.values())}
}
_MARKS = frozenset(_OPENERS) | frozenset(_CLOSERS)
_APOSTROPHES = "'\u2019"
_STOPS = ".,;:!?"

# An opening mark at the end of a text. A straight quotation mark is an opening mark if white space precedes it.
_OPENS_AT_END = re.compile(r"(?:[(\[{\u2018\u201c\u201e\u00ab]|\s[\"'`])$")


def can_answer(text: str) -> bool:
    """Return whether a text can be an answer.

    An answer has a letter or digit, and at least one word that is not a function word. A word of several capital
    letters, such as ``WHO``, is not a function word. An answer does not end with an opening quotation mark or bracket.

    >>> [can_answer(text) for text in ("by", '"', "-a", "no", "by 1843", "WHO", 'raises the "')]
    [False, False, True, True, True, True, False]
    """
    if not any(character.isalnum() for character in text) or _OPENS_AT_END.search(text):
        return False
    words = (word.strip(_QUOTES_AND_STOPS) for word in text.split())
    return any(
        (word.casefold() not in _JOINING_WORDS or (len(word) > 1 and word.isupper())) and any(map(str.isalnum, word))
        for word in words
    )


def whole_words(text: str, start: int, end: int, low: int = 0, high: int | None = None) -> tuple[int, int]:
    """Return the span without white space at its ends, widened to the whole words in which it starts and ends.

    Args:
        start, end: code points, half-open; an end beyond the text means the end of the text.
        low, high: the limits for the start and the end of the result; by default, the start and the end of the text.

    >>> whole_words("unhappiness rules", 2, 5)
    (0, 11)
    >>> whole_words("by Theodore Ts'o", 3, 14)
    (3, 16)
    """
    end = min(end, len(text))
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start >= end:
        return start, start
    high = len(text) if high is None else min(high, len(text))
    while start > low and _together(text, start):
        start -= 1
    while end < high and _together(text, end):
        end += 1
    return start, end


def whole_pairs(text: str, start: int, end: int, low: int = 0, high: int | None = None) -> tuple[int, int]:
    """Return the span, changed so that it does not start or end with a mark (bracket, quote) whose partner is outside.

    If the partner is next to the span, and between `low` and `high`, the span is extended to include the partner. If
    the partner is not there, the mark is removed from the span, with the punctuation after the mark. Two more rules:

    - If the span has an open bracket inside and the closing bracket follows the span, the span is extended to include
      the closing bracket.
    - A span that starts with ``(`` or ``[`` and ends with ``)`` or ``]`` is not changed. So the half-open interval
      ``[0, 1)`` stays whole.

    >>> text = 'He sang "Blue Sea" (1971).'
    >>> [text[slice(*whole_pairs(text, start, end))] for start, end in ((9, 18), (8, 17), (13, 18), (20, 24), (18, 25))]
    ['"Blue Sea"', '"Blue Sea"', 'Sea', '1971', '(1971)']
    """
    high = len(text) if high is None else min(high, len(text))
    if start < end and text[start] in "([" and text[end - 1] in ")]":
        return start, end
    while start < end:
        last = end - 1
        while last > start and text[last] in _STOPS:
            last -= 1
        if text[start] in _MARKS and _begins_half(text, start, end):
            if end < high and text[end] in _CLOSERS.get(text[start], ""):
                return start, end + 1
            start += 1
        elif text[last] in _MARKS and _ends_half(text, start, last):
            if start > low and text[start - 1] in _OPENERS.get(text[last], ""):
                return start - 1, last + 1
            end = last
        elif text[start].isspace():
            start += 1
        elif text[end - 1].isspace():
            end -= 1
        elif end < high and text[end] in ")]}" and _is_open(text[start:end], text[end]):
            end += 1
        else:
            break
    return start, end


def _begins_half(text: str, start: int, end: int) -> bool:
    """Return whether the mark at the start of a span has no closing mark in the span.

    If the mark is an apostrophe, there must also be a closing mark after the span.
    """
    mark, inside = text[start], text[start + 1 : end]
    closers = _CLOSERS.get(mark, "")
    if mark in _APOSTROPHES:  # "'90s" has no closing mark after the span
        return not _closes(inside, closers) and _closes(text[max(end - 1, start + 1) :], closers)
    return not any(closer in inside for closer in closers)


def _ends_half(text: str, start: int, last: int) -> bool:
    """Return whether the mark at the end of a span, at `last`, has no opening mark in the span.

    If the mark is an apostrophe, there must also be an opening mark before the span.
    """
    mark, inside = text[last], text[start:last]
    openers = _OPENERS.get(mark, "")
    if mark in _APOSTROPHES:  # "the dogs' bowl" has no opening mark before the span
        return not _opens(inside, openers) and _opens(text[:last], openers)
    if mark == '"' and inside[-1:].isdigit() and text.count('"', 0, start) % 2 == 0:
        return False  # the mark means inches, as in 5"
    return not any(opener in inside for opener in openers)


def _opens(text: str, marks: str) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(mark)}(?=\S|$)", text) for mark in marks)


def _closes(text: str, marks: str) -> bool:
    return any(re.search(rf"(?<=\S){re.escape(mark)}(?!\w)", text) for mark in marks)


def _is_open(text: str, closer: str) -> bool:
    """Return whether the text has more opening than closing brackets of the kind that `closer` closes."""
    return text.count(_OPENERS[closer]) > text.count(closer)


def _together(text: str, at: int) -> bool:
    """Return whether a span must not start or end between the code points `at` - 1 and `at`, which both exist."""
    left, right = text[at - 1], text[at]
    if left in _APOSTROPHES or right in _APOSTROPHES:
        return _within_word(text, at if right in _APOSTROPHES else at - 1)
    if left.isascii() and right.isascii():
        return left.isalnum() and right.isalnum()
    if _extends(right):
        return not left.isspace()
    if left in _JOINERS:
        return not right.isspace()
    if _FIRST_REGIONAL <= left <= _LAST_REGIONAL:
        return _FIRST_REGIONAL <= right <= _LAST_REGIONAL
    if left in _INVISIBLE or right in _INVISIBLE:
        left, right = text[_seen(text, at - 1, -1)], text[_seen(text, at, 1)]
    return _in_word(left) and right.isalnum() and not (_UNSPACED.match(left) or _UNSPACED.match(right))


def _within_word(text: str, at: int) -> bool:
    """Return whether the apostrophe at `at` is part of a word, as in `O'Brien` and `don't`.

    It is not part of a word in a possessive (`Ada's`), after an elided letter (`l'été`), or as a quotation mark
    (`re'text'`).
    """
    if not (0 < at < len(text) - 1 and text[at - 1].isalpha() and text[at + 1].isalpha()):
        return False
    if text[at - 1].islower() and (at == 1 or not text[at - 2].isalpha()):
        return False
    end = at + 1
    while end < len(text) and text[end].isalnum():
        end += 1
    quoted = end < len(text) and text[end] in _APOSTROPHES
    return not quoted and text[at + 1 : end].casefold() != "s"


def _seen(text: str, at: int, step: int) -> int:
    """Return `at` if its character is visible, or else the offset of the first visible character in a direction.

    The direction `step` is 1 (forward) or -1 (backward). At most `_MOST_INVISIBLE` characters are skipped, and none
    beyond the ends of the text. So the character at the returned offset can also be invisible.
    """
    for _ in range(_MOST_INVISIBLE):
        if text[at] in _INVISIBLE and 0 <= at + step < len(text):
            at += step
    return at


def _extends(character: str) -> bool:
    """Return whether a character is a part of the previous character (grapheme extenders of UAX #29, and joiners)."""
    return (
        unicodedata.category(character)[0] == "M"
        or character in _JOINERS
        or character in _LETTERS_THAT_EXTEND
        or _FIRST_SKIN_TONE <= character <= _LAST_SKIN_TONE
        or _FIRST_TAG <= character <= _LAST_TAG
    )


def _in_word(character: str) -> bool:
    """Return whether this character may be part of a word, and be followed by a letter or digit of the word.

    The result is true for letters, digits, vowel signs and accents.
    """
    if character.isalnum():
        return True
    return unicodedata.category(character) in ("Mn", "Mc") and not "\ufe00" <= character <= "\ufe0f"
