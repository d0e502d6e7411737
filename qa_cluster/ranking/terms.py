"""The analyzer: makes terms from texts and questions. Ranking compares these terms.

`analyze` makes the terms of sentences and of questions. If its results change, the terms that `fields` add, or the
metadata that `filters` packs, raise `ANALYZER_VERSION`: the shards then reindex their documents.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise

import Stemmer

ANALYZER_VERSION = f"5-snowball-{Stemmer.version()}"
MAX_TERM_LENGTH = 64
# The limit of the index.
MAX_QUESTION_TERMS = 32

# Scripts without spaces between words, and Hangul, which attaches particles to words: their terms are pairs of
# neighbouring characters.
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
_DIACRITICS = re.compile("[\u0300-\u036f]+")
_local = threading.local()


@cache
def _word() -> re.Pattern[str]:
    """A word of a text that is not ASCII. Combining marks are parts of words, but ``re`` does not see them as letters.

    The pattern is made at its first use, because the search for all marks takes longer than most imports.
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
    """The terms of a text, in their order, with repetitions and without stop words.

    >>> analyze("The Café's waiters were running.")
    ['cafe', 'waiter', 'run']
    >>> analyze("東京都 2020")
    ['東京', '京都', '2020']
    """
    if text.isascii():
        # ASCII words follow the rules of `words`; their terms are cached. A word is cut before the lookup, which limits
        # the memory of the cache.
        return [term for word in _ASCII_WORD.findall(text.lower()) if (term := _term(word[:MAX_TERM_LENGTH]))]
    text = unaccented(text)
    return [term for term in stems([word for word, _, _ in words(text.casefold())]) if term]


@lru_cache(maxsize=50_000)
def _term(word: str) -> str:
    """The term of a lower-case ASCII word of at most `MAX_TERM_LENGTH` letters; empty for a stop word."""
    (found,) = stems([word]) if len(word) > 1 and word not in STOPWORDS else ("",)
    return found


def question_terms(question: str, limit: int = MAX_QUESTION_TERMS) -> list[str]:
    """The first ``limit`` distinct terms of a question, in their order."""
    return list(dict.fromkeys(analyze(question)))[:limit]


def unaccented(text: str) -> str:
    """The text without accents, with plain letters in place of compatibility characters."""
    return unicodedata.normalize("NFC", _DIACRITICS.sub("", unicodedata.normalize("NFKD", text)))


def words(text: str) -> Iterator[tuple[str, int, int]]:
    """The words of an unaccented, case-folded text that become terms, each with its start and end."""
    # Single letters and digits only add noise: without them recall at 5 rose from .652 to .697 on CORD-19 questions.
    return (found for found in _words(text) if found[0] not in STOPWORDS and (len(found[0]) > 1 or found[0] > "\u2e7f"))


def _words(text: str) -> Iterator[tuple[str, int, int]]:
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
    """The stem of each word; it may be empty."""
    # One stemmer for each thread: an instance has a cache and is not thread-safe.
    stemmer = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = Stemmer.Stemmer("english")
    stemmed: list[str] = stemmer.stemWords(found)
    return stemmed
