"""Computes the vector of a question: the trigger `qa.embed`."""

from __future__ import annotations

from collections.abc import Callable

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.gears.functions.calls import TriggerCall
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.shard.arguments import check_question
from qa_cluster.shard_functions import EMBED_TRIGGER


class QuestionVectors:
    """The trigger `qa.embed`.

    The trigger calls `note_short` for each question, so that long work runs in small portions (`answering.portions`).
    """

    def __init__(self, readers: ShardReaders, note_short: Callable[[], None]) -> None:
        self._readers = readers
        self._note_short = note_short

    async def on_embed(self, call: TriggerCall) -> list[bytes | int | float]:
        """Trigger ``qa.embed question``: return the digest, the dimensions, the packed vector, the weight and the
        missing cosine.

        The digest (8 bytes) identifies the encoder. The packed vector has the format of `vectors.packing`. The ranking
        adds the weight times the cosine to the BM25 score of a sentence. For a sentence without a vector, it uses the
        missing cosine. Raises ModelError if no encoder is loaded.
        """
        if len(call.arguments) != 1:
            raise InvalidInput(f"{EMBED_TRIGGER} takes a question, got {len(call.arguments)} arguments")
        question = check_question(call.arguments[0])
        encoder = self._readers.encoder()
        if encoder is None:
            raise ModelError("no encoder on this shard: load one with `qa-cluster model load FOLDER`")
        self._note_short()
        about = encoder.manifest
        vector = await encoder.question_vector(question)
        return [about.digest, about.dims, vector, about.rank_weight, about.missing_cosine]
