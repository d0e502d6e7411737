"""One labelled example, and the special values of its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass

NO_ANSWER = -1
UNLABELLED = -2
ALONE = -1


@dataclass(frozen=True, slots=True)
class Labelled:
    """One question about one context.

    Attributes:
        answer: the text of the answer; empty if the context has no answer, or if the answer is unknown.
        answer_start: the start of the answer in the context, in code points. `NO_ANSWER`: the context has no answer.
            `UNLABELLED`: the label is unknown; in a training, a teacher (a trained reader) can give it.
        title, section: the title of the context's document, and the path of headings, joined by ` > `.
        group: the same number for contexts of one question that are trained together. `ALONE`: no group.
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
        """Return the context with its answer, title and section, as values that JSON can represent. An unknown answer
        becomes None. An empty title or section is left out.
        """
        known = self.answer_start != UNLABELLED
        row: dict[str, object] = {"context": self.context}
        row |= {"answer": self.answer if known else None, "answer_start": self.answer_start if known else None}
        return row | {name: getattr(self, name) for name in ("title", "section") if getattr(self, name)}
