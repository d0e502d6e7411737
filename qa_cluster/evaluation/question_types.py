"""Classifies English questions by their question word, for figures per type.

The rules match words and do not parse the question, so they are easy to check.
"""

from __future__ import annotations

import re

QUESTION_TYPES = ("who", "when", "where", "how many", "how", "why", "what", "which", "yes-no", "other")

_WORD = re.compile(r"\b(?:(how\s+(?:many|much))|(who)(?:m|se)?|(when)|(where)|(how)|(why)|(what)|(which))\b")
_TYPES = ("how many", "who", "when", "where", "how", "why", "what", "which")
_AUXILIARY = re.compile(
    r"\W*(?:am|is|are|was|were|do|does|did|has|have|had|can|could|will|would|shall|should|may|might|must)(?:n['\u2019]t)?\b"
)


def question_type(question: str) -> str:
    """Return the type: "yes-no" for an auxiliary verb at the start, else the question word, else "other".

    >>> question_type("In what year did it end?"), question_type("How many were there?"), question_type("Is it so?")
    ('what', 'how many', 'yes-no')
    """
    text = question.lower()
    if _AUXILIARY.match(text):
        return "yes-no"
    found = _WORD.search(text)
    return "other" if found is None or found.lastindex is None else _TYPES[found.lastindex - 1]
