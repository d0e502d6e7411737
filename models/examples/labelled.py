"""One labelled example, from any kind of file."""

from __future__ import annotations

import json
from dataclasses import dataclass

NO_ANSWER = -1
UNLABELLED = -2
ALONE = -1


@dataclass(frozen=True, slots=True)
class Labelled:
    """One question about one context. `answer_start` counts code points; -1: the context does not hold the answer.

    Attributes:
        answer_start: also -2 (`UNLABELLED`): nobody knows; only a teacher can say.
        title, section: where the context stands: its document's title, and the path of headings, joined by ` > `.
        group: contexts of one question that are trained together have the same number; -1: it stands alone.
    """

    question: str
    context: str
    answer: str
    answer_start: int
    source: str = ""
    title: str = ""
    section: str = ""
    group: int = ALONE

    def to_json(self) -> str:
        """Return the example as one line of a JSON-lines file, without its group."""
        return json.dumps({"question": self.question, **self.passage(), "source": self.source}, ensure_ascii=False)

    def passage(self) -> dict[str, object]:
        """Return the context with its answer and place as JSON-ready values."""
        known = self.answer_start != UNLABELLED
        row: dict[str, object] = {"context": self.context}
        row |= {"answer": self.answer if known else None, "answer_start": self.answer_start if known else None}
        return row | {name: getattr(self, name) for name in ("title", "section") if getattr(self, name)}
