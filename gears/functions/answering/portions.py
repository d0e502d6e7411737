"""Divides long work into portions, so that a short question waits for at most one portion.

The shard's queue serves users in turn, but only with whole jobs. A job can have up to 256 sentences, or a whole
article. So the functions divide a long job into portions. The portions of all long jobs share one queue. A portion of
`qa.read` has at most 32 sentences. A portion of `qa.pipeline` has windows (inputs of the model) of at most 1,024 tokens
together.

While short questions arrive, a portion is one sentence, or windows of at most 128 tokens together. The reason: a run of
the model cannot be interrupted. With large portions, a client with successive questions would wait for a long run
before each question.

If the shard can run several batches at once (`qa.inference-workers`, `qa.threads-per-queue`), it reads the same number
of portions at once. While short questions arrive, it reads one portion at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from qa_cluster.gears.shard.commands import ShardCommands
from qa_cluster.reading.plan import WAVES

SHORT_SENTENCES = max(WAVES)
"""The maximum number of sentences that a question reads at once. A request for more sentences is long work."""
SHARED_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Portion:
    """The maximum size of one portion: in sentences for `qa.read`, in tokens of windows for `qa.pipeline`."""

    sentences: int
    tokens: int


ALONE = Portion(32, 1024)
SHARED = Portion(1, 128)


class Portions:
    """The queue of long work.

    To read a portion, a task holds one place of the semaphore `_runs`, which has a place for each batch that can run at
    the same time. While short questions arrive, the task also holds the lock `_turn`, so that only one portion is read
    at a time.
    """

    def __init__(self, shard: ShardCommands) -> None:
        # The number of batches that can run at the same time. The module multiplies `qa.worker-ahead`, its limit of
        # sentences in the worker, by the same number.
        threads, workers = (
            max(1, int(shard.setting(name))) for name in ("qa.threads-per-queue", "qa.inference-workers")
        )
        self._runs = asyncio.Semaphore(threads * workers)
        self._turn = asyncio.Lock()
        self._short_at = -SHARED_SECONDS

    def note_short(self) -> None:
        """Record that a short question has arrived, so that portions are small for `SHARED_SECONDS`."""
        self._short_at = time.monotonic()

    @property
    def is_shared(self) -> bool:
        """Whether short questions have arrived in the last `SHARED_SECONDS`."""
        return time.monotonic() - self._short_at < SHARED_SECONDS

    def _size(self) -> Portion:
        return SHARED if self.is_shared else ALONE

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Portion]:
        """Wait until the task may read its next portion, and yield the maximum size of this portion.

        Tasks are served in the order in which they started to wait.
        """
        async with self._runs:
            if (portion := self._size()) is ALONE:
                yield portion
                return
            async with self._turn:
                yield self._size()
