"""Loads an encoder into this process and computes the vectors of documents, for clients that write many documents.

>>> encoder = LocalEncoder()
>>> (vectors,) = encoder.prepare([Document("ada", "Ada Lovelace wrote the first program.")])
>>> vectors.sentences
1
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from qa_cluster.documents.sentence_offsets import LocatedSentence
from qa_cluster.documents.sentences import SPLITTER_VERSION, split_sentences
from qa_cluster.documents.stored import DocumentInput, check_document
from qa_cluster.reading.bundled import bundled_encoder
from qa_cluster.reading.local_reader import check_model, installed_runtime, read_tokenizer
from qa_cluster.reading.manifest import MANIFEST_FILE, TOKENIZER_FILE
from qa_cluster.reading.runtimes import open_vectors
from qa_cluster.reading.tokenization import IntArray, ReaderTokenizer
from qa_cluster.types import Document

from .document_passages import document_passages, encoder_arrays
from .encoder_manifest import ENCODER_FILE, EncoderManifest
from .packing import PassageVector, pack_passages, pack_vectors
from .passage_cut import CutPassage
from .prepared import MAX_PREPARED_PASSAGES, PreparedVectors

RUN_ROWS = 8


class LocalEncoder:
    """A loaded encoder. Several threads may use it; the model runs for one thread at a time.

    Args:
        folder: the folder of an encoder; default: the bundled encoder. If the shards have a different encoder, they do
            not use the vectors.
        runtime: ``openvino`` or ``onnxruntime``; default: the runtime that suits the encoder and this processor.
        threads: the number of the runtime's threads.
    """

    def __init__(self, folder: Path | None = None, *, runtime: str | None = None, threads: int = 1) -> None:
        folder = bundled_encoder() if folder is None else folder
        self.manifest = EncoderManifest.load(folder / MANIFEST_FILE)
        self._tokenizer = ReaderTokenizer(read_tokenizer(folder / TOKENIZER_FILE, self.manifest))
        check_model(folder / ENCODER_FILE, self.manifest)
        runtime = runtime or installed_runtime("cpu", self.manifest.precision)
        self._run = open_vectors(folder / ENCODER_FILE, runtime, threads=threads)
        self._running = threading.Lock()

    def prepare(self, documents: Sequence[Document]) -> list[PreparedVectors | None]:
        """Return the vectors of documents, in the order of `documents`.

        The result has None for a document without sentences, and for a document with more than `MAX_PREPARED_PASSAGES`
        passages. Passages of similar lengths run together, so many documents at once take less time.

        Raises:
            InvalidInput, InputTooLong: a document is not within the limits; the error names it.
        """
        checked = [check_document(one.id, one.text, one.title, one.metadata) for one in documents]
        passages = [self._passages(document) for document in checked]
        rows = [row for _, found in passages for row in found]
        vectors = iter(self._vectors(rows))
        return [
            self._prepared(document, spans, [next(vectors) for _ in found])
            for document, (spans, found) in zip(checked, passages, strict=True)
        ]

    def _passages(self, document: DocumentInput) -> tuple[list[CutPassage], list[IntArray]]:
        sentences = [
            LocatedSentence(number, document.text[start:end], start)
            for number, (start, end) in enumerate(split_sentences(document.text))
        ]
        spans, rows = document_passages(document.title, document.metadata, sentences, self.manifest, self._tokenizer)
        return (spans, rows) if len(rows) <= MAX_PREPARED_PASSAGES else ([], [])

    def _vectors(self, rows: Sequence[IntArray]) -> list[bytes]:
        found = [b""] * len(rows)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for first in range(0, len(order), RUN_ROWS):
            group = order[first : first + RUN_ROWS]
            arrays = encoder_arrays([rows[number] for number in group], self.manifest)
            with self._running:
                vectors = self._run(arrays)
            for number, vector in zip(group, pack_vectors(vectors), strict=True):
                found[number] = vector
        return found

    def _prepared(
        self, document: DocumentInput, spans: Sequence[CutPassage], vectors: Sequence[bytes]
    ) -> PreparedVectors | None:
        if not spans:
            return None
        packed = pack_passages(
            [PassageVector(span.first, span.sentences, vector) for span, vector in zip(spans, vectors, strict=True)]
        )
        sentences = spans[-1].first + spans[-1].sentences
        about = self.manifest
        return PreparedVectors(about.digest, about.dims, document.version, SPLITTER_VERSION, sentences, packed)
