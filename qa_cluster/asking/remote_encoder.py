"""Gets the vectors of questions and the manifest of the encoder from the shards.

The worker of any shard can compute a vector (`qa.embed`); the shards take turns. If a shard fails, for example because
it has not loaded the encoder yet, the next shard is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from time import monotonic
from typing import Any

from qa_cluster.errors import ClusterError, ModelError, QAError, ReplyError
from qa_cluster.ranking.meaning import BOTH, MEANING, WORDS, QuestionVector
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.routing.shards import Shards
from qa_cluster.shard_functions import EMBED_TRIGGER
from qa_cluster.topology import Shard
from qa_cluster.vectors.encoder_manifest import EncoderManifest

from .loaded_readers import SHARD_TIMEOUT_SECONDS, read_encoder

# While no encoder is known, this process asks the shards for their encoder at most once in this time.
ASK_AGAIN_SECONDS = 5.0

_log = logging.getLogger(__name__)


class RemoteEncoder:
    """Gets vectors of questions from the shards of one cluster.

    Attributes:
        encoder: the manifest of the encoder; None if the shards have no encoder, or while this process does not know
            their encoder.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.encoder: EncoderManifest | None = None
        self._turn = 0
        self._asked_at = -ASK_AGAIN_SECONDS
        self._asking: asyncio.Task[None] | None = None
        self._warned = ""

    @property
    def ranking(self) -> tuple[object, ...]:
        """The `QuestionVector.identity` of the vectors that the encoder makes; empty if no encoder is known."""
        found = self.encoder
        return () if found is None else (found.digest, found.rank_weight, found.missing_cosine)

    async def reread(self) -> None:
        """Ask the shards which encoder they have; stop after `SHARD_TIMEOUT_SECONDS`, because a worker may hang.

        If no shard replies in time, the error is logged, and `encoder` does not change.
        """
        self._asked_at = monotonic()
        try:
            async with asyncio.timeout(SHARD_TIMEOUT_SECONDS):
                self.encoder = await read_encoder(self._shards)
        except (ClusterError, ModelError, TimeoutError) as error:
            _log.warning("the encoder's manifest cannot be read: %r", error)

    def retriever(self, wanted: str) -> str:
        """Return the retriever to use now in place of `wanted`. If no encoder is known, ``both`` becomes ``words``.

        If an encoder is needed and none is known, the method also starts `reread` in the background, at most once in
        `ASK_AGAIN_SECONDS`.

        Raises:
            ModelError: `wanted` is ``meaning``, and no encoder is known.
        """
        if wanted == WORDS or self.encoder is not None:
            return wanted
        if monotonic() - self._asked_at > ASK_AGAIN_SECONDS and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self.reread())
        if wanted == MEANING:
            raise ModelError(
                "retriever=meaning needs an encoder, and no shard has one: load one with qa-cluster model load, or use"
                f" retriever={BOTH} or retriever={WORDS}"
            )
        return WORDS

    async def of(self, text: str, without: Collection[Shard]) -> QuestionVector | None:
        """Return the vector of a question; None if no shard can compute it now. Shards in `without` are not asked."""
        shards = [shard for shard in self._shards.up if shard not in without]
        self._turn += 1
        problem: Exception | None = None
        for number in range(len(shards)):
            shard = shards[(self._turn + number) % len(shards)]
            try:
                found = _parse(await self._ask(shard, text))
                self._warned = ""
                return found
            except (QAError, ReplyError, ConnectionLost) as error:
                problem = error
        if str(problem) != self._warned:
            self._warned = str(problem)
            _log.warning(
                "questions are ranked by their words only, because no shard computes their vectors: %s", problem
            )
        return None

    async def _ask(self, shard: Shard, text: str) -> list[Any]:
        """Return the reply of a shard; ShardNotReady if its server or worker cannot answer."""
        readiness, addresses = self._shards.readiness, [shard.address]
        readiness.check(addresses, workers=True)
        called = self._shards.call_function(shard, EMBED_TRIGGER, text)
        return await readiness.patiently(called, addresses, workers=True)

    async def aclose(self) -> None:
        """Stop asking for the encoder."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])


def _parse(reply: Any) -> QuestionVector:
    """Parse the reply of `qa.embed`; ClusterError if the reply has a different form."""
    match reply:
        case [bytes(digest), _dims, bytes(packed), weight, missing]:
            return QuestionVector(digest, packed, float(weight), float(missing))
    raise ClusterError(f"a shard answered {EMBED_TRIGGER} with {reply!r}"[:300])
