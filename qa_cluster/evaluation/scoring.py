"""Exact match and F1 as SQuAD defines them: over lower-cased words without punctuation and articles."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower-case `text`, remove ASCII punctuation and articles, and join the words by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 if the prediction equals one of the answers after normalisation, else 0.0.

    If `answers` is empty, only a prediction without words gets 1.0.
    """
    return float(any(normalise(prediction) == normalise(answer) for answer in answers or ("",)))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the word-overlap F1 of the prediction with the answer that gives the highest F1, 0 to 1.

    If `answers` is empty, the result is 1.0 for a prediction without words, and 0.0 for all other predictions.
    """
    return max(_f1(normalise(prediction).split(), normalise(answer).split()) for answer in answers or ("",))


def _f1(predicted: list[str], expected: list[str]) -> float:
    if not predicted or not expected:
        return float(predicted == expected)
    shared = (Counter(predicted) & Counter(expected)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(expected)
    return 2 * precision * recall / (precision + recall)
