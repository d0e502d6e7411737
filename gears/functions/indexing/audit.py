"""Audits all documents of partitions in the background, to find texts that a client has changed without a change note.

If the module writes change notes (`marks`), one audit scan of a partition is enough. Otherwise a scan follows every
sweep. An audit scan reads up to `PORTION` documents, then pauses for as long as the reading has taken, and continues.
So the scan finds changes late, but no client waits for the scan.

After every sweep, the audit also deletes the answers of sentences without a document. For this, it reads no document.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from qa_cluster.documents.stored import DocumentFailed
from qa_cluster.errors import InputTooLong, InvalidInput, QAError
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import (
    DOCUMENT_PREFIX,
    PARAGRAPHS_PREFIX,
    SENTENCE_PREFIX,
    answers_key,
    paragraphs_key,
    parse_tagged,
)

from .batches import Indexer, Name
from .marks import PartitionMarks
from .postponed import PostponedWork
from .scanning import pages, scan
from .texts import TextEvents, check_forwardable
from .tokenize import SentenceTokens

PORTION = 64


class DocumentAudit:
    """The running audit, and two sets of partitions for the next audit (None: all partitions).

    In the partitions of `_tags`, the audit searches for changed documents. In the partitions of `_loose`, it deletes
    *loose* answers: answers of sentences that a client stores without a document.
    """

    def __init__(
        self,
        shard: ShardContext,
        indexer: Indexer,
        *,
        marks: PartitionMarks,
        postponed: PostponedWork,
        texts: TextEvents,
        tokens: SentenceTokens,
    ) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._partitions = shard.partitions
        self._indexer = indexer
        self._marks = marks
        self._postponed = postponed
        self._texts = texts
        self._tokens = tokens
        self._task: asyncio.Task[None] | None = None
        self._tags: set[str] | None = set()
        self._loose: set[str] | None = set()

    def request(self, swept: Collection[str] | None, unmarked: Collection[str] | None) -> None:
        """Request an audit scan of the partitions `unmarked` (None: all), and the deletion of answers without a
        document in the partitions `swept` (None: all).

        The running task handles a new request after its current work.
        """
        self._marks.give_up(unmarked)
        self._tags, self._loose = _union(self._tags, unmarked), _union(self._loose, swept)
        if self._task is None and self._is_requested():
            self._task = asyncio.get_running_loop().create_task(self._work_until_done())

    def _is_requested(self) -> bool:
        return self._tags is None or self._loose is None or bool(self._tags or self._loose)

    async def _work_until_done(self) -> None:
        try:
            while self._is_requested():
                tags, self._tags = self._tags, set()
                loose, self._loose = self._loose, set()
                view = self._slots.current(0)
                if not view.is_primary or not view.ranges:
                    continue
                if tags is None or tags:
                    await self._audit(tags)
                await self._forget_loose_answers(loose)
                if loose is None:
                    await self._forward_untagged()
        except Exception as error:  # no other code awaits this task; the next sweep requests another audit
            self._commands.log(f"the audit of all documents failed: {error}", "warning")
        finally:
            self._task = None

    async def _audit(self, tags: Collection[str] | None) -> None:
        """Scan the partitions `tags` (None: all), and mark the partitions whose documents could all be checked
        (`PartitionMarks`).

        A document with a refused text also counts as checked, because the next scan would refuse the text again.
        """
        local = set(await self._partitions.local_tags())
        chosen = local if tags is None else local & set(tags)
        self._marks.begin_scan(chosen)
        counts, undone = await self.scan(tags, patient=True)
        if self._marks.is_noting() and (marked := self._marks.set_marks(chosen - undone)):
            names = ", ".join(marked)
            self._commands.log(f"all documents of partitions {names} are checked: from now on, their changes are noted")
        if undone:
            self._commands.log(
                f"{counts['failed'] + counts['moving']} of {counts.total()} documents could not be checked, in"
                f" partitions {', '.join(sorted(undone))}"
            )

    async def scan(self, tags: Collection[str] | None, *, patient: bool = False) -> tuple[Counter[str], set[str]]:
        """Scan the documents of the partitions `tags` (None: all partitions) and index the outdated documents.

        A `patient` scan sleeps half of the time, so that other work can run.

        Returns:
            The number of documents by outcome, and the tags of partitions with documents to retry later.
        """
        counts: Counter[str] = Counter()
        undone: set[str] = set()
        kinds: tuple[tuple[str, Callable[[list[Name]], list[Name]]], ...] = (
            (DOCUMENT_PREFIX, self._without_text),
            (PARAGRAPHS_PREFIX, list),
        )
        for prefix, choose in kinds:
            for page in pages(self._commands, prefix + "*"):
                begun = time.monotonic()
                found = [parse_tagged(key, prefix) for key in page]
                names = choose([name for name in found if name is not None and (tags is None or name[1] in tags)])
                for first in range(0, len(names), PORTION):
                    done, failed = await self.index_all(names[first : first + PORTION])
                    counts += done
                    undone |= failed
                    if patient:
                        await asyncio.sleep(time.monotonic() - begun)
                        begun = time.monotonic()
                await asyncio.sleep(0)
        return counts, undone

    def _without_text(self, names: list[Name]) -> list[Name]:
        replies = self._commands.execute_many([("EXISTS", paragraphs_key(*name)) for name in names], keep_errors=True)
        return [name for name, reply in zip(names, replies, strict=True) if reply != 1]

    async def index_all(self, names: Sequence[Name]) -> tuple[Counter[str], set[str]]:
        """Index documents, and continue after an error.

        Returns:
            The number of documents by outcome, and the tags of partitions with ``failed`` or ``moving`` documents.
                ``refused``: the text cannot be indexed. ``moving``: the slot of the partition is migrating. ``failed``:
                any other error. ``failed`` and ``moving`` documents may be indexed later.
        """
        counts: Counter[str] = Counter()
        undone: set[str] = set()
        for (_, tag), outcome in zip(names, await self._indexer.index_all(names), strict=True):
            if isinstance(outcome, str):
                counts[outcome] += 1
                continue
            if self._postponed.if_migrating(tag, outcome):
                counts["moving"] += 1
                undone.add(tag)
                continue
            refused = isinstance(outcome, InvalidInput | InputTooLong)
            counts["refused" if refused else "failed"] += 1
            if not refused:
                undone.add(tag)
            if not isinstance(outcome, DocumentFailed):  # the sweep itself logs documents that are marked as failed
                self._commands.log(f"sweep: {outcome}", "warning")
        return counts, undone

    async def _forget_loose_answers(self, tags: Collection[str] | None) -> None:
        """Delete the loose answers in the partitions `tags` (None: all), because their sentences may have changed
        unnoticed.
        """
        if tags is not None and not tags:
            return
        for page in pages(self._commands, SENTENCE_PREFIX + "*"):
            found = [parse_tagged(key, SENTENCE_PREFIX) for key in page]
            names = [name for name in found if name is not None and (tags is None or name[1] in tags)]
            answered = self._commands.execute_many([("EXISTS", answers_key(*name)) for name in names], keep_errors=True)
            for name, reply in zip(names, answered, strict=True):
                try:
                    if reply != 0:
                        await self._postponed.unless_migrating(name[1], self._tokens.forget_answers(*name))
                except GearsError as error:
                    self._marks.log_wrong_type(name[1], error)
            await asyncio.sleep(0)

    async def _forward_untagged(self) -> None:
        """Forward texts under untagged keys if their documents do not exist; stop at the first failure.

        Forwarding depends on another shard, so after a failure the next text would probably fail too.
        """
        for key in scan(self._commands, PARAGRAPHS_PREFIX + "*"):
            if len(key) > len(PARAGRAPHS_PREFIX) and parse_tagged(key, PARAGRAPHS_PREFIX) is None:
                try:
                    check_forwardable(key)
                except InvalidInput:
                    continue
                try:
                    await self._texts.forward(key, only_new=True)
                except (QAError, GearsError) as error:
                    self._commands.log(f"sweep: {error}", "warning")
                    return


def _union(tags: set[str] | None, more: Collection[str] | None) -> set[str] | None:
    return None if tags is None or more is None else tags | set(more)
