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
    """One document for each topic of the language reference that is not a part of a longer one."""
    from pydoc_data.topics import topics

    lines = {name: set(filter(None, map(str.strip, text.splitlines()))) for name, text in topics.items()}
    for name, text in sorted(topics.items()):
        if any(len(other) > len(lines[name]) and _is_part(lines[name], other) for other in lines.values()):
            continue
        title = next((line.strip() for line in text.splitlines() if line.strip()), name)
        yield Document(id=name, text=_UNDERLINE.sub("", text), title=title, metadata={"source": "pydoc_data.topics"})


def _is_part(lines: set[str], longer: set[str]) -> bool:
    """Whether nearly all lines (headings are underlined at another level) stand in the longer topic too."""
    return len(lines & longer) >= 0.95 * len(lines)
