"""The first stage of the peers: find the best passages of a question, with BM25 and vectors in numpy.

The score of a passage is its BM25 score plus the weighted cosine of question and passage. The product's code computes
terms and tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qa_cluster.ranking.terms import analyze, question_terms
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.reading.manifest import LENGTH_STEP, MANIFEST_FILE, TOKENIZER_FILE
from qa_cluster.reading.tokenization import IntArray, ReaderTokenizer
from qa_cluster.vectors.document_passages import encoder_arrays, encoder_row
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE, EncoderManifest

from .peer_corpus import FloatArray, read_passages, read_vectors
from .peer_model import Arrays, Model

PASSAGES = 8  # that are read for a question
K1, B = 1.2, 0.75  # Lucene's

Found = list[tuple[int, float]]  # the numbers of passages with their scores, the best first


class Words:
    """BM25 over passages. The weight of each word of each passage is computed at the start."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(analyze(text)) for text in texts]
        lengths = np.array([max(1, count.total()) for count in counts], np.float32)
        norms = K1 * (1 - B + B * lengths / lengths.mean())
        places: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for term, times in count.items():
                places.setdefault(term, []).append((number, times))
        self._passages = len(texts)
        self._of: dict[str, tuple[npt.NDArray[np.int64], FloatArray]] = {}
        for term, found in places.items():
            rows, times = np.array(found).T
            idf = np.log1p((len(texts) - len(rows) + 0.5) / (len(rows) + 0.5))
            self._of[term] = rows, (idf * times * (K1 + 1) / (times + norms[rows])).astype(np.float32)

    def scores(self, question: str) -> FloatArray:
        """Return the score of every passage."""
        found = np.zeros(self._passages, np.float32)
        for term in question_terms(question):
            if term in self._of:
                rows, weights = self._of[term]
                found[rows] += weights
        return found


class Retriever:
    """Finds the best passages by words and meaning."""

    def __init__(self, folder: Path, hint: str) -> None:
        place = bundled_encoder()
        self.manifest = EncoderManifest.load(place / MANIFEST_FILE)
        self._tokenizer = ReaderTokenizer((place / TOKENIZER_FILE).read_bytes())
        self._model = Model(place / ENCODER_FILE, self.manifest.precision, hint)
        self._texts = [f"{passage.document}\n{passage.text}" for passage in read_passages(folder)]
        self._words = Words(self._texts)
        self._vectors = read_vectors(folder)

    def row(self, question: str) -> IntArray:
        """Return the encoder's input for a question."""
        asked = self._tokenizer.encode_question(question, self.manifest.max_question_tokens)
        return encoder_row(asked.ids, self.manifest)

    def embed(self, rows: Sequence[IntArray]) -> list[FloatArray]:
        """Return the vectors of the inputs. Inputs of similar lengths share a run."""
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        groups = [order[first : first + self._model.rows] for first in range(0, len(order), self._model.rows)]
        runs = self._model.run(self._arrays([rows[i] for i in group]) for group in groups)
        found: dict[int, FloatArray] = {}
        for group, (vectors, *_) in zip(groups, runs, strict=True):
            found.update(zip(group, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True))
        return [found[number] for number in range(len(rows))]

    def rank(self, question: str, vector: FloatArray) -> Found:
        """Return the best passages of a question."""
        scores = self._words.scores(question) + self.manifest.rank_weight * (self._vectors @ vector)
        count = min(PASSAGES, len(scores))
        best = np.argpartition(-scores, count - 1)[:count]
        return [(int(number), float(scores[number])) for number in best[np.argsort(-scores[best])]]

    def find(self, questions: Sequence[str]) -> list[Found]:
        """Return the best passages of each question. The questions are embedded together."""
        vectors = self.embed([self.row(question) for question in questions])
        return [self.rank(question, vector) for question, vector in zip(questions, vectors, strict=True)]

    def warm(self) -> None:
        """Search for parts of passages, because the first use of a shape compiles it."""
        texts = [" ".join(text.split()[-20:]) for text in self._texts[:: max(1, len(self._texts) // 24)]]
        for count in (*range(1, 9), len(texts)):
            self.find([text[: 4 * number + 20] for number, text in enumerate(texts[:count])])

    def _arrays(self, rows: Sequence[IntArray]) -> Arrays:
        """Return the inputs of a run, padded to a multiple of `LENGTH_STEP`, so that there are few shapes."""
        extra = -max(map(len, rows)) % LENGTH_STEP
        return {
            name: np.pad(array, ((0, 0), (0, extra))) for name, array in encoder_arrays(rows, self.manifest).items()
        }
