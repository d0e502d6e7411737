"""Embeds documents: reads documents, divides them into passages, runs the encoder, and stores the vectors in the index.

While one batch of documents is encoded, the next batch is read. After each portion of `PORTION` passages, a script for
each document stores the vectors, but only if the document still has the version that was read. If the document has
changed, its outcome is `STALE`, and the new version is embedded later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from qa_cluster.documents.stored import Embedding, embed_document
from qa_cluster.errors import QAError
from qa_cluster.gears.functions.indexing.document_sentences import read_sentences
from qa_cluster.gears.functions.readers.encoder import ShardEncoder
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.inference.token_batches import padded_length, padded_rows
from qa_cluster.reading.tokenization import IntArray
from qa_cluster.vectors.packing import PassageVector, pack_passages

from .pace import Pace
from .passages import Name, PassageInputs, passage_inputs

# The number of passages that are encoded together and then stored. Their vectors have about 25 kB.
PORTION = 64
MAX_IN_FLIGHT = 2

EMBEDDED, STALE = "embedded", "stale"
Outcome = str | QAError


class DocumentVectors:
    """Computes and stores the vectors of documents."""

    def __init__(self, shard: ShardContext, pace: Pace) -> None:
        self._commands = shard.commands
        self._pace = pace

    async def embed(
        self, names: Sequence[Name], encoder: ShardEncoder, on_embedded: Callable[[Name], None] = lambda name: None
    ) -> dict[Name, Outcome]:
        """Embed documents with an encoder; return `EMBEDDED`, `STALE` or an error for each.

        `STALE`: the document has changed, is missing, or is not indexed.

        `on_embedded` is called for each document after all its passages are stored. Raises GearsError if the shard
        refuses a command, for example because the slot of the documents is migrating.
        """
        outcomes: dict[Name, Outcome] = {}
        batch: list[PassageInputs] = []
        encoding: asyncio.Task[None] | None = None
        try:
            for name in names:
                found = await asyncio.to_thread(self._read, name, encoder)
                if isinstance(found, PassageInputs):
                    batch.append(found)
                else:
                    outcomes[name] = found
                if sum(len(document.rows) for document in batch) >= PORTION:
                    if encoding is not None:
                        await encoding
                    encoding = asyncio.create_task(self._encode(batch, encoder, outcomes, on_embedded))
                    batch = []
            if encoding is not None:
                await encoding
            await self._encode(batch, encoder, outcomes, on_embedded)
        finally:
            if encoding is not None:
                encoding.cancel()
        return outcomes

    def _read(self, name: Name, encoder: ShardEncoder) -> PassageInputs | Outcome:
        try:
            document = read_sentences(self._commands, name)
            return STALE if document is None else passage_inputs(name, document, encoder)
        except (QAError, ValueError) as error:  # ValueError: a damaged record
            return error if isinstance(error, QAError) else QAError(f"record cannot be read: {error}")

    async def _encode(
        self,
        documents: Sequence[PassageInputs],
        encoder: ShardEncoder,
        outcomes: dict[Name, Outcome],
        on_embedded: Callable[[Name], None],
    ) -> None:
        """Encode and store all passages of some documents, portion by portion. Write the outcomes into `outcomes`."""
        waiting = [(document, number) for document in documents for number in range(len(document.rows))]
        for document in documents:
            outcomes[document.name] = EMBEDDED
        for first in range(0, len(waiting), PORTION):
            portion: dict[int, list[int]] = {}
            for document, number in waiting[first : first + PORTION]:
                if outcomes[document.name] == EMBEDDED:
                    portion.setdefault(documents.index(document), []).append(number)
            found = [(documents[index], numbers) for index, numbers in portion.items()]
            try:
                await self._encode_portion(found, encoder, outcomes, on_embedded)
            except QAError:
                for part in found:  # retry each document alone, so that an invalid document does not make others fail
                    try:
                        await self._encode_portion([part], encoder, outcomes, on_embedded)
                    except QAError as error:
                        outcomes[part[0].name] = error

    async def _encode_portion(
        self,
        portion: Sequence[tuple[PassageInputs, list[int]]],
        encoder: ShardEncoder,
        outcomes: dict[Name, Outcome],
        on_embedded: Callable[[Name], None],
    ) -> None:
        rows = [document.rows[number] for document, numbers in portion for number in numbers]
        vectors = iter(await self._vectors(rows, encoder))
        about = encoder.manifest
        calls = []
        for document, numbers in portion:
            passages = [
                PassageVector(document.spans[number].first, document.spans[number].sentences, next(vectors))
                for number in numbers
            ]
            made = Embedding(about.digest, about.dims, document.stored, len(document.rows), pack_passages(passages))
            calls.append(embed_document(*document.name, document.version, document.splitter, made))
            document.stored += len(numbers)
        replies = await asyncio.to_thread(self._commands.run_scripts, calls)
        for (document, _), reply in zip(portion, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            if reply[0] != "stored":
                outcomes[document.name] = STALE
            elif document.stored == len(document.rows):
                on_embedded(document.name)

    async def _vectors(self, rows: Sequence[IntArray], encoder: ShardEncoder) -> list[bytes]:
        """Return the packed vectors of inputs, in the same order. Inputs of similar lengths share a run."""
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]), reverse=True)
        found = [b""] * len(rows)

        async def work() -> None:
            while order:
                tokens = await self._pace.turn()
                group = _take(order, rows, tokens)
                if not group:
                    return
                began = time.monotonic()
                vectors = await encoder.passage_vectors([rows[number] for number in group])
                for number, vector in zip(group, vectors, strict=True):
                    found[number] = vector
                await self._pace.rest(time.monotonic() - began)

        done = await asyncio.gather(*(work() for _ in range(MAX_IN_FLIGHT)), return_exceptions=True)
        for failure in done:
            if failure is not None:
                raise failure
        return found


def _take(order: list[int], rows: Sequence[IntArray], tokens: int) -> list[int]:
    """Remove the inputs of the next run of the encoder from `order`, and return them.

    `order` and the result are positions in `rows`, the longest input first. The inputs of a run have at most `tokens`
    tokens together, after the run has padded all of them to the same length. A run has at least one input, even if this
    input is longer. The result is empty if `order` is empty.
    """
    if not order:
        return []
    longest = padded_length(len(rows[order[0]]))
    count = 1
    while count < len(order) and padded_rows(count + 1) * longest <= tokens:
        count += 1
    group = order[:count]
    del order[:count]
    return group
