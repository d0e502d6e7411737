"""The corpus of the benchmarks: a SQuAD-format file if one is given, else the language reference of CPython."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

_WORD = re.compile(r"[A-Za-z]{4,}")


@dataclass(frozen=True)
class Corpus:
    """Documents (id, text) and at least `len(questions)` different questions about them."""

    name: str
    documents: list[tuple[str, str]]
    questions: list[str]

    def write_jsonl(self, path: Path) -> Path:
        """Write the documents in the form that `qa-cluster ingest` reads."""
        path.write_text("".join(json.dumps({"id": i, "title": i, "text": t}) + "\n" for i, t in self.documents))
        return path


def from_squad(path: Path) -> Corpus:
    """Paragraphs and questions of a SQuAD-format file."""
    documents: list[tuple[str, str]] = []
    questions: list[str] = []
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for number, paragraph in enumerate(article["paragraphs"]):
            documents.append((f"{article['title']}:{number}", paragraph["context"]))
            questions += [qa["question"] for qa in paragraph["qas"]]
    return Corpus(path.name, documents, list(dict.fromkeys(questions)))


def from_pydoc(*, count: int = 2000, seed: int = 1) -> Corpus:
    """The language reference, and questions of the usual form, each made of words of one sentence."""
    documents = [(f"python:{topic}", text) for topic, text in sorted(topics.items())]
    pick = random.Random(seed)
    sentences = [s for _, text in documents for s in re.split(r"(?<=[.!?])\s+", text) if len(_WORD.findall(s)) >= 8]
    questions = {
        f"What does the reference say about {_some_words(pick.choice(sentences), pick)}?": None for _ in range(count)
    }
    return Corpus("pydoc topics", documents, list(questions))


def _some_words(sentence: str, pick: random.Random) -> str:
    words = list(dict.fromkeys(_WORD.findall(sentence)))
    kept = sorted(pick.sample(range(len(words)), min(5, len(words))))
    return " ".join(words[i] for i in kept)


def variations(questions: Iterable[str], count: int) -> list[str]:
    """`count` different questions. Repeated questions get other introductions, so that no cache has their answers."""
    base = list(questions)
    leads = ["", "Tell me: ", "Please answer: ", "I would like to know: ", "In short, ", "Exactly, ", "Now, ", "So, "]
    made = [lead + question for lead in leads for question in base]
    if len(made) < count:
        made += [f"{question} ({number})" for number in range(count // len(base) + 1) for question in base]
    return made[:count]
