"""A pool of sentences that are ranked as on the shards, and the passage of each sentence.

A document is a context of the training data or a file of the corpus. The passage of a sentence is the text that a shard
would give to the reader: the sentence with whole neighbouring sentences, up to a budget of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from qa_cluster.documents.sentences import SentenceSpan, split_sentences
from qa_cluster.reading.passages import MAX_GAP, reach
from qa_cluster.reading.tokenization import ReaderTokenizer

from ..evaluation.sentence_index import SentenceIndex
from ..examples.labelled import Labelled

_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class PoolDocument:
    """A document of the pool: its text, its title and its section. The title and the section may be empty."""

    text: str
    title: str = ""
    section: str = ""


@dataclass(frozen=True, slots=True)
class PassageSpan:
    """A passage: the code points from `start` up to, but not including, `end` of the document with the number
    `document`.
    """

    document: int
    start: int
    end: int

    def holds(self, start: int, end: int) -> bool:
        """Return whether the passage contains the code points of its document from `start` up to, but not including,
        `end`.
        """
        return self.start <= start and end <= self.end


class Pool:
    """The sentences of all documents. Documents and sentences have numbers, from 0.

    Args:
        budget: maximum number of tokens of a passage, like `context_tokens` in a manifest; 0: the sentence alone.
    """

    def __init__(self, sources: Iterable[PoolDocument], tokenizer: ReaderTokenizer, *, budget: int) -> None:
        self.sources = list(dict.fromkeys(sources))
        self._budget = budget
        self._numbers = {source: number for number, source in enumerate(self.sources)}
        spans = [split_sentences(source.text) for source in self.sources]
        self._first = np.concatenate(([0], np.cumsum([len(each) for each in spans]))).astype(int)
        self._owners = np.repeat(np.arange(len(spans)), [len(each) for each in spans])
        self._spans: list[SentenceSpan] = [span for each in spans for span in each]
        texts = [self.sources[owner].text[a:b] for owner, (a, b) in zip(self._owners, self._spans, strict=True)]
        self._tokens: list[int] = []
        for first in range(0, len(texts), _CHUNK):
            self._tokens += [len(found.ids) for found in tokenizer.encode_texts(texts[first : first + _CHUNK])]
        self._index = SentenceIndex(texts)

    @property
    def sentences(self) -> int:
        """The number of sentences of all documents."""
        return len(self._spans)

    @property
    def digest(self) -> str:
        """A hash of all documents in their order."""
        found = blake2b(digest_size=16)
        for source in self.sources:
            for part in (source.text, source.title, source.section):
                found.update(f"{len(part)}:{part}".encode())
        return found.hexdigest()

    def document_of(self, example: Labelled) -> int:
        """Return the number of the document that is the context of an example."""
        return self._numbers[PoolDocument(example.context, example.title, example.section)]

    def rank(self, question: str, count: int) -> list[int]:
        """Return the numbers of the sentences that rank best for a question, at most `count`, best first."""
        return [number for number, _ in self._index.rank(question, count)]

    def passage(self, sentence: int) -> PassageSpan:
        """Return the passage of the sentence with this number."""
        owner = int(self._owners[sentence])
        low, high = int(self._first[owner]), int(self._first[owner + 1])
        left = self._near(range(sentence, low - 1, -1))
        right = self._near(range(sentence, high))
        before, after = reach(self._tokens[sentence], left, right, self._budget)
        return PassageSpan(owner, self._spans[sentence - before][0], self._spans[sentence + after][1])

    def passage_at(self, document: int, place: int) -> PassageSpan:
        """Return the passage of the last sentence of a document that starts at or before the code point `place`. If no
        sentence does, return the passage of the first sentence. If the document has no sentences, return the whole
        document.
        """
        low, high = int(self._first[document]), int(self._first[document + 1])
        inside = [number for number in range(low, high) if self._spans[number][0] <= place]
        return self.passage(inside[-1] if inside else low) if high > low else self.whole(document)

    def best_passage(self, document: int, ranked: Sequence[int]) -> PassageSpan:
        """Return the passage of that sentence of a document which comes first in `ranked`, the numbers of ranked
        sentences.

        If no sentence of the document is ranked, return the passage of its first sentence.
        """
        for sentence in ranked:
            if self._owners[sentence] == document:
                return self.passage(sentence)
        return self.passage_at(document, 0)

    def whole(self, document: int) -> PassageSpan:
        """Return the whole document as a passage."""
        return PassageSpan(document, 0, len(self.sources[document].text))

    def sentence_text(self, sentence: int) -> str:
        """Return the text of the sentence with this number."""
        start, end = self._spans[sentence]
        return self.sources[int(self._owners[sentence])].text[start:end]

    def text(self, passage: PassageSpan) -> str:
        """Return the text of a passage."""
        return self.sources[passage.document].text[passage.start : passage.end]

    def _near(self, numbers: Sequence[int]) -> list[int]:
        """Return how many tokens each neighbour on one side of a sentence has, the nearest neighbour first.

        The list ends before the first gap of more than `MAX_GAP` code points between two sentences.

        Args:
            numbers: the number of the sentence, then the numbers of its neighbours.
        """
        found = []
        for near, far in pairwise(numbers):
            low, high = sorted((near, far))
            if self._spans[high][0] - self._spans[low][1] > MAX_GAP:
                break
            found.append(self._tokens[far])
        return found
