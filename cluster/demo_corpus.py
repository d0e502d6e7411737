"""The demo's documents and questions: the Python language reference, which ships with CPython (`pydoc_data.topics`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qa_cluster.types import Document

QUESTIONS = (
    "Which exception does division by zero raise?",
    "How can an empty tuple be formed?",
    "When are default parameter values evaluated?",
    "What does the built-in type range() represent?",
    "What does the unary minus operator yield?",
    "What is __del__ also called?",
)

# The reference marks up text the way its plain-text rendering does: *emphasis*, "code", _underlined titles.
_UNDERLINE = re.compile(r"^[*=\-~^]{3,}$", re.MULTILINE)


def documents() -> Iterator[Document]:
    """One document for each topic of the language reference."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        title = next((line.strip() for line in text.splitlines() if line.strip()), name)
        yield Document(id=name, text=_UNDERLINE.sub("", text), title=title, metadata={"source": "pydoc_data.topics"})
