"""Reads labelled examples for training from SQuAD-format JSON, JSON lines, groups and written passages.

A group is a question with passages that have its answer (positives) and passages that do not (negatives). Written
passages are the project's own data (`passages.py`).

A file with a wrong format raises an error that names the line or question. An example whose label does not fit its
context is dropped and counted.
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InvalidInput

from .labelled import ALONE, NO_ANSWER, UNLABELLED, Labelled
from .passages import passage_of

WRONG_OFFSET = "the answer is not at answer_start"
EMPTY_ANSWER = "the answer is empty"
LOST_GROUP = "no answer of the group fits its context"


@dataclass(frozen=True, slots=True)
class Dataset:
    """The examples of one file, the file's SHA-256, and the number of dropped examples for each reason."""

    path: Path
    sha256: str
    examples: list[Labelled]
    dropped: dict[str, int]

    @property
    def grouped(self) -> bool:
        """Whether at least one example belongs to a group."""
        return any(example.group != ALONE for example in self.examples)

    @property
    def unlabelled(self) -> int:
        """The number of examples without a label."""
        return sum(example.answer_start == UNLABELLED for example in self.examples)


def load_dataset(path: Path) -> Dataset:
    """Read the examples of a `.json` (SQuAD format), `.jsonl` or `.jsonl.gz` file. Raises InvalidInput, which names the
    invalid line or question, or says that the file cannot be read or has no usable example.
    """
    try:
        data = path.read_bytes()
        found = list(_examples(path, data))
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"cannot read training data {str(path)!r}: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"training data {str(path)!r} is not UTF-8: {error}") from error
    dropped: Counter[str] = Counter()
    kept = _without_lost_groups([example for example in found if _fits(example, dropped)], found, dropped)
    if not kept:
        raise InvalidInput(f"training data {str(path)!r} has no usable example; dropped: {dict(dropped)}")
    return Dataset(path, hashlib.sha256(data).hexdigest(), kept, dict(dropped))


def group_line(question: str, source: str, passages: Iterable[Labelled]) -> str:
    """Return one line of a file of groups. The labels of the passages say which passages have the answer."""
    found = [(passage.answer_start >= 0, passage.passage()) for passage in passages]
    negatives = [{k: v for k, v in row.items() if not k.startswith("answer")} for held, row in found if not held]
    row = {"question": question, "source": source, "positives": [row for held, row in found if held]}
    return json.dumps({**row, "negatives": negatives}, ensure_ascii=False)


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


def _without_lost_groups(kept: list[Labelled], found: list[Labelled], dropped: Counter[str]) -> list[Labelled]:
    """Return the examples in `kept` without groups whose positives were all dropped, because the questions of these
    groups would seem unanswerable. `found` has all examples of the file. The removed examples are counted in `dropped`.
    """
    had, have = ({example.group for example in part if example.answer_start >= 0} for part in (found, kept))
    lost = had - have - {ALONE}
    dropped.update([LOST_GROUP] * sum(example.group in lost for example in kept))
    return [example for example in kept if example.group not in lost]


def _from_lines(path: Path, data: bytes) -> Iterator[Labelled]:
    for number, line in enumerate(data.decode().split("\n"), start=1):
        if line.strip():
            where = f"{str(path)!r} line {number}"
            row = _parsed(line, where)
            if isinstance(row, dict) and "questions" in row:
                yield from passage_of(row, where).examples()
            elif isinstance(row, dict) and "negatives" in row:
                yield from _group(row, number, where)
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
                        "title": article.get("title") or "",
                    }
                    yield _labelled(row, f"{str(path)!r} question {number}")
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"{str(path)!r} is not SQuAD format after {number} questions: {type(error).__name__}: {error}"
        ) from error


def _group(row: dict[str, Any], number: int, where: str) -> Iterator[Labelled]:
    """Yield the examples of a group: its positives (with the answer), then its negatives (without the answer)."""
    shared = {"question": row.get("question"), "source": row.get("source", "")}
    for name, unanswered in (("positives", {}), ("negatives", {"answer": "", "answer_start": NO_ANSWER})):
        passages = row.get(name)
        if not isinstance(passages, list) or not all(isinstance(passage, dict) for passage in passages):
            raise InvalidInput(f"{where} needs positives and negatives as arrays of objects with a context")
        for passage in passages:
            example = _labelled({**passage, **unanswered, **shared}, where)
            if name == "positives" and example.answer_start < 0:
                raise InvalidInput(f"{where}: a positive needs an answer and its answer_start")
            yield replace(example, group=number)
    if not row["positives"] and not row["negatives"]:
        raise InvalidInput(f"{where} is a group without a passage")


def _labelled(row: Any, where: str) -> Labelled:
    if not isinstance(row, dict):
        raise InvalidInput(f"{where} is not an object with question, context, answer, answer_start")
    start, answer = row.get("answer_start"), row.get("answer")
    unknown = start is None and answer is None and "answer_start" in row
    if unknown:
        start, answer = UNLABELLED, ""
    values = [row.get("question"), row.get("context"), answer]
    if not all(isinstance(value, str) for value in values) or type(start) is not int:
        raise InvalidInput(
            f"{where} needs question, context and answer as strings and answer_start as an integer (both null: unknown)"
        )
    question, context, answer = (str(value) for value in values)
    places = [row.get(name, "") for name in ("title", "section")]
    if not all(isinstance(place, str) for place in places):
        raise InvalidInput(f"{where}: title and section must be strings")
    source = str(row.get("source", ""))
    if not all(map(is_unicode, (question, context, answer, source, *places))):
        raise InvalidInput(f"{where} is not valid Unicode: it has a lone surrogate")
    if not question.strip() or not context.strip():
        raise InvalidInput(f"{where}: question or context is empty")
    if start < 0:
        return Labelled(question, context, "", UNLABELLED if unknown else NO_ANSWER, source, *places)
    return Labelled(question, context, answer, start, source, *places)


def _fits(example: Labelled, dropped: Counter[str]) -> bool:
    if example.answer_start < 0:
        return True
    if not example.answer.strip():
        dropped[EMPTY_ANSWER] += 1
        return False
    end = example.answer_start + len(example.answer)
    if example.context[example.answer_start : end] != example.answer:
        dropped[WRONG_OFFSET] += 1
        return False
    return True
