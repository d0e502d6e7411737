"""Adds terms to a query: completions of its last word, and synonyms.

The weight of a term follows from the number of sentences that contain it (`bm25.idf`). To set the weight of an added
term, an expansion replaces this number. Indexes and clients then compute the same scores. The functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, log

from .terms import (
    MAX_QUESTION_TERMS,
    MAX_TERM_LENGTH,
    STOPWORDS,
    question_terms,
    stems,
    unaccented,
    words_and_stopwords,
)

# The maximum number of completions of one word.
MAX_COMPLETIONS = 8
# Endings that a stemmer removes. A user who has typed `runni` probably wants `running`, whose term is `run`.
_ENDINGS = ("s", "es", "ed", "ing", "ly", "ion", "ions", "ation", "ations", "ment", "ness", "ies", "ied")


@dataclass(frozen=True, slots=True)
class Expansion:
    """The terms of a query with additional terms.

    Attributes:
        terms: all terms, the query's own terms first.
        completions: the terms that may complete the last word. The numbers of sentences with each completion are added
            up, and each completion gets the weight for this sum. So a rare completion does not outrank a frequent
            completion.
        exact: the term of the last word exactly as typed. If it is one of the completions, it has its own weight.
        weights: for each term of a synonym, the factor by which its weight is multiplied.
    """

    terms: tuple[str, ...]
    completions: frozenset[str] = frozenset()
    exact: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)

    def weighed(self, sentences: int, frequencies: Sequence[int]) -> list[int]:
        """Return the frequencies that determine the terms' weights, from the true frequencies.

        >>> Expansion(("a", "b", "c"), frozenset("bc"), exact="c").weighed(100, [1, 2, 3])
        [1, 5, 3]
        """
        rows = list(zip(self.terms, frequencies, strict=True))
        together = min(sentences, sum(frequency for term, frequency in rows if term in self.completions))
        return [
            together
            if term in self.completions and term != self.exact
            else _weighed(sentences, frequency, self.weights[term])
            if term in self.weights
            else frequency
            for term, frequency in rows
        ]


def _weighed(sentences: int, frequency: int, weight: float) -> int:
    """Return the frequency whose idf is `weight` times the idf of `frequency`, rounded to an integer.

    `weight` is from 0 to 1, so the result is at least `frequency`, and it is at most `sentences`, the number of
    sentences in the corpus.
    """
    own = log(sentences + 1) - log(min(frequency, sentences) + 0.5)
    return min(sentences, max(frequency, round((sentences + 1) * exp(-weight * own) - 0.5)))


@dataclass(frozen=True, slots=True)
class Typed:
    """A query that is being typed.

    Attributes:
        terms: the terms of its complete words.
        prefix: the last word if it may be incomplete; empty if it is complete.
    """

    terms: tuple[str, ...]
    prefix: str

    @classmethod
    def of(cls, text: str) -> Typed:
        """Split a query. A space or a punctuation mark after the last word completes the word.

        A last word that is a stop word also counts as complete, if the query has other terms.

        >>> Typed.of("capital of Fra"), Typed.of("capital of ")
        (Typed(terms=('capit',), prefix='fra'), Typed(terms=('capit',), prefix=''))
        """
        plain = unaccented(text).casefold()
        found = list(words_and_stopwords(plain))
        if not found or plain[found[-1][2] :]:
            return cls(tuple(question_terms(text)), "")
        last = found[-1][0]
        terms = tuple(question_terms(" ".join(word for word, _, _ in found[:-1])))
        if last in STOPWORDS and terms:
            return cls(terms, "")
        return cls(terms, last[:MAX_TERM_LENGTH])

    def expansion(self, completions: Iterable[str]) -> Expansion:
        """Return the terms of the complete words, and as many completions as a ranking allows.

        `completions` are the terms that may complete the last word, the most frequent first. If there are too many, the
        first of them are used.
        """
        own = self.terms[: MAX_QUESTION_TERMS - 1]
        more = tuple(term for term in dict.fromkeys(completions) if term not in own)[: MAX_QUESTION_TERMS - len(own)]
        return Expansion((*own, *more), frozenset(more), exact=stems([self.prefix])[0])


@lru_cache(maxsize=1000)
def stems_of_prefix(prefix: str) -> tuple[str, ...]:
    """Return the stem of the prefix, and the stems of the words that the prefix forms with common endings.

    The prefix may already contain the first letters of an ending. Most of these words are not real words.

    >>> "run" in stems_of_prefix("runni"), "relat" in stems_of_prefix("relatio"), "run" in stems_of_prefix("rub")
    (True, True, False)
    """
    words = {prefix}
    for ending in _ENDINGS:
        for known in range(len(ending)):
            if prefix.endswith(ending[:known]) and len(prefix) - known > 1:
                words.add(prefix + ending[known:])
    return tuple(sorted(term for term in set(stems(sorted(words))) if len(term) > 1))


def added_by_synonyms(
    terms: Sequence[str], groups: Iterable[Sequence[Sequence[str]]], weight: float, limit: int
) -> Expansion:
    """Return the terms of a query with the terms of its synonyms.

    Args:
        terms: the terms of the query.
        groups: groups of synonyms. A group has, for each word or phrase, a list of its terms. If the query has all
            terms of a word or phrase, the terms of the whole group are added.
        weight: the factor by which the weight of each added term is multiplied.
        limit: the maximum number of added terms.
    """
    known, added = set(terms), list[str]()
    for group in groups:
        if any(known.issuperset(phrase) for phrase in group):
            added += [term for phrase in group for term in phrase if term not in known]
    more = tuple(dict.fromkeys(added))[: max(0, min(limit, MAX_QUESTION_TERMS - len(terms)))]
    return Expansion((*terms, *more), weights=dict.fromkeys(more, weight))
