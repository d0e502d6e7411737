"""Checks the arguments of triggers before any work starts.

An argument of a client can cost a shard far more memory than its size. For example, 20,000 sentences with a question of
one megabyte would need 20 GB of keys. So the number of sentences and the length of a question are limited.
"""

from __future__ import annotations

from typing import Any

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.shard_functions import MAX_QUESTION_CHARS


def check_question(value: Any) -> str:
    """Return a question that is not empty and within the limit; otherwise raise InvalidInput or InputTooLong."""
    question = within_limit(value)
    if not question.strip():
        raise InvalidInput(f"question must be non-empty text, got {question!r}"[:200])
    return question


def within_limit(value: Any) -> str:
    """Return a question, which may be empty. Raise InvalidInput if it is not text, InputTooLong if it is too long."""
    if not isinstance(value, str):
        raise InvalidInput("question is not valid UTF-8")
    if len(value) > MAX_QUESTION_CHARS:
        raise InputTooLong(f"question has {len(value)} code points, the limit is {MAX_QUESTION_CHARS}: shorten it")
    return value


def check_number(value: Any, what: str, least: int, most: int) -> int:
    """Parse a whole number in decimal digits, from `least` to `most`. `what` names the value in the error."""
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(most))
    if not digits or not least <= int(value) <= most:
        raise InvalidInput(f"{what} must be from {least} to {most}, got {value!r:.100}")
    return int(value)
