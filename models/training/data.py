"""Reads labelled examples for training from SQuAD-format JSON, JSON lines and written passages.

Every fault in a file's form is an error that names the line or question. A label that does not fit its context is a
fault of the data, not of the form: the example is dropped and counted.
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput
from qa_cluster.reading.tokenization import is_unicode

from .labelled import NO_ANSWER, Labelled
from .passages import passage_of

WRONG_OFFSET = "the answer does not stand at answer_start"
EMPTY_ANSWER = "the answer is empty"


@dataclass(frozen=True, slots=True)
class Dataset:
    """The examples of one file, the file's SHA-256, and the number of dropped examples for each reason."""

    path: Path
    sha256: str
    examples: list[Labelled]
    dropped: dict[str, int]


def load_dataset(path: Path) -> Dataset:
    """Read a `.json` (SQuAD format), `.jsonl` or `.jsonl.gz` file; InvalidInput names the line or question at fault."""
    try:
        data = path.read_bytes()
        found = list(_examples(path, data))
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"cannot read training data {str(path)!r}: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"training data {str(path)!r} is not UTF-8: {error}") from error
    dropped: Counter[str] = Counter()
    kept = [example for example in found if _fits(example, dropped)]
    if not kept:
        raise InvalidInput(f"training data {str(path)!r} holds no usable example; dropped: {dict(dropped)}")
    return Dataset(path, hashlib.sha256(data).hexdigest(), kept, dict(dropped))


def write_examples(path: Path, examples: Iterable[Labelled]) -> None:
    """Write a `.jsonl.gz` file whose bytes depend only on the examples."""
    lines = "".join(f"{example.to_json()}\n" for example in examples)
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))


def _examples(path: Path, data: bytes) -> Iterator[Labelled]:
    name = path.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        yield from _from_lines(path, gzip.decompress(data) if name.endswith(".gz") else data)
    elif name.endswith(".json"):
        yield from _from_squad(path, data)
    else:
        raise InvalidInput(f"training data {str(path)!r} must end in .json, .jsonl or .jsonl.gz")


def _from_lines(path: Path, data: bytes) -> Iterator[Labelled]:
    for number, line in enumerate(data.decode().split("\n"), start=1):
        if line.strip():
            where = f"{str(path)!r} line {number}"
            row = _parsed(line, where)
            if isinstance(row, dict) and "questions" in row:
                yield from passage_of(row, where).examples()
            else:
                yield _labelled(row, where)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON: {error}") from error


def _from_squad(path: Path, data: bytes) -> Iterator[Labelled]:
    document = _parsed(data.decode(), repr(str(path)))
    number = 0
    try:
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    number += 1
                    answer = next(iter(qa["answers"]), {"text": "", "answer_start": NO_ANSWER})
                    row = {
                        "question": qa["question"],
                        "context": paragraph["context"],
                        "answer": answer["text"],
                        "answer_start": answer["answer_start"],
                        "source": path.stem,
                    }
                    yield _labelled(row, f"{str(path)!r} question {number}")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{str(path)!r} is not SQuAD format after {number} questions: {type(error).__name__}: {error}"
        ) from error


def _labelled(row: Any, where: str) -> Labelled:
    if not isinstance(row, dict):
        raise InvalidInput(f"{where} is not an object with question, context, answer, answer_start")
    values = [row.get(name) for name in ("question", "context", "answer")]
    start = row.get("answer_start")
    if not all(isinstance(value, str) for value in values) or type(start) is not int:
        raise InvalidInput(f"{where} needs question, context and answer as strings and answer_start as an integer")
    question, context, answer = (str(value) for value in values)
    source = str(row.get("source", ""))
    if not all(map(is_unicode, (question, context, answer, source))):
        raise InvalidInput(f"{where} is not valid Unicode: it holds a lone surrogate")
    if not question.strip() or not context.strip():
        raise InvalidInput(f"{where}: question or context is empty")
    if start < 0:
        return Labelled(question, context, "", NO_ANSWER, source)
    return Labelled(question, context, answer, start, source)


def _fits(example: Labelled, dropped: Counter[str]) -> bool:
    if example.answer_start == NO_ANSWER:
        return True
    if not example.answer.strip():
        dropped[EMPTY_ANSWER] += 1
        return False
    end = example.answer_start + len(example.answer)
    if example.context[example.answer_start : end] != example.answer:
        dropped[WRONG_OFFSET] += 1
        return False
    return True
