"""Reads plain questions with their accepted answers strictly, from JSON lines. The documents are not in the file.

A plain question has no context: the system must find the answer in all its documents.

A line has `question`, and either `answers` or `pattern`. `answers` has all accepted forms; an empty list means that no
document answers the question. An answer is right if the regular expression `pattern` matches a part of it, regardless
of case. A line may have `document`: the id of the document that the answer must come from, or the end of the id after a
`/` or `:`. All other fields that have texts are labels: figures can be grouped by a label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InvalidInput

from .examples import question_lines
from .scoring import normalise

EXTRA_WORDS = 5
"""The number of words that an answer may have in addition to the accepted answer that it contains."""

MAX_PATTERN_LENGTH = 1000
_OWN = frozenset({"question", "answers", "pattern", "document"})


@dataclass(frozen=True, slots=True)
class PlainQuestion:
    """A question with its accepted answers. If it has neither answers nor a pattern, no document answers it.

    Attributes:
        document: the id of the document that the answer must come from, or the end of that id. If it is empty, the
            answer may come from any document.
        labels: the other text fields of the line.
    """

    question: str
    answers: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    document: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        """Whether a document answers the question."""
        return bool(self.answers) or self.pattern is not None

    def is_right(self, answer: str, document_id: str) -> bool:
        """Return whether an answer from a document is right.

        The answer is right if one of these holds:

        - The pattern matches a part of the answer, regardless of case.
        - The answer equals an accepted answer.
        - The answer contains all words of an accepted answer in a row, and at most EXTRA_WORDS more words.

        Comparisons with accepted answers ignore case, ASCII punctuation and articles. If the question names a
        document, the answer must come from this document.

        >>> question = PlainQuestion("Who?", ("Ada Lovelace",), document="ada.txt")
        >>> question.is_right("by Ada Lovelace,", "letters/ada.txt"), question.is_right("Ada", "letters/ada.txt")
        (True, False)
        """
        if not self.answered or not answer.strip() or not self._is_of(document_id):
            return False
        if self.pattern is not None and self.pattern.search(answer):
            return True
        given = _words(answer)
        return any(_holds(given, _words(accepted)) for accepted in self.answers)

    def _is_of(self, document_id: str) -> bool:
        return (
            not self.document
            or document_id == self.document
            or document_id.endswith((f"/{self.document}", f":{self.document}"))
        )


def _words(text: str) -> list[str]:
    """Return the normalised words of a text. If it has no words, such as ``$!``, return the text itself."""
    return normalise(text).split() or [text.strip()]


def _holds(given: list[str], accepted: list[str]) -> bool:
    spare = len(given) - len(accepted)
    return (
        bool(accepted)
        and 0 <= spare <= EXTRA_WORDS
        and any(given[first : first + len(accepted)] == accepted for first in range(spare + 1))
    )


def holds_plain_questions(path: Path) -> bool:
    """Return whether a JSON-lines file has plain questions, without a context.

    The first line that is not empty decides. The result is False for a file whose name does not end in .jsonl or
    .jsonl.gz.
    """
    if not path.name.lower().endswith((".jsonl", ".jsonl.gz")):
        return False
    for _, line in question_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return False
        return isinstance(row, dict) and "context" not in row and bool({"answers", "pattern"} & row.keys())
    return False


def load_plain_questions(path: Path) -> list[PlainQuestion]:
    """Read all questions of a file; InvalidInput names the file, the line and the reason."""
    questions = [_parse(line, f"{str(path)!r} line {number}") for number, line in question_lines(path)]
    if not questions:
        raise InvalidInput(f"question set {str(path)!r} contains no question")
    return questions


def _parse(line: str, where: str) -> PlainQuestion:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InvalidInput(f"{where} must be an object with question and answers or pattern")
    if ("answers" in row) == ("pattern" in row):
        raise InvalidInput(f"{where} must have either answers or pattern")
    answers = row.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise InvalidInput(f"{where}: answers must be a list of non-empty texts; an empty list means no answer")
    texts = {name: row.get(name, "") for name in ("question", "document")}
    if not all(isinstance(text, str) for text in texts.values()) or not texts["question"].strip():
        raise InvalidInput(f"{where}: question and document must be texts, and the question not empty")
    labels = {name: value for name, value in row.items() if name not in _OWN and isinstance(value, str)}
    question = PlainQuestion(texts["question"], tuple(answers), _pattern(row, where), texts["document"], labels)
    if not all(map(is_unicode, (question.question, question.document, *question.answers, *labels.values()))):
        raise InvalidInput(f"{where}: contains a lone surrogate, which is not valid Unicode")
    return question


def _pattern(row: dict[str, Any], where: str) -> re.Pattern[str] | None:
    if "pattern" not in row:
        return None
    text = row["pattern"]
    if not isinstance(text, str) or not 0 < len(text) <= MAX_PATTERN_LENGTH:
        raise InvalidInput(f"{where}: pattern must be a text of 1 to {MAX_PATTERN_LENGTH} characters")
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise InvalidInput(f"{where}: pattern {text[:100]!r} is not a regular expression: {error}") from error
