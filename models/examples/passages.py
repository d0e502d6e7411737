"""Passages with the questions that were written for them: `models/training/written/*.jsonl.gz`.

A line has `domain`, `title`, `section`, `text` and `questions`. A question has a `question` (its text), an `answer`, a
`kind` and a `style`. The answer is copied from the text of the passage. If it occurs there several times, the first
occurrence counts. The answer is null if the passage does not answer the question. Other fields, such as `package`, are
ignored. A test requires that `faults` finds nothing in these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InvalidInput

from .labelled import NO_ANSWER, Labelled

DOMAINS = frozenset({"encyclopedic", "software", "law", "biomedicine", "news", "support", "manuals"})
STYLES = frozenset({"full", "casual", "keyword"})
KINDS = frozenset(
    {
        *("who", "when", "where", "how many", "how much", "how long", "what", "which", "which option", "default"),
        *("expansion", "definition", "why", "how", "condition", "consequence", "requirement", "exception", "name"),
    }
)
MAX_ANSWER_WORDS = 20
MIN_WORDS, MAX_WORDS = 15, 230
_POINTS = re.compile(r"\b(this|the) (passage|text)\b|\babove\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WrittenQuestion:
    """A question about a passage. `answer` is None if the passage does not answer the question."""

    question: str
    answer: str | None
    kind: str
    style: str


@dataclass(frozen=True, slots=True)
class WrittenPassage:
    """A passage of a document with its questions."""

    domain: str
    title: str
    section: str
    text: str
    questions: tuple[WrittenQuestion, ...]

    def examples(self) -> Iterator[Labelled]:
        """Yield the questions as labelled examples. Their field `source` is the passage's domain."""
        for asked in self.questions:
            start = NO_ANSWER if asked.answer is None else self.text.find(asked.answer)
            answer = asked.answer or ""
            yield Labelled(asked.question, self.text, answer, start, self.domain, self.title, self.section)


def passage_of(row: dict[str, Any], where: str) -> WrittenPassage:
    """Return the passage in the object `row` of a line. Raises InvalidInput, which names the fields, if a field is
    missing or has the wrong type.

    Args:
        where: the line, for error messages.
    """
    texts = [row.get(name) for name in ("domain", "title", "section", "text")]
    questions = row.get("questions")
    if not all(isinstance(text, str) and is_unicode(text) for text in texts) or not isinstance(questions, list):
        raise InvalidInput(f"{where} needs domain, title, section and text as strings and questions as an array")
    domain, title, section, text = map(str, texts)
    return WrittenPassage(domain, title, section, text, tuple(_question(each, where) for each in questions))


def _question(row: Any, where: str) -> WrittenQuestion:
    values = [row.get(name) for name in ("question", "kind", "style")] if isinstance(row, dict) else []
    answer = row.get("answer") if isinstance(row, dict) else ""
    if not values or not all(isinstance(value, str) and is_unicode(value) for value in values):
        raise InvalidInput(f"{where}: a question needs question, kind and style as strings")
    if answer is not None and (not isinstance(answer, str) or not is_unicode(answer)):
        raise InvalidInput(f"{where}: an answer must be a string, or null if the passage does not answer the question")
    question, kind, style = map(str, values)
    return WrittenQuestion(question, answer, kind, style)


def faults(passages: Iterable[WrittenPassage]) -> list[str]:
    """Return the faults of passages, each as a text that names the passage. Faults are labels that do not fit, wrong
    lengths, duplicates, and questions that mention the passage.
    """
    found: list[str] = []
    texts: set[str] = set()
    questions: set[str] = set()
    for passage in passages:
        where = f"{passage.title!r}"
        if passage.domain not in DOMAINS:
            found.append(f"{where}: unknown domain {passage.domain!r}")
        if not MIN_WORDS <= len(passage.text.split()) <= MAX_WORDS:
            found.append(f"{where}: {len(passage.text.split())} words, must be {MIN_WORDS} to {MAX_WORDS}")
        if (text := folded(passage.text)) in texts:
            found.append(f"{where}: the text occurs twice")
        texts.add(text)
        for asked in passage.questions:
            if (question := folded(asked.question)) in questions:
                found.append(f"{where}: the question occurs twice: {asked.question!r}")
            questions.add(question)
            found += [f"{where}: {fault}: {asked.question!r}" for fault in _faults_of(asked, passage.text)]
    return found


def folded(text: str) -> str:
    """Return the words of a text in lower case, for comparisons."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _faults_of(asked: WrittenQuestion, text: str) -> Iterator[str]:
    if asked.kind not in KINDS:
        yield f"unknown kind {asked.kind!r}"
    if asked.style not in STYLES:
        yield f"unknown style {asked.style!r}"
    if _POINTS.search(asked.question):
        yield "mentions the passage"
    answer = asked.answer
    if answer is None:
        return
    start, end = text.find(answer), text.find(answer) + len(answer)
    if not answer.strip() or answer != answer.strip() or start < 0:
        yield f"the answer {answer!r} is not in the text"
    elif text[start - 1 : start].isalnum() and answer[0].isalnum():
        yield f"the answer {answer!r} starts inside a word"
    elif text[end : end + 1].isalnum() and answer[-1].isalnum():
        yield f"the answer {answer!r} ends inside a word"
    if len(answer.split()) > MAX_ANSWER_WORDS:
        yield f"the answer has {len(answer.split())} words"
