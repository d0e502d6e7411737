"""Reads question sets strictly: SQuAD-format JSON and labelled JSON lines.

A JSON-lines file (plain or `.gz`) has one object per line with `question`, `context`, `answer` and `answer_start` (-1:
the context has no answer). As in SQuAD's own evaluation, an answer without text does not count. This module uses no
tokenizer and no model.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InvalidInput

_Question = TypeVar("_Question")


@dataclass(frozen=True, slots=True)
class Example:
    """A question about a context, with the accepted answers. If `answers` is empty, the context does not answer the
    question.

    Attributes:
        starts: the start of each answer in the context, in code points; empty if the file lacks the start of one of
            the answers.
        title, section: the title and section of the context, for readers that use a title and a section; empty if the
            file does not have them.
    """

    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...] = ()
    title: str = ""
    section: str = ""


def load_examples(path: Path) -> list[Example]:
    """Read a question set; a `.json` file is SQuAD format, `.jsonl` and `.jsonl.gz` are JSON lines."""
    suffixes = path.name.lower()
    if suffixes.endswith((".jsonl", ".jsonl.gz")):
        examples = [_labelled(line, f"{str(path)!r} line {number}") for number, line in question_lines(path)]
    elif suffixes.endswith(".json"):
        examples = list(_from_squad(path))
    else:
        raise InvalidInput(f"question set {str(path)!r} must end in .json, .jsonl or .jsonl.gz")
    if not examples:
        raise InvalidInput(f"question set {str(path)!r} contains no question")
    return examples


def question_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and the texts of the lines that are not empty; the file may be gzipped."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with _readable(path), opener(path, "rt", encoding="utf-8-sig") as lines:
        yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """In the block, raise InvalidInput in place of the error for a file that cannot be read or is not UTF-8."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"cannot read question set {str(path)!r}: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"question set {str(path)!r} is not UTF-8: {error}") from error


def spread(examples: list[_Question], count: int) -> list[_Question]:
    """Return at most `count` examples, at equal distances in the list, in their order.

    The same list gives the same examples every time. InvalidInput if `count` is less than 1.
    """
    if count < 1:
        raise InvalidInput(f"limit is {count}, must be at least 1")
    if len(examples) <= count:
        return examples
    return [examples[i * len(examples) // count] for i in range(count)]


def _labelled(line: str, where: str) -> Example:
    try:
        row = json.loads(line)
        held = row["answer_start"] >= 0
        answers, starts = ((row["answer"],), (int(row["answer_start"]),)) if held else ((), ())
        place = (row.get("title", ""), row.get("section", ""))
        example = Example(row["question"], row["context"], answers, starts, *place)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{where} is not an example with question, context, answer, answer_start") from error
    return _checked(example, where)


def _from_squad(path: Path) -> Iterator[Example]:
    with _readable(path):
        text = path.read_text(encoding="utf-8-sig")
    try:
        articles = json.loads(text)["data"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{str(path)!r} is not SQuAD format: {type(error).__name__}: {error}") from error
    number = 0
    where = f"{str(path)!r} is not SQuAD format: data"
    for i, article in enumerate(_list(articles, where)):
        paragraphs = f"{where}[{i}].paragraphs"
        for j, paragraph in enumerate(_list(_inner(article, "paragraphs", f"{where}[{i}]"), paragraphs)):
            context, entries = (_inner(paragraph, name, f"{paragraphs}[{j}]") for name in ("context", "qas"))
            for k, entry in enumerate(_list(entries, f"{paragraphs}[{j}].qas")):
                number += 1
                place = f"{paragraphs}[{j}].qas[{k}] (question {number})"
                yield _checked(replace(_squad_example(context, entry, place), title=_title(article)), place)


def _squad_example(context: Any, entry: Any, where: str) -> Example:
    answers = _list(_inner(entry, "answers", where), f"{where}.answers")
    if entry.get("is_impossible") is True:  # some files list a wrong answer for such a question
        answers = []
    texts = tuple(_inner(answer, "text", f"{where}.answers") for answer in answers)
    starts = tuple(answer.get("answer_start") for answer in answers)
    if not all(isinstance(start, int) and start >= 0 for start in starts):
        starts = ()
    return Example(_inner(entry, "question", where), context, texts, starts)


def _title(article: dict[str, Any]) -> str:
    """Return the title of an article; empty if the article has no title, or a title that is not valid Unicode text.

    A bad title is not an error, because most readers do not use titles.
    """
    title = article.get("title")
    return title if isinstance(title, str) and is_unicode(title) else ""


def _inner(value: Any, name: str, where: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise InvalidInput(f"{where} must be an object with {name!r}")
    return value[name]


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"{where} must be a list")
    return value


def _checked(example: Example, where: str) -> Example:
    """Check the fields of an example, and return the example without the answers that have no text.

    InvalidInput if a field is not a string or not valid Unicode, or if the question or the context is empty.
    """
    texts = (example.question, example.context, *example.answers, example.title, example.section)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{where}: question, context, answers, title and section must be strings")
    if not example.question.strip() or not example.context.strip():
        raise InvalidInput(f"{where}: question or context is empty")
    if not all(map(is_unicode, texts)):
        raise InvalidInput(f"{where}: contains a lone surrogate, which is not valid Unicode")
    if all(answer.strip() for answer in example.answers):
        return example
    kept = [number for number, answer in enumerate(example.answers) if answer.strip()]
    starts = tuple(example.starts[number] for number in kept) if example.starts else ()
    return replace(example, answers=tuple(example.answers[number] for number in kept), starts=starts)
