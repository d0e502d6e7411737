"""Question sets: SQuAD-format JSON and labelled JSON lines, read strictly.

A JSON-lines file (plain or `.gz`) holds one object a line with `question`, `context`, `answer` and `answer_start`
(-1: the context does not hold the answer). Nothing here tokenizes or runs a model.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from .errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Example:
    """One question about one context; no answers means that the context does not hold one."""

    question: str
    context: str
    answers: tuple[str, ...]


def load_examples(path: Path, *, limit: int | None = None) -> list[Example]:
    """Read a question set; a `.json` file is SQuAD format, `.jsonl` and `.jsonl.gz` are JSON lines."""
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is {limit}, must be at least 1")
    suffixes = path.name.lower()
    try:
        if suffixes.endswith((".jsonl", ".jsonl.gz")):
            examples = list(islice(_from_lines(path), limit))
        elif suffixes.endswith(".json"):
            examples = list(islice(_from_squad(path), limit))
        else:
            raise InvalidInput(f"question set {str(path)!r} must end in .json, .jsonl or .jsonl.gz")
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"cannot read question set {str(path)!r}: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"question set {str(path)!r} is not UTF-8: {error}") from error
    if not examples:
        raise InvalidInput(f"question set {str(path)!r} holds no question")
    return examples


def spread(examples: list[Example], count: int) -> list[Example]:
    """Return at most `count` examples taken at even distances, the same ones every time."""
    if len(examples) <= count:
        return examples
    return [examples[i * len(examples) // count] for i in range(count)]


def _from_lines(path: Path) -> Iterator[Example]:
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{str(path)!r} line {number}"
            try:
                row = json.loads(line)
                answers = (row["answer"],) if row["answer_start"] >= 0 else ()
                example = Example(row["question"], row["context"], answers)
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidInput(f"{where} is not an example with question, context, answer, answer_start") from error
            _check(example, where)
            yield example


def _from_squad(path: Path) -> Iterator[Example]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        paragraphs = [paragraph for article in document["data"] for paragraph in article["paragraphs"]]
        examples = [
            Example(qa["question"], paragraph["context"], tuple(answer["text"] for answer in qa["answers"]))
            for paragraph in paragraphs
            for qa in paragraph["qas"]
        ]
    except UnicodeDecodeError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{str(path)!r} is not SQuAD format: {type(error).__name__}: {error}") from error
    for number, example in enumerate(examples, start=1):
        _check(example, f"{str(path)!r} question {number}")
        yield example


def _check(example: Example, where: str) -> None:
    texts = (example.question, example.context, *example.answers)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{where}: question, context and answers must be strings")
    if not example.question.strip() or not example.context.strip():
        raise InvalidInput(f"{where}: question or context is empty")
