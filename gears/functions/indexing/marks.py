"""Marks of partitions. A marked partition needs no audit scan of its documents, because the module has written a change
note for every change since the last scan of the partition.

The layout key of a partition contains three versions: of the layout of its keys, and of the splitter and the analyzer
with which its documents were indexed. After the layout's number, this key can contain the mark: the id of the shard
that has scanned the partition. After a migration, the mark has the id of the previous shard, so the new shard scans the
partition once. If the server cannot write change notes (`INFO qa`: `qa_text_notes`), no partition is marked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from qa_cluster.documents.sentences import SPLITTER_VERSION
from qa_cluster.documents.stored import repair_partition
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.shard.commands import is_wrong_type
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import layout_key, slot
from qa_cluster.ranking.terms import ANALYZER_VERSION

from .postponed import PostponedWork

LAYOUT = {"layout": "2", "splitter": SPLITTER_VERSION, "analyzer": ANALYZER_VERSION}
"""The layout of this version. The documents of a partition with other values are reindexed."""


class PartitionMarks:
    """The marks of partitions, and the partitions that the running scan may mark at its end."""

    def __init__(self, shard: ShardContext, postponed: PostponedWork) -> None:
        self._commands = shard.commands
        self._postponed = postponed
        self._scanned: set[str] = set()

    def is_noting(self) -> bool:
        """Return whether the server writes change notes of texts. Redis 7.0 cannot."""
        return "qa_text_notes:on" in str(self._commands.execute("INFO", "qa"))

    def unmarked(self, tags: Iterable[str]) -> list[str]:
        """Return the partitions with this version's layout but without this shard's mark."""
        mark = self._mark()
        return [tag for tag, made in self._layouts(tags) if has_this_layout(made) and made["layout"] != mark]

    def begin_scan(self, tags: Collection[str]) -> None:
        """Record that a scan of these partitions starts. At its end, the scan may mark the partitions."""
        self._scanned = set(tags)

    def give_up(self, tags: Collection[str] | None) -> None:
        """Prevent the running scan from marking these partitions (None: all), so that another scan reads them."""
        self._scanned = set() if tags is None else self._scanned - set(tags)

    def set_marks(self, tags: Collection[str]) -> list[str]:
        """Mark partitions after a scan; return the tags of the marked partitions.

        `tags` are the partitions that the scan has completed. A partition is marked only if the running scan may mark
        it, the partition has this version's layout, and its slot is stable.
        """
        mark = self._mark()
        marked = []
        for tag, made in self._layouts(sorted(self._scanned & set(tags))):
            if has_this_layout(made) and not self._postponed.has(tag) and self._set(tag, mark):
                marked.append(tag)
        return marked

    def remove_marks(self, tags: Collection[str]) -> None:
        """Remove the marks of partitions that may have changed without a note, so that the partitions are scanned
        again.
        """
        self.give_up(tags)
        for tag, made in self._layouts(tags):
            if " " in made.get("layout", ""):
                self._set(tag, LAYOUT["layout"])

    def remove_marks_of_leaving(self, view: View, tags: Iterable[str]) -> None:
        """Remove the marks of partitions whose slots migrate to another shard, because the module cannot note every
        change during a migration.
        """
        leaving = [tag for tag in tags if slot(tag) in view.leaving]
        for tag in leaving:
            self._postponed.add(tag, moved=True)
        if leaving:
            self.remove_marks(leaving)

    def repair(self, tag: str, error: GearsError) -> bool:
        """Remove damaged internal keys of a partition, so that it is scanned; return whether there were damaged keys.

        `error` is the error of a command on the partition. If it means that some other key of the partition has a value
        of the wrong type, only log it, so that the work continues. Raise an error of any other kind.
        """
        if is_wrong_type(error) and self._commands.run_script(repair_partition(tag)):
            return True
        self.log_wrong_type(tag, error)
        return False

    def log_wrong_type(self, tag: str, error: GearsError) -> None:
        """Log that a key of a partition has the wrong type, so that other work continues.

        Raise any other error.
        """
        if not is_wrong_type(error):
            raise error
        self._commands.log(
            f"partition {tag}: a key of qa-cluster has a value of the wrong type, remove the key: {error}", "warning"
        )

    def _layouts(self, tags: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
        chosen = list(tags)
        replies: list[Any] = self._commands.execute_many(
            [("HGETALL", layout_key(tag)) for tag in chosen], keep_errors=True
        )
        found = []
        for tag, made in zip(chosen, replies, strict=True):
            if not isinstance(made, GearsError):
                found.append((tag, dict(zip(made[::2], made[1::2], strict=True))))
            elif not self._postponed.if_migrating(tag, made):
                self.log_wrong_type(tag, made)
        return found

    def _set(self, tag: str, layout: str) -> bool:
        try:
            self._commands.execute("HSET", layout_key(tag), "layout", layout)
        except GearsError as error:
            if not self._postponed.if_migrating(tag, error):
                raise
            return False
        return True

    def _mark(self) -> str:
        try:
            shard = str(self._commands.execute("CLUSTER", "MYSHARDID"))
        except GearsError as error:
            if "cluster support disabled" not in str(error):
                raise
            shard = "alone"
        return f"{LAYOUT['layout']} {shard}"


def has_this_layout(made: dict[str, str]) -> bool:
    """Return whether a partition's layout key has this version's layout, splitter and analyzer."""
    return {**made, "layout": made.get("layout", "").partition(" ")[0]} == LAYOUT
