"""The meaning of a question for the indexes: its vector, and how much the vector counts.

An index has the vectors of passages (``native/index/vectors.c``). By words and meaning, the score of a sentence is its
BM25 score plus `weight` times the cosine of the question and the passage of the sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

# How sentences are ranked: by their words (BM25), by the meaning of their passages (cosine), or by the sum of both.
WORDS, MEANING, BOTH = "words", "meaning", "both"
RETRIEVERS = (BOTH, WORDS, MEANING)


@dataclass(frozen=True, slots=True)
class QuestionVector:
    """The vector of a question.

    Attributes:
        digest: names the encoder (8 bytes); the vectors of other encoders count as missing.
        packed: the vector as the indexes read it: its scale (float32), then its values (int8).
        weight: what a cosine of 1 adds to the score of a sentence.
        missing: the cosine that counts for a sentence without a vector, such as one of a document that was just stored.
    """

    digest: bytes
    packed: bytes
    weight: float
    missing: float

    @property
    def identity(self) -> tuple[object, ...]:
        """Names the ranking: two vectors of a question with this identity rank alike."""
        return (self.digest, self.weight, self.missing)

    @property
    def arguments(self) -> tuple[str | bytes, ...]:
        """The arguments of ``QA.INDEX.RANK`` and ``QA.INDEX.WATCH``."""
        return ("VECTOR", self.digest, repr(self.weight), repr(self.missing), self.packed)

    def score(self, cosine: float | None) -> float:
        """What the meaning adds to the score of a sentence; None: the sentence has no vector."""
        return self.weight * (self.missing if cosine is None else cosine)
