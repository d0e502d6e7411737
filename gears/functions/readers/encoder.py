"""An encoder as the functions use it: it computes vectors of questions and of passages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from qa_cluster.errors import InferenceFailed, ModelError
from qa_cluster.gears.inference.tensors import Array
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.reading.tokenization import IntArray, ReaderTokenizer
from qa_cluster.vectors.document_passages import encoder_arrays, encoder_row
from qa_cluster.vectors.encoder_manifest import EncoderManifest
from qa_cluster.vectors.packing import FloatArray, pack_vectors

from .reader_model import ReaderModel
from .shard_model import ShardModel

MAX_QUESTIONS = 4096
"""The number of questions whose vectors a worker caches. A vector takes about 400 bytes."""


class ShardEncoder(ShardModel):
    """A loaded encoder."""

    manifest: EncoderManifest

    def __init__(
        self, tokenizer: ReaderTokenizer, manifest_text: bytes, model: ReaderModel | None, tag: str | None
    ) -> None:
        super().__init__(tokenizer, manifest_text, model, tag)
        self.manifest = EncoderManifest.from_json(manifest_text)
        self._questions: OrderedDict[str, bytes] = OrderedDict()

    async def question_vector(self, question: str) -> bytes:
        """Return the packed vector of a question. The vectors of the last `MAX_QUESTIONS` questions are cached."""
        found = self._questions.get(question)
        if found is None:
            tokens = self.tokenizer.encode_question(question, self.manifest.max_question_tokens)
            inputs = self._inputs([encoder_row(tokens.ids, self.manifest)])
            (vectors, *_) = await self._model().run_first(inputs)
            (found,) = pack_vectors(self._checked(vectors, 1))
            self._questions[question] = found
            if len(self._questions) > MAX_QUESTIONS:
                self._questions.popitem(last=False)
        else:
            self._questions.move_to_end(question)
        return found

    async def passage_vectors(self, rows: Sequence[IntArray]) -> list[bytes]:
        """Return the packed vectors of passages.

        One run computes all vectors. The run starts when no question waits for the encoder's device, or when its
        maximum waiting time is over (`batcher`). `document_passages` makes the rows.
        """
        try:
            vectors = await self._model().run_in_background(self._inputs(rows))
        except GearsError as error:
            raise InferenceFailed(f"encoder {self.name} could not be run: {error}") from error
        return pack_vectors(self._checked(vectors[0], len(rows)))

    def _inputs(self, rows: Sequence[IntArray]) -> list[Array]:
        return list(encoder_arrays(rows, self.manifest).values())

    def _checked(self, vectors: Array, rows: int) -> FloatArray:
        if vectors.shape != (rows, self.manifest.dims):
            raise InferenceFailed(
                f"encoder {self.name} returned vectors of the shape {list(vectors.shape)}, not"
                f" {[rows, self.manifest.dims]}"
            )
        return vectors.astype(np.float32, copy=False)

    def _model(self) -> ReaderModel:
        if self.model is None:
            raise ModelError(
                f"no model on this shard: it has only the tokenizer and the manifest of encoder {self.name}"
            )
        return self.model
