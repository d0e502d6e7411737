"""The second stage of the peers: read the best passages of a question and decode the best answer.

The tokens of passages are computed once, at the start. The product's code tokenizes, builds windows and decodes spans.
So the systems of a table differ only in how they find passages and serve questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from qa_cluster.reading.bundled import bundled_reader, unpacked
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.reading.passages import PassageSentence, ReadingPassage, around
from qa_cluster.reading.prefix import prefix_ids
from qa_cluster.reading.spans import AnswerSpan, best_spans
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder, Window, batches

from .peer_corpus import FloatArray, PeerPassage, read_passages
from .peer_model import Arrays, Model
from .peer_ranking import PASSAGES, Found

Logits = tuple[FloatArray, FloatArray]


class Reader:
    """Reads passages for questions and decodes the best answer."""

    def __init__(self, folder: Path, hint: str) -> None:
        place = bundled_reader()
        self.manifest = Manifest.load(place / MANIFEST_FILE)
        self._tokenizer = ReaderTokenizer((place / TOKENIZER_FILE).read_bytes())
        with unpacked(place) as files:
            self._model = Model(files / MODEL_FILE, self.manifest.precision, hint)
        self._pairs = PairEncoder(self.manifest)
        stored = read_passages(folder)
        self._names = [passage.document for passage in stored]
        self._passages = [self._passage(passage) for passage in stored]
        self._prefixes = [prefix_ids(name, "", self._ids) for name in self._names]

    def windows(self, question: str, found: Found) -> list[list[Window]]:
        """Return the inputs of a question, for each of its passages."""
        asked = self._tokenizer.encode_question(question, self.manifest.max_question_tokens)
        return [self._pairs.windows(asked, self._passages[i].tokens, self._prefixes[i]) for i, _ in found]

    def run(self, groups: Iterable[Sequence[Window]]) -> list[list[Logits]]:
        """Return the logits of the windows of each group. A group is one run, padded to its longest window."""
        return [list(zip(*found, strict=True)) for found in self._model.run(map(self._pairs.batch, groups))]

    def answer(self, question: str, found: Found, windows: list[list[Window]], logits: Iterable[Logits]) -> Arrays:
        """Return the best answer. Spans have the product's order and threshold of "no answer"."""
        given, best = iter(logits), None
        for (number, score), own in zip(found, windows, strict=True):
            order, span = self._span(self._passages[number], own, [next(given) for _ in own])
            order += self.manifest.rank_weight * (score - found[0][1])
            if span is not None and (best is None or order > best[0]):
                best = order, span, number
        usage = {"sentences_read": len(found)}
        if best is None or best[0] < self.manifest.no_answer_threshold:
            return {"question": question, "answers": [], "usage": usage}
        order, span, number = best
        text = self._passages[number].text
        told = {
            "answer": text[span.start : span.end],
            "score": order,
            "document_id": self._names[number],
            "context": text,
        }
        return {"question": question, "answers": [told], "usage": usage}

    def read(self, asked: Sequence[tuple[str, Found]]) -> list[Arrays]:
        """Return the answers of questions that are read together. Windows of similar lengths share a run."""
        windows = [self.windows(question, found) for question, found in asked]
        flat = [window for of_question in windows for own in of_question for window in own]
        rows = self._model.rows
        groups = list(batches(flat, max_batch=rows, max_batch_tokens=rows * self.manifest.max_tokens))
        logits: dict[int, Logits] = {}
        for group, found in zip(groups, self.run([flat[i] for i in group] for group in groups), strict=True):
            logits.update(zip(group, found, strict=True))
        given = (logits[number] for number in range(len(flat)))
        return [self.answer(*each, own, given) for each, own in zip(asked, windows, strict=True)]

    def warm(self) -> None:
        """Read some passages, because the first use of a shape compiles it."""
        step = max(1, len(self._passages) // 12)
        for count, first in enumerate(range(0, len(self._passages), step)):
            found = [(number, 0.0) for number in range(first, min(first + PASSAGES, len(self._passages)))]
            self.read([("What is read, and how often is that so?", found)] * (1 + count % 2))

    def _span(
        self, passage: ReadingPassage, windows: list[Window], logits: list[Logits]
    ) -> tuple[float, AnswerSpan | None]:
        most = self.manifest.max_answer_tokens
        found = best_spans(
            windows,
            logits,
            passage.tokens,
            passage.text,
            max_answer_tokens=most,
            overlapping=False,
            breaks=passage.breaks,
        )
        return (found.spans[0].score, found.spans[0]) if found.spans else (0.0, None)

    def _ids(self, text: str) -> list[int]:
        return [int(number) for number in self._tokenizer.encode_text(text).ids]

    def _passage(self, stored: PeerPassage) -> ReadingPassage:
        tokens = self._tokenizer.encode_texts([text for _, text in stored.sentences])
        parts = [PassageSentence(text, at, ids) for (at, text), ids in zip(stored.sentences, tokens, strict=True)]
        own = len(parts) // 2
        most = sum(len(part.tokens.ids) for part in parts)
        return around(parts[own], parts[:own][::-1], parts[own + 1 :], index=stored.first + own, budget=most)
