"""Sweeps the partitions of this shard: does the pending work that no event has started.

A sweep runs when the worker starts, after a failover, after events were dropped from a full queue, when a slot arrives,
and when the number of partitions has changed. Normally, it indexes only pending documents, so it ends soon. A document
is pending from its write until it is indexed. The writing client or the module records pending documents. If a
partition was indexed with a different splitter, analyzer or layout, the sweep reindexes all its documents. After a
sweep, `audit` scans the partitions that may have changes without a note, in the background.

Each sweep deletes the cached answers of its partitions whose keys do not have the form that this worker uses
(`answer_names`). In the cases that `_delete_invalid_answers` lists, it also deletes cached answers from a different
reader, or from a different version of their document. When a reader arrives, a sweep does only this second check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from itertools import islice

from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.readers.loaded import ShardReaders
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import (
    ANSWER_PREFIX,
    DOCUMENT_PREFIX,
    PENDING_PREFIX,
    DocumentName,
    document_key,
    index_key,
    layout_key,
    parse_answer_key,
    parse_tagged,
    pending_key,
    slot,
)
from qa_cluster.reading.readings import is_valid

from .answer_names import ForeignAnswers
from .audit import DocumentAudit
from .failures import Failures
from .marks import LAYOUT, PartitionMarks, has_this_layout
from .postponed import PostponedWork
from .scanning import scan

SETTLE_SECONDS = 0.05
PENDING_PER_STEP = 100
ANSWERS_PER_STEP = 100
MAX_LOGGED = 5


class Sweeps:
    """The running sweep, and the requests for the next sweep: its partitions (None: all), and a check of cached
    answers.

    For migrated partitions, the sweep requests an audit scan of all documents.
    """

    def __init__(
        self,
        shard: ShardContext,
        readers: ShardReaders,
        *,
        audit: DocumentAudit,
        marks: PartitionMarks,
        postponed: PostponedWork,
        foreign_answers: ForeignAnswers,
        failures: Failures,
    ) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._partitions = shard.partitions
        self._names = shard.names
        self._readers = readers
        self._audit = audit
        self._marks = marks
        self._postponed = postponed
        self._foreign_answers = foreign_answers
        self._failures = failures
        self._task: asyncio.Task[None] | None = None
        self._tags: set[str] | None = set()
        self._moved: set[str] = set()
        self._answers = False
        self._last_error = ""

    def request(self, tags: Collection[str] | None = None, moved: Collection[str] = ()) -> None:
        """Request a sweep of the partitions `tags` (None: all). Several requests during a sweep cause one more sweep.

        `moved` has the migrated partitions. Their documents may have changed without a change note, so the sweep
        removes their marks, and an audit scans them.
        """
        self._moved |= set(moved)
        if tags is None:
            self._tags = None
        elif self._tags is not None:
            self._tags |= set(tags)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._sweep_until_settled())

    def request_answers(self) -> None:
        """Request a check of the cached answers after a reader was added, was removed, or became the default."""
        self._answers = True
        self.request(set())

    def resume(self, view: View) -> None:
        """Sweep the partitions whose postponed work is due. If the last sweep has failed, try it again."""
        due, moved = self._postponed.take_due(view)
        if due:
            self.request(due, moved)
        elif self._task is None and self._is_requested():
            self.request(set())

    def _is_requested(self) -> bool:
        return self._tags is None or bool(self._tags) or self._answers

    async def _sweep_until_settled(self) -> None:
        try:
            while self._is_requested():
                await asyncio.sleep(SETTLE_SECONDS)
                tags, self._tags, self._answers = self._tags, set(), False
                moved, self._moved = self._moved, set()
                try:
                    self._marks.remove_marks(moved)
                    await self._sweep(tags)
                    self._audit.request(tags, await self._unmarked(tags))
                except BaseException:
                    self._answers = True
                    self.request(tags, moved)
                    raise
            self._last_error = ""
        except Exception as error:  # no other code awaits this task, so it logs its errors
            if str(error) != self._last_error:
                self._last_error = str(error)
                self._commands.log(f"sweep failed: {error}", "warning")
        finally:
            self._task = None

    async def _sweep(self, tags: Collection[str] | None) -> None:
        """Check the cached answers, index the pending documents of partitions (None: all), and reindex partitions with
        a different layout.
        """
        view = self._slots.current(0)
        if not view.is_primary or not view.ranges:
            return
        await self._delete_foreign_answers(tags)
        await self._delete_invalid_answers(tags)
        local = await self._partitions.local_tags() if tags is None else tags
        for tag in [*local, *(self._pending_elsewhere(local) if tags is None else ())]:
            if view.is_migrating(slot(tag)):
                self._postponed.add(tag, moved=True)
            try:
                await self._index_failures(tag)
                await self._index_pending(tag)
            except GearsError as error:
                if not self._postponed.if_migrating(tag, error):
                    self._marks.repair(tag, error)
        if tags is None or tags:
            await self._reindex_old_layouts(tags)

    async def _unmarked(self, tags: Collection[str] | None) -> Collection[str] | None:
        """Return the partitions of a sweep (None: all) that need an audit scan because of missing change notes."""
        if not self._marks.is_noting():
            self._marks.remove_marks(await self._partitions.local_tags() if tags is None else tags)
            return tags
        view, local = self._slots.current(), await self._partitions.local_tags()
        unmarked = self._marks.unmarked(local if tags is None else [tag for tag in tags if view.has(slot(tag))])
        if tags is not None or len(unmarked) < len(local):
            return unmarked
        # Documents outside of partitions have no mark. Only a scan of all partitions includes these documents.
        return None if local or await self._partitions.count() or self._partitions.is_unset else ()

    def _pending_elsewhere(self, local: Collection[str]) -> list[str]:
        """Return the tags of partitions that have pending documents on this shard, except the tags in `local`."""
        found = (key[len(PENDING_PREFIX) + 1 : -1] for key in scan(self._commands, PENDING_PREFIX + "{*}"))
        return [tag for tag in found if tag not in local]

    async def _index_failures(self, tag: str) -> None:
        """Index the documents of a partition that may end the worker, and failed documents that have changed.

        An unchanged failed document is only counted. The risky documents are indexed before the other documents of the
        partition: if a document ends the worker, the other documents wait for it only once.
        """
        found = self._failures.names_in(tag)
        for first in range(0, len(found), PENDING_PER_STEP):
            await self._audit.index_all(found[first : first + PENDING_PER_STEP])
        if failed := self._failures.names_of(tag):
            shown = ", ".join(repr(DocumentName(name).id[:100]) for name in failed[:MAX_LOGGED])
            more = f" and {len(failed) - MAX_LOGGED} more" if len(failed) > MAX_LOGGED else ""
            self._commands.log(
                f"partition {tag}: {len(failed)} documents failed and are not tried again until they are written"
                f" again: {shown}{more}",
                "warning",
            )

    async def _index_pending(self, tag: str) -> None:
        """Index the pending documents of a partition. A document that cannot be indexed stays pending."""
        cursor = "0"
        while True:
            cursor, found = self._commands.execute("HSCAN", pending_key(tag), cursor, "COUNT", PENDING_PER_STEP)
            names = [parse_tagged(f"{DOCUMENT_PREFIX}{name}:{{{tag}}}", DOCUMENT_PREFIX) for name in found[::2] if name]
            pending = [name for name in names if name is not None]
            for first in range(0, len(pending), PENDING_PER_STEP):
                await self._audit.index_all(pending[first : first + PENDING_PER_STEP])
            if str(cursor) == "0":
                return

    async def _reindex_old_layouts(self, tags: Collection[str] | None) -> None:
        """Reindex the documents of partitions whose layout differs from this version's layout."""
        view = self._slots.current()
        chosen = await self._partitions.local_tags() if tags is None else [tag for tag in tags if view.has(slot(tag))]
        others: list[str] = []
        for tag in chosen:
            made, has_index = self._commands.execute_many(
                [("HGETALL", layout_key(tag)), ("EXISTS", index_key(tag))], keep_errors=True
            )
            if isinstance(made, GearsError):
                if not self._postponed.if_migrating(tag, made) and self._marks.repair(tag, made):
                    others.append(tag)
            elif not has_this_layout(dict(zip(made[::2], made[1::2], strict=True))):
                others.append(tag)
                if isinstance(has_index, int) and has_index:
                    self._commands.log(f"partition {tag} has a different layout: its documents are being reindexed")
        if not others:
            return
        counts, _ = await self._audit.scan(others)
        for tag in others:
            if not self._postponed.has(tag):
                self._commands.execute("HSET", layout_key(tag), *(part for pair in LAYOUT.items() for part in pair))
        if counts["stored"]:
            self._commands.log(
                f"partitions {', '.join(others)}: {counts['stored']} documents are reindexed"
                f" ({counts['failed'] + counts['refused']} failed)"
            )

    async def _delete_foreign_answers(self, tags: Collection[str] | None) -> None:
        """Delete the cached answers whose keys have a different form, in the partitions `tags` (None: all partitions of
        this shard).
        """
        chosen = await self._partitions.local_tags() if tags is None else tags
        if deleted := await self._foreign_answers.delete(chosen):
            self._commands.log(
                f"{deleted} cached answers are deleted: their keys name questions in a different form (qa.answer-keys)"
            )

    async def _delete_invalid_answers(self, tags: Collection[str] | None) -> None:
        """Delete cached answers from a different reader or a different version of their document.

        Otherwise, a GET would return these answers.

        The check is needed in three cases: when the worker starts, in partitions from other shards, and after a reader
        was added, was removed, or became the default.
        """
        if self._readers.if_loaded() is None:
            return
        revisions, known = self._readers.revisions(), self._readers.answers_checked_for
        if known == revisions and not tags:
            return
        if known != revisions:
            # After this wait, no previous reader stores more answers.
            await self._commands.commands_sent()
        pattern = f"{ANSWER_PREFIX}*" if known is None or known.get("") != revisions.get("") else f"{ANSWER_PREFIX}@*"
        patterns = [pattern] if known != revisions else [f"{ANSWER_PREFIX}*{{{tag}}}_*" for tag in tags or ()]
        for each in patterns:
            keys = iter(scan(self._commands, each))
            while some := list(islice(keys, ANSWERS_PER_STEP)):
                await self._delete_invalid(some, revisions)
        self._readers.answers_checked_for = revisions

    async def _delete_invalid(self, keys: list[str], revisions: Mapping[str, str]) -> None:
        for key in keys:
            try:
                sentence, name, model = parse_answer_key(key)
                if not self._names.is_current(name):
                    self._foreign_answers.delete_named(sentence.tag, [key])
                    continue
                value, version = self._commands.execute_many(
                    [("GET", key), ("HGET", document_key(sentence.document, sentence.tag), "version")]
                )
                revision = revisions.get(model)
                if value is not None and (revision is None or not is_valid(value, version or "", revision)):
                    self._commands.execute("UNLINK", key)
            except InvalidInput:
                continue
            except GearsError as error:
                if not self._postponed.if_migrating(sentence.tag, error):
                    raise
        await asyncio.sleep(0)
