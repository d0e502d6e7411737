"""One labelled example, from any kind of file."""

from __future__ import annotations

import json
from dataclasses import dataclass

NO_ANSWER = -1


@dataclass(frozen=True, slots=True)
class Labelled:
    """One question about one context. `answer_start` counts code points; -1: the context does not hold the answer."""

    question: str
    context: str
    answer: str
    answer_start: int
    source: str = ""

    def to_json(self) -> str:
        """Return the example as one line of a JSON-lines file."""
        row = {name: getattr(self, name) for name in ("question", "context", "answer", "answer_start", "source")}
        return json.dumps(row, ensure_ascii=False)
