"""The meaning of a question in a form that indexes use: its vector, and the weight of the vector.

An index has the vectors of passages (``native/index/vectors.c``). In a ranking by words and meaning, the score of a
sentence is its BM25 score plus `weight` times the cosine of the question and the sentence's passage.
"""

from __future__ import annotations

from dataclasses import dataclass

# The retrievers: ranking by words (BM25), by the meaning of passages (cosine), or by the sum of both.
WORDS, MEANING, BOTH = "words", "meaning", "both"
RETRIEVERS = (BOTH, WORDS, MEANING)


@dataclass(frozen=True, slots=True)
class QuestionVector:
    """The vector of a question.

    Attributes:
        digest: identifies the encoder (8 bytes); vectors of other encoders are treated as missing.
        packed: the vector in the form of the indexes: its scale (float32), then its values (int8).
        weight: the value that a cosine of 1 adds to the score of a sentence.
        missing: the value that replaces the cosine of a sentence without a vector. For example, a document that was
            just stored has no vectors yet.
    """

    digest: bytes
    packed: bytes
    weight: float
    missing: float

    @property
    def identity(self) -> tuple[object, ...]:
        """The encoder and the weights. Two vectors of the same question with equal identities give the same ranking."""
        return (self.digest, self.weight, self.missing)

    @property
    def arguments(self) -> tuple[str | bytes, ...]:
        """The arguments of ``QA.INDEX.RANK`` and ``QA.INDEX.WATCH``."""
        return ("VECTOR", self.digest, repr(self.weight), repr(self.missing), self.packed)

    def score(self, cosine: float | None) -> float:
        """Return the part of a score that comes from the meaning; `cosine` is None for a sentence without a vector."""
        return self.weight * (self.missing if cosine is None else cosine)
