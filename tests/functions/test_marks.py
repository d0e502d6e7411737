"""Which partitions an audit scan marks, and the effect of a key of the wrong type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from qa_cluster import keys
from qa_cluster.gears.functions.indexing import batches
from qa_cluster.gears.functions.indexing.audit import DocumentAudit
from qa_cluster.gears.functions.indexing.failures import Failures
from qa_cluster.gears.functions.indexing.marks import LAYOUT, PartitionMarks
from qa_cluster.gears.functions.indexing.postponed import PostponedWork
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.watch import ShardWatch
from qa_cluster.gears.shard.failures import GearsError

TAGS = ("a", "b", "c")
MARK = "2 alone"


class Shard:
    """A server without a cluster: the layout keys of some partitions, and the audit scan of its documents."""

    def __init__(self) -> None:
        self.context: Any = SimpleNamespace(
            commands=self, slots=None, partitions=SimpleNamespace(local_tags=self.local_tags, follow=unchanged)
        )
        postponed = PostponedWork()
        self.marks = PartitionMarks(self.context, postponed)
        indexer: Any = SimpleNamespace()
        nothing: Any = None
        self.audit = DocumentAudit(
            self.context, indexer, marks=self.marks, postponed=postponed, texts=nothing, tokens=nothing
        )
        self.indexer = indexer
        self.layouts: dict[str, Any] = {keys.layout_key(tag): dict(LAYOUT) for tag in TAGS}

    @staticmethod
    async def local_tags() -> tuple[str, ...]:
        return TAGS

    @staticmethod
    def log(*_: object) -> None: ...

    def execute(self, *words: str) -> Any:
        if words[:2] == ("CLUSTER", "MYSHARDID"):
            raise GearsError("ERR This instance has cluster support disabled")
        if words[0] == "INFO":
            return "qa_text_notes:on"
        name, key, *pair = words
        if isinstance(self.layouts[key], GearsError):
            raise self.layouts[key]
        if name == "HSET":
            self.layouts[key].update([pair])
        return [part for both in self.layouts[key].items() for part in both]

    def execute_many(self, commands: Sequence[Sequence[str]], *, keep_errors: bool = False) -> list[Any]:
        replies: list[Any] = []
        for command in commands:
            try:
                replies.append(self.execute(*command))
            except GearsError as error:
                assert keep_errors
                replies.append(error)
        return replies

    def marked(self) -> set[str]:
        return {tag for tag in TAGS if self.layouts[keys.layout_key(tag)]["layout"] == MARK}


async def unchanged(*_: object) -> bool:
    return False


@pytest.fixture
def shard() -> Shard:
    return Shard()


def while_scanning(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object], undone: frozenset[str] = frozenset()
) -> None:
    """Call `happens` during the next audit scans, which do not complete the partitions `undone`."""

    async def scan(_tags: object, *, patient: bool) -> tuple[Counter[str], set[str]]:
        happens()
        return Counter(), set(undone)

    monkeypatch.setattr(shard.audit, "scan", scan)
    # otherwise a task would start another scan
    monkeypatch.setattr(shard.audit, "_is_requested", lambda: False)


async def test_a_scan_marks_the_partitions_that_it_has_completed(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    while_scanning(shard, monkeypatch, lambda: None, frozenset({"b"}))
    await shard.audit._audit(None)
    assert shard.marked() == {"a", "c"}


async def test_a_scan_does_not_mark_partitions_that_need_another_scan(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_scanning(shard, monkeypatch, lambda: shard.audit.request({"a"}, {"a"}))
    await shard.audit._audit(None)
    assert shard.marked() == {"b", "c"}
    while_scanning(shard, monkeypatch, lambda: shard.audit.request(None, None))
    shard.layouts[keys.layout_key("b")] = dict(LAYOUT)
    await shard.audit._audit(["b"])
    assert shard.marked() == {"c"}


async def test_a_scan_does_not_mark_partitions_that_have_lost_their_mark_meanwhile(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_scanning(shard, monkeypatch, lambda: shard.marks.remove_marks(["c"]))
    await shard.audit._audit(["a", "c"])
    assert shard.marked() == {"a"}


async def test_a_layout_key_of_the_wrong_type_does_not_prevent_other_marks(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_scanning(shard, monkeypatch, lambda: None)
    wrong = GearsError("WRONGTYPE Operation against a key holding the wrong kind of value")
    shard.layouts[keys.layout_key("a")] = wrong
    await shard.audit._audit(["a", "b"])
    assert shard.layouts[keys.layout_key("b")]["layout"] == MARK
    assert shard.marks.unmarked(TAGS) == ["c"]


async def test_texts_that_cannot_be_indexed_count_as_refused(shard: Shard) -> None:
    async def index_all(names: Sequence[batches.Name]) -> list[Any]:
        fault = batches.fault_of("d", GearsError("WRONGTYPE"))
        return [fault, GearsError("ERR the index has no room"), "stored"]

    shard.indexer.index_all = index_all
    counts, undone = await shard.audit.index_all([("d", "a"), ("e", "b"), ("f", "c")])
    assert counts == {"refused": 1, "failed": 1, "stored": 1}
    assert undone == {"b"}


async def test_a_partition_loses_its_mark_when_its_slot_migrates(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving = View(True, ((0, keys.SLOTS - 1),), frozenset({keys.slot("b")}), frozenset(), ())
    while_scanning(shard, monkeypatch, lambda: None)
    await shard.audit._audit(None)
    shard.context.slots = SimpleNamespace(current=lambda _age: leaving)
    readers: Any = SimpleNamespace(if_loaded=lambda: None, changes=0)
    copies: Any = SimpleNamespace(keep=unchanged)
    sweeps: Any = SimpleNamespace(resume=lambda _view: None)
    failures, embedding = Failures(shard.context.commands), cast(Any, None)
    await ShardWatch(shard.context, readers, copies, shard.marks, sweeps, failures, embedding)._poll()
    assert shard.marked() == {"a", "c"}
    await shard.audit._audit(None)
    assert shard.marked() == {"a", "c"}
