"""Checks the arguments of triggers before any work starts.

Clients choose the arguments, and a shard may need far more memory than their size: 20,000 sentences with a question of
one megabyte would need 20 GB of keys. So both have limits.
"""

from __future__ import annotations

from typing import Any

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.shard_functions import MAX_QUESTION_CHARS


def check_question(value: Any) -> str:
    """A question, not empty and within the limit."""
    question = within_limit(value)
    if not question.strip():
        raise InvalidInput(f"question must be non-empty text, got {question!r}"[:200])
    return question


def within_limit(value: Any) -> str:
    """A question that may be empty; InvalidInput if it is not text, InputTooLong if it exceeds the limit."""
    if not isinstance(value, str):
        raise InvalidInput("question is not valid UTF-8")
    if len(value) > MAX_QUESTION_CHARS:
        raise InputTooLong(f"question has {len(value)} code points, the limit is {MAX_QUESTION_CHARS}: shorten it")
    return value


def check_number(value: Any, what: str, least: int, most: int) -> int:
    """A whole number in decimal digits, from `least` to `most`."""
    digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(most))
    if not digits or not least <= int(value) <= most:
        raise InvalidInput(f"{what} must be from {least} to {most}, got {value!r:.100}")
    return int(value)
