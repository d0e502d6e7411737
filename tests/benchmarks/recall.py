"""How often the sentence that answers is among the best, when a large corpus of other texts is added.

The paragraphs of the SQuAD-format file (`--data`) are ingested with the documents of `--documents`, as plain texts, and
all its questions are searched for. The exhaustive ranking scores every sentence by the same formula in double
precision, with exact weights instead of those of 8 bits that the index keeps.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.ranking.bm25 import EDGE_WEIGHT, idf
from qa_cluster.ranking.postings import counts_of, weight
from qa_cluster.ranking.terms import question_terms
from tests.harness.system import System

from .ingest import some_of
from .report import Report

CUTS = (1, 5, 8, 20)


@dataclass(frozen=True)
class Asked:
    """A question, the document that answers it, and where in its text the answers begin."""

    question: str
    document: str
    starts: frozenset[int]

    def is_answered_by(self, document: str, start: int, end: int) -> bool:
        """Whether an answer begins in this stretch of a document."""
        return document == self.document and any(start <= answer < end for answer in self.starts)


def questions_of(path: Path) -> tuple[list[tuple[str, str]], list[Asked]]:
    """The paragraphs of a SQuAD-format file, as ids with texts, and its questions."""
    paragraphs: list[tuple[str, str]] = []
    asked: list[Asked] = []
    for article in json.loads(path.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            name = f"asked/{len(paragraphs)}"
            paragraphs.append((name, paragraph["context"]))
            for row in paragraph["qas"]:
                starts = frozenset(answer["answer_start"] for answer in row["answers"])
                if starts:
                    asked.append(Asked(row["question"], name, starts))
    return paragraphs, asked


class Exhaustive:
    """All sentences of a corpus; every sentence is scored."""

    def __init__(self, documents: Sequence[tuple[str, str]], questions: Sequence[str]) -> None:
        wanted = {term for question in questions for term in question_terms(question)}
        self._places: list[tuple[str, int, int]] = []
        rows: dict[str, array[int]] = defaultdict(lambda: array("q"))
        weights: dict[str, array[float]] = defaultdict(lambda: array("d"))
        for name, text in documents:
            for start, end in split_sentences(text):
                length, counts = counts_of(text[start:end])
                for term in counts.keys() & wanted:
                    rows[term].append(len(self._places))
                    weights[term].append(weight(counts[term], length))
                self._places.append((name, start, end))
        self._found = {term: (np.array(rows[term]), np.array(weights[term])) for term in rows}

    def best(self, question: str, count: int) -> Iterator[tuple[str, int, int]]:
        """The best sentences: document, start and end."""
        terms = [self._found[term] for term in question_terms(question) if term in self._found]
        if not terms:
            return
        single, roots = (np.zeros(len(self._places)) for _ in range(2))
        for (rows, weights), rarity in zip(
            terms, idf(len(self._places), [len(rows) for rows, _ in terms]).tolist(), strict=True
        ):
            single[rows] += weights * rarity
            roots[rows] += np.sqrt(weights * rarity)
        scores: NDArray[np.float64] = single + EDGE_WEIGHT * 0.5 * (roots * roots - single)
        top = np.argpartition(-scores, min(count, len(scores) - 1))[: count + 1]
        for row in sorted(top.tolist(), key=lambda row: (-scores[row], row))[:count]:
            if scores[row] > 0:
                yield self._places[row]


def run(report: Report, cluster: System, folder: Path, data: Path, sentences: int) -> None:
    """Ingest, search, and compare."""
    paragraphs, asked = questions_of(data)
    documents = [*some_of(folder, sentences), *paragraphs]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "documents.jsonl"
        path.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in documents))
        cluster.cli("ingest", str(path))
    exhaustive = Exhaustive(documents, [each.question for each in asked])
    ranks: list[tuple[int, int]] = []
    with ClusterClient(cluster.url) as client:
        for each in asked:
            hits = client.search(each.question, top_k=CUTS[-1]).hits
            ours = [(hit.document_id, hit.start, hit.end) for hit in hits]
            ranks.append((_rank(each, ours), _rank(each, list(exhaustive.best(each.question, CUTS[-1])))))
    rows = [
        [name, *(f"{np.mean([own[column] <= cut for own in ranks]):.4f}" for cut in CUTS)]
        for column, name in enumerate(("the index", "every sentence scored, exact weights"))
    ]
    found = cluster.total("qa_index_sentences")
    report.table(
        f"Recall of the sentence that answers, {found} sentences, {len(asked)} questions of {data.name}",
        ["ranked by", *(f"first {cut}" for cut in CUTS)],
        rows,
    )


def _rank(asked: Asked, found: Sequence[tuple[str, int, int]]) -> int:
    """The rank, from 1, of the first sentence that answers; a rank beyond all cuts if no sentence answers."""
    return next((at for at, place in enumerate(found, start=1) if asked.is_answered_by(*place)), CUTS[-1] + 1)
