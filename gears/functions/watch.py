"""Polls the state that has no events, several times a second: role, slots, number of partitions, readers.

Events report changes of keys, but not changes of slots and servers, and a replica gets no events. A replica also loads
the readers and reads the number of partitions, so that it can answer at once after its promotion.
"""

from __future__ import annotations

import asyncio

from qa_cluster.errors import QAError
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import slot

from .embedding.background import BackgroundEmbedding
from .indexing.failures import Failures
from .indexing.marks import PartitionMarks
from .indexing.sweep import Sweeps
from .readers.copies import ReaderCopies
from .readers.loaded import ShardReaders
from .shard.context import ShardContext
from .shard.slots import View

POLL_SECONDS = 0.25


class ShardWatch:
    """Polls the state of the shard, and keeps the result of the last poll."""

    def __init__(  # noqa: PLR0917 - each part of the shard once
        self,
        shard: ShardContext,
        readers: ShardReaders,
        copies: ReaderCopies,
        marks: PartitionMarks,
        sweeps: Sweeps,
        failures: Failures,
        embedding: BackgroundEmbedding,
    ) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._partitions = shard.partitions
        self._readers = readers
        self._copies = copies
        self._marks = marks
        self._sweeps = sweeps
        self._failures = failures
        self._embedding = embedding
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._was_primary: bool | None = None
        self._tags: frozenset[str] | None = None
        self._view: View | None = None
        self._reader_changes = 0
        self._last_error = ""

    def check_all(self) -> None:
        """Read the readers' keys again, sweep all partitions, and search for documents without vectors.

        The worker calls this at its start, and when events may have been lost. The first call also starts the polling
        task.
        """
        self._readers.forget()
        self._sweeps.request()
        self._embedding.wake()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())
        self._wake.set()

    async def on_reader_file(self, _key: object) -> None:
        """Handle a written, removed or renamed key of a reader's tokenizer or manifest on this shard."""
        self._readers.forget()
        self._wake.set()

    async def _watch(self) -> None:
        while True:
            try:
                await self._poll()
                self._last_error = ""
            except (GearsError, QAError) as error:
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    self._commands.log(f"watch: {error}", "warning")
            except Exception as error:  # no other code awaits this task, and it must continue
                self._commands.log(f"watch failed: {error!r}", "warning")
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def _poll(self) -> None:
        view = self._slots.current(0)
        # Read the readers before any wait for other shards. During a wait, the shard's slots may change, and then the
        # shard has a different tag, whose reader keys may be missing.
        self._readers.if_loaded()
        if await self._partitions.follow():
            self._sweeps.request()
        tags = frozenset(await self._partitions.local_tags())
        if view.is_primary and self._was_primary is False:
            self._sweeps.request()
            self._embedding.wake()
        elif self._tags is not None and tags - self._tags:
            # A partition that has arrived with a slot may have unfinished work, and a migration sends no events. A
            # partition is also new to this worker if the number of partitions was unknown before.
            new, before = tags - self._tags, self._view
            self._embedding.wake()
            self._sweeps.request(new, moved={tag for tag in new if before is None or not before.has(slot(tag))})
        self._failures.forget((self._tags or frozenset()) - tags)
        self._marks.remove_marks_of_leaving(view, tags)
        self._was_primary, self._tags, self._view = view.is_primary, tags, view
        self._sweeps.resume(view)
        await self._copies.keep(view)
        if self._readers.changes != self._reader_changes:
            self._reader_changes = self._readers.changes
            self._sweeps.request_answers()
            self._embedding.wake()
