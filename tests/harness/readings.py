"""Readings of sentences as shards return them, made by hand."""

from __future__ import annotations

from qa_cluster.keys import SentenceRef
from qa_cluster.reading.readings import FoundSpan, SentenceReading

FIRST, LENGTH = 100, 50


def reading(
    document: str, *spans: tuple[int, int, float], sentence: int = 0, holder: int | None = None, words: str = ""
) -> SentenceReading:
    """The reading of a sentence of 50 code points at offset 100 of its document; `spans` are start, end and score.

    All code points differ, also between documents, so that no two spans have the same text. If `words` is a letter, the
    text repeats it. `holder` is the number of the sentence that contains the spans; None: the sentence itself.
    """
    first = 0x4E00 + ord(document[-1]) * LENGTH
    text = words * LENGTH or "".join(map(chr, range(first, first + LENGTH)))
    found = tuple(FoundSpan(start, end, score, sentence if holder is None else holder) for start, end, score in spans)
    return SentenceReading(SentenceRef(document, "t", sentence), found, "v", text, FIRST, "m", "shard", False, 1, False)
