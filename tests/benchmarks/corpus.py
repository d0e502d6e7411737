"""The corpus of the benchmarks: a SQuAD-format file if one is given, else the language reference of CPython."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics

_WORD = re.compile(r"[A-Za-z]{4,}")


@dataclass(frozen=True)
class Corpus:
    """Documents (id, text), different questions about them, and the accepted answers of questions that have some."""

    name: str
    documents: list[tuple[str, str]]
    questions: list[str]
    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def write_jsonl(self, path: Path) -> Path:
        """Write the documents in the form that `qa-cluster ingest` reads."""
        path.write_text("".join(json.dumps({"id": i, "title": i, "text": t}) + "\n" for i, t in self.documents))
        return path


def from_squad(path: Path) -> Corpus:
    """Paragraphs and questions of a SQuAD-format file."""
    documents: list[tuple[str, str]] = []
    answers: dict[str, tuple[str, ...]] = {}
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for number, paragraph in enumerate(article["paragraphs"]):
            documents.append((f"{article['title']}:{number}", paragraph["context"]))
            for qa in paragraph["qas"]:
                accepted = tuple(answer["text"] for answer in qa["answers"])
                answers[qa["question"]] = answers.get(qa["question"], ()) + accepted
    return Corpus(path.name, documents, list(answers), {q: found for q, found in answers.items() if found})


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


def with_rare_words(corpus: Corpus, *, seed: int = 1) -> dict[str, str]:
    """Return each question with a word that occurs once in the documents, as ``{question: longer question}``.

    The word ranks a sentence that rarely answers the question, and it makes a reader less sure.
    """
    pick = random.Random(seed)
    counts = Counter(word for _, text in corpus.documents for word in _WORD.findall(text.lower()))
    rare: Sequence[str] = sorted(word for word, count in counts.items() if count == 1)
    return {question: f"{question.rstrip('? ')} {pick.choice(rare)}?" for question in corpus.questions}


def variations(questions: Iterable[str], count: int) -> list[str]:
    """`count` different questions. Repeated questions get other introductions, so that no cache has their answers."""
    base = list(questions)
    leads = ["", "Tell me: ", "Please answer: ", "I would like to know: ", "In short, ", "Exactly, ", "Now, ", "So, "]
    made = [lead + question for lead in leads for question in base]
    if len(made) < count:
        made += [f"{question} ({number})" for number in range(count // len(base) + 1) for question in base]
    return made[:count]
