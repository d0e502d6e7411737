"""Pairs of a question and a passage from text that ships with CPython."""

from __future__ import annotations

import re
from pydoc_data.topics import topics

import pytest

QUESTIONS = (
    "What does the with statement do?",
    "When is __del__ called?",
    "Which exception is raised if the name is not found?",
    "What is returned by super()?",
    "How are default parameter values evaluated?",
    "Warum heißt die Sprache so?",
)


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str]]:
    """480 pairs of very different lengths."""
    text = " ".join(topics[name] for name in sorted(topics))
    sentences = [found for found in re.split(r"(?<=[.!?])\s+", text) if 10 < len(found) < 700]
    step = len(sentences) // 480
    return [(QUESTIONS[i % len(QUESTIONS)], sentences[i * step]) for i in range(480)]
