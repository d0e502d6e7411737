"""The passages of the peers, with their vectors: written by the benchmark, read by the processes of a peer.

The product's code cuts the documents and makes the vectors, so a peer searches and reads the same passages. The
documents of the benchmarks have no sections.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qa_cluster.documents.sentences import split_sentences
from qa_cluster.types import Document
from qa_cluster.vectors.local_encoder import LocalEncoder
from tests.harness.packed_vectors import unpack_passages, unpack_vector

FloatArray = npt.NDArray[np.float32]
_PASSAGES, _VECTORS = "passages.json", "vectors.npy"


@dataclass(frozen=True)
class PeerPassage:
    """A passage: its document, which is also its title, and its sentences with their offsets in the document."""

    document: str
    first: int
    sentences: list[tuple[int, str]]

    @property
    def text(self) -> str:
        """The sentences, joined by spaces."""
        return " ".join(text for _, text in self.sentences)


def write_passages(folder: Path, documents: Sequence[tuple[str, str]], threads: int) -> int:
    """Cut the documents, make the vectors of their passages, and write both; return the number of passages."""
    made = LocalEncoder(threads=threads).prepare([Document(name, text, name) for name, text in documents])
    rows, vectors = [], []
    for (name, text), prepared in zip(documents, made, strict=True):
        if prepared is None:
            continue
        spans = split_sentences(text)
        for passage in unpack_passages(prepared.passages, prepared.dims):
            part = spans[passage.first : passage.first + passage.sentences]
            rows.append((name, passage.first, [(start, text[start:end]) for start, end in part]))
            vectors.append(unpack_vector(passage.packed))
    (folder / _PASSAGES).write_text(json.dumps(rows))
    np.save(folder / _VECTORS, np.stack(vectors))
    return len(rows)


def read_passages(folder: Path) -> list[PeerPassage]:
    """Read the passages."""
    return [PeerPassage(*row) for row in json.loads((folder / _PASSAGES).read_text())]


def read_vectors(folder: Path) -> FloatArray:
    """Read the vectors of the passages, one in a row."""
    found: FloatArray = np.load(folder / _VECTORS)
    return found
