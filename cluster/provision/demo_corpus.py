"""Documents and questions of the demo: the Python language reference, from CPython (`pydoc_data.topics`)."""

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

# Lines that underline titles in the plain-text reference.
_UNDERLINE = re.compile(r"^[*=\-~^]{3,}$", re.MULTILINE)


def documents() -> Iterator[Document]:
    """Yield one document for each topic of the reference, in the order of the topics' names. Topics that are part of a
    longer topic are left out.
    """
    from pydoc_data.topics import topics

    lines = {name: set(filter(None, map(str.strip, text.splitlines()))) for name, text in topics.items()}
    for name, text in sorted(topics.items()):
        if any(len(other) > len(lines[name]) and _is_part(lines[name], other) for other in lines.values()):
            continue
        title = next((line.strip() for line in text.splitlines() if line.strip()), name)
        yield Document(id=name, text=_UNDERLINE.sub("", text), title=title, metadata={"source": "pydoc_data.topics"})


def _is_part(lines: set[str], longer: set[str]) -> bool:
    """Return whether the longer topic has at least 95 % of the lines `lines` of a topic. The rest may differ, for
    example underlines of headings.
    """
    return len(lines & longer) >= 0.95 * len(lines)
