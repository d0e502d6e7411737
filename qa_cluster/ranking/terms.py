"""The analyzer: computes terms from texts and questions. A ranking compares these terms.

`analyze` returns the terms of sentences, and `question_terms` returns the terms of questions. Increase
`ANALYZER_VERSION` if their results change, if `fields` adds different terms, or if `filters` packs metadata
differently. The shards then reindex their documents.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

import Stemmer

ANALYZER_VERSION = f"5-snowball-{Stemmer.version()}"
MAX_TERM_LENGTH = 64
# The maximum number of terms of a question.
MAX_QUESTION_TERMS = 32

# Scripts without spaces between words, and Hangul, which attaches particles to words. In these scripts, terms are pairs
# of adjacent characters.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)

STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been being but by can could did do does for from had has have he her his how i if in "
        "into is it its may me my no nor not of on or our shall she should so such than that the their them then there "
        "these they this those to was we were what when where which while who whom whose why will with would you your",
    )
)


_ASCII_WORD = re.compile(r"[a-z0-9]+(?:'[a-z0-9]+)*")
_UNSPACED_RUN = re.compile(f"[{UNSPACED}]+")
# Accents, and the characters that Unicode's NFKC_Casefold also removes (Default_Ignorable_Code_Point): soft hyphens,
# joiners, zero-width spaces, direction marks, isolates, variation selectors, tags.
_REMOVED = re.compile(
    "[\u0300-\u036f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Plain letters, each with the letters that it replaces. Unicode does not decompose these letters.
_PLAIN_LETTERS = (
    ("a", "\u1d8f\u2c65"),
    ("ae", "\u00e6"),
    ("b", "\u0180\u0183\u0253\u1d6c\u1d80"),
    ("c", "\u0188\u023c\u0255\ua793\ua794"),
    ("d", "\u00f0\u0111\u018c\u0221\u0256\u0257\u1d6d\u1d81\u1d91"),
    ("e", "\u01dd\u0247\u0259\u025b\u1d92\u2c78"),
    ("f", "\u0192\u1d6e\u1d82\ua799"),
    ("g", "\u01e5\u0260\u0261\u1d83\ua7a1"),
    ("h", "\u0127\u0266\u2c68\ua795"),
    ("i", "\u0131\u0268\u1d96"),
    ("j", "\u0237\u0249\u025f\u0284\u029d"),
    ("k", "\u0138\u0199\u1d84\u2c6a\ua741\ua743\ua745\ua7a3"),
    ("l", "\u0142\u019a\u0234\u026b\u026c\u026d\u1d85\u2c61\ua749\ua78e"),
    ("m", "\u0271\u1d6f\u1d86"),
    ("n", "\u014b\u019e\u0235\u0272\u0273\u1d70\u1d87\ua791\ua7a5"),
    ("o", "\u00f8\u0254\u0275\u2c7a\ua74b\ua74d"),
    ("oe", "\u0153"),
    ("p", "\u01a5\u1d71\u1d7d\u1d88\ua751\ua753\ua755"),
    ("q", "\u024b\u02a0\ua757\ua759"),
    ("r", "\u024d\u027c\u027d\u027e\u1d72\u1d73\u1d89\ua7a7"),
    ("s", "\u023f\u0282\u1d74\u1d8a\ua7a9"),
    ("t", "\u0167\u01ab\u01ad\u0236\u0288\u1d75\u2c66"),
    ("th", "\u00fe"),
    ("u", "\u0289\u1d99"),
    ("v", "\u028b\u1d8c\u2c71\u2c74\ua75f"),
    ("w", "\u2c73"),
    ("x", "\u1d8d"),
    ("y", "\u01b4\u024f\u1eff"),
    ("z", "\u01b6\u0225\u0240\u0290\u0291\u1d76\u1d8e\u2c6c"),
)
_PLAIN = {letter: plain for plain, letters in _PLAIN_LETTERS for letter in letters}
_PLAIN |= {
    letter.upper(): plain.upper() for letter, plain in _PLAIN.items() if len(letter.upper()) == 1 and letter != "\u0131"
}
_STROKED = re.compile(f"[{''.join(_PLAIN)}]")
# Words that are not ordinary terms, but may be names: a single letter (or a letter with ++ or #), and a stop word with
# a capital letter. Stop words have at most six letters.
_RARE = re.compile(r"\b(?:[A-Za-z\u00c0-\u052f](?:\+\+|#|\b(?!['\u2019]\w))|[A-Z][A-Za-z]{1,5}\b(?!['\u2019]\w))")
_APOSTROPHES = ("'", "\u2019")
_ANY_WORD = re.compile(r"[^\W_]+")
_local = threading.local()


@cache
def _word() -> re.Pattern[str]:
    """Return the pattern of a word in a text that is not ASCII.

    Combining marks are parts of words, but ``re`` does not treat them as letters. The pattern is created at its first
    use, because the search for all marks takes longer than most imports.
    """
    marks: list[list[int]] = []
    for code in range(0x300, 0x20000):
        if unicodedata.category(chr(code))[0] == "M":
            if marks and code == marks[-1][1] + 1:
                marks[-1][1] = code
            else:
                marks.append([code, code])
    ranges = "".join(f"{chr(first)}-{chr(last)}" for first, last in marks)
    return re.compile(rf"(?:[^\W_]|[{ranges}])+(?:['\u2019](?:[^\W_]|[{ranges}])+)*")


def analyze(text: str) -> list[str]:
    """Return the terms of a sentence, with repetitions and without stop words. The terms of `rare_words` come last.

    >>> analyze("The Caf\u00e9's waiters were running.")
    ['cafe', 'waiter', 'run']
    >>> analyze("\u6771\u4eac\u90fd 2020"), analyze("The WHO met in room B.")
    (['\u6771\u4eac', '\u4eac\u90fd', '2020'], ['met', 'room', 'who', 'b'])
    """
    found = _ordinary(text)
    return found + [word.term for word in rare_words(text, alone=not found)]


def _ordinary(text: str) -> list[str]:
    if text.isascii():
        # ASCII words follow the rules of `words`; their terms are cached. A word is cut before the lookup, which limits
        # the memory of the cache.
        return [term for word in _ASCII_WORD.findall(text.lower()) if (term := _term(word[:MAX_TERM_LENGTH]))]
    text = unaccented(text)
    return [term for term in stems([word for word, _, _ in words(text.casefold())]) if term]


def _is_apart(text: str, start: int, end: int) -> bool:
    """Return whether the word from `start` to `end` is not part of a longer word.

    Accents and invisible characters around the word are skipped. If an apostrophe precedes the word, or a letter or
    digit is next to it, the word is part of a longer word.
    """
    if after := _REMOVED.match(text, end):
        end = after.end()
    while start and _REMOVED.match(text[start - 1]):
        start -= 1
    return text[start - 1 : start] not in _APOSTROPHES and not (
        text[end : end + 1].isalnum() or text[start - 1 : start].isalnum()
    )


class RareWord(NamedTuple):
    """A word that is not an ordinary term, with its start and end in the text.

    Attributes:
        is_name: whether it is probably a name even if the text also has ordinary terms: ``WHO``, ``C++``.
    """

    term: str
    start: int
    end: int
    is_name: bool


def rare_words(text: str, *, alone: bool) -> Iterator[RareWord]:
    """Yield the words of a text that may be names although they are stop words or single letters.

    `alone` tells whether the text has no ordinary terms. If such a text has no rare words either, all its words are
    yielded.

    >>> [word.term for word in rare_words("IT, the Who and C++ of R", alone=False)]
    ['it', 'who', 'c++', 'r']
    """
    first = _ANY_WORD.search(text)
    at, shouted, is_empty = first.start() if first else 0, text.isupper(), True
    for found in _RARE.finditer(text):
        word = found[0]
        if not _is_apart(text, found.start(), found.end()):
            continue
        if len(word) > 1 and word[-1] not in "+#":
            is_stop_word = word.lower() in STOPWORDS
            is_name = is_stop_word and word.isupper() and not shouted
            if not is_name and (not is_stop_word or shouted or found.start() == at):
                continue
            term = word.lower()
        else:
            term, is_name = unaccented(word).casefold(), len(word) > 1
            if (term in STOPWORDS and word.isascii()) or not term[:1].isalnum() or (len(term) > 1 and not is_name):
                continue  # a term of two letters is an ordinary term
        is_empty = False
        yield RareWord(term, found.start(), found.end(), is_name)
    if alone and is_empty:
        for found in _ANY_WORD.finditer(text):
            term = unaccented(found[0]).casefold()[:MAX_TERM_LENGTH]
            if term.isalnum():
                yield RareWord(term, found.start(), found.end(), False)


@lru_cache(maxsize=50_000)
def _term(word: str) -> str:
    """Return the term of a lower-case ASCII word of at most `MAX_TERM_LENGTH` letters; empty for a stop word."""
    (found,) = stems([word]) if len(word) > 1 and word not in STOPWORDS else ("",)
    return found


def question_terms(question: str, limit: int = MAX_QUESTION_TERMS) -> list[str]:
    """Return the first ``limit`` distinct terms of a question. Names such as ``WHO`` and ``C++`` come last.

    Single letters, and stop words with only a capital first letter, are used only if the question has no other terms.
    If it has no such words either, all its words are used.

    >>> question_terms("What is the WHO?"), question_terms("What is vitamin B?"), question_terms("What is B?")
    (['who'], ['vitamin'], ['b'])
    """
    found = _ordinary(question)
    rare = list(rare_words(question, alone=not found))
    found += [word.term for word in rare if word.is_name]
    return list(dict.fromkeys(found or [word.term for word in rare]))[:limit]


def unaccented(text: str) -> str:
    """Return the text without accents and invisible characters, and with plain letters.

    Plain letters replace ligatures, variants of letters, and letters with strokes.

    >>> unaccented("Troms\u00f8, \u0141\u00f3d\u017a, light\u00adhouse")
    'Tromso, Lodz, lighthouse'
    """
    plain = _REMOVED.sub("", unicodedata.normalize("NFKD", text))
    return unicodedata.normalize("NFC", _STROKED.sub(lambda found: _PLAIN[found[0]], plain))


def words(text: str) -> Iterator[tuple[str, int, int]]:
    """Return the words of an unaccented, case-folded text that become terms, each with its start and end."""
    # Single letters and digits only add noise: without them recall at 5 rose from .652 to .697 on CORD-19 questions.
    return (
        found
        for found in words_and_stopwords(text)
        if found[0] not in STOPWORDS and (len(found[0]) > 1 or found[0] > "\u2e7f")
    )


def words_and_stopwords(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield all words of an unaccented, case-folded text, each with its start and end."""
    unspaced = not text.isascii()
    for match in _word().finditer(text):
        word = match.group()
        if unspaced and _UNSPACED_RUN.search(word):
            yield from _split_unspaced(word, match.start())
        else:
            yield word.replace("\u2019", "'")[:MAX_TERM_LENGTH], match.start(), match.end()


def _split_unspaced(word: str, at: int) -> Iterator[tuple[str, int, int]]:
    position = 0
    for run in _UNSPACED_RUN.finditer(word):
        if run.start() > position:
            yield word[position : run.start()][:MAX_TERM_LENGTH], at + position, at + run.start()
        characters, start = run.group(), at + run.start()
        if len(characters) == 1:
            yield characters, start, start + 1
        for place, (first, second) in enumerate(pairwise(characters), start):
            yield first + second, place, place + 2
        position = run.end()
    if position < len(word):
        yield word[position:][:MAX_TERM_LENGTH], at + position, at + len(word)


def stems(found: list[str]) -> list[str]:
    """Return the stem of each word. A stem may be empty."""
    # Each thread has its own stemmer, because an instance has a cache and is not thread-safe.
    stemmer = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = Stemmer.Stemmer("english")
    stemmed: list[str] = stemmer.stemWords(found)
    return stemmed
