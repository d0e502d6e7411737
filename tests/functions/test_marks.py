"""Which partitions a look at all documents marks, and what a partition of which a key is of another type keeps back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from qa_cluster import keys
from qa_cluster.gears.functions import watch
from qa_cluster.gears.functions.indexing import batches, checkup, marks
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg

TAGS = ("a", "b", "c")
MARK = "2 alone"


class Shard:
    """The layouts of some partitions, as a server without a cluster has them."""

    def __init__(self) -> None:
        self.layouts: dict[str, Any] = {keys.layout_key(tag): dict(marks.LAYOUT) for tag in TAGS}

    def execute(self, *words: str) -> Any:
        if words[:2] == ("CLUSTER", "MYSHARDID"):
            raise rg.error("ERR This instance has cluster support disabled")
        if words[0] == "INFO":
            return "qa_text_notes:on"
        name, key, *pair = words
        if isinstance(self.layouts[key], rg.error):
            raise self.layouts[key]
        if name == "HSET":
            self.layouts[key].update([pair])
        return [part for both in self.layouts[key].items() for part in both]

    def execute_many(self, commands: Sequence[Sequence[str]], *, keep_errors: bool = False) -> list[Any]:
        replies: list[Any] = []
        for command in commands:
            try:
                replies.append(self.execute(*command))
            except rg.error as error:
                assert keep_errors
                replies.append(error)
        return replies

    def marked(self) -> set[str]:
        return {tag for tag in TAGS if self.layouts[keys.layout_key(tag)]["layout"] == MARK}


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shard]:
    async def local_tags() -> tuple[str, ...]:
        return TAGS

    made = Shard()
    monkeypatch.setattr(rg, "execute", made.execute)
    monkeypatch.setattr(rg, "execute_many", made.execute_many)
    monkeypatch.setattr(rg, "log", lambda *_: None)
    monkeypatch.setattr(checkup.partitions, "local_tags", local_tags)
    state.forget()
    yield made
    state.forget()


def while_looking(monkeypatch: pytest.MonkeyPatch, happens: Any, undone: frozenset[str] = frozenset()) -> None:
    """What happens while a look at all documents is under way, and where that fails."""

    async def look(_tags: object, *, patient: bool) -> tuple[Counter[str], set[str]]:
        happens()
        return Counter(), set(undone)

    monkeypatch.setattr(checkup, "look", look)
    # a task of its own would do what is requested
    monkeypatch.setattr(checkup, "_is_wanted", lambda _checkup: False)


async def test_a_look_marks_the_partitions_that_it_has_dealt_with(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_looking(monkeypatch, lambda: None, frozenset({"b"}))
    await checkup._look(None)
    assert shard.marked() == {"a", "c"}


async def test_a_look_marks_no_partition_that_needs_another_one(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    while_looking(monkeypatch, lambda: checkup.request({"a"}, {"a"}))
    await checkup._look(None)
    assert shard.marked() == {"b", "c"}
    while_looking(monkeypatch, lambda: checkup.request(None, None))
    shard.layouts[keys.layout_key("b")] = dict(marks.LAYOUT)
    await checkup._look(["b"])
    assert shard.marked() == {"c"}


async def test_a_look_marks_no_partition_that_has_lost_its_mark_meanwhile(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_looking(monkeypatch, lambda: marks.remove_marks(["c"]))
    await checkup._look(["a", "c"])
    assert shard.marked() == {"a"}


async def test_a_layout_of_another_type_keeps_no_other_partition_from_its_mark(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_looking(monkeypatch, lambda: None)
    del shard.layouts[keys.layout_key("a")]
    wrong = rg.error("WRONGTYPE Operation against a key holding the wrong kind of value")
    shard.layouts[keys.layout_key("a")] = wrong
    await checkup._look(["a", "b"])
    assert shard.layouts[keys.layout_key("b")]["layout"] == MARK
    assert marks.unmarked(TAGS) == ["c"]


async def test_texts_that_stay_as_they_are_count_as_refused(monkeypatch: pytest.MonkeyPatch, shard: Shard) -> None:
    async def index_all(names: Sequence[batches.Name]) -> list[Any]:
        text = rg.error("WRONGTYPE")
        fault = batches._fault("d", text)
        return [fault, rg.error("ERR the index has no room"), "stored"]

    monkeypatch.setattr(batches, "index_all", index_all)
    counts, undone = await checkup.tried([("d", "a"), ("e", "b"), ("f", "c")])
    assert counts == {"refused": 1, "failed": 1, "stored": 1}
    assert undone == {"b"}


async def test_a_partition_loses_its_mark_when_its_slot_is_seen_to_leave(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unchanged(*_: object) -> bool:
        return False

    leaving = View(True, ((0, keys.SLOTS - 1),), frozenset({keys.slot("b")}), frozenset(), ())
    while_looking(monkeypatch, lambda: None)
    await checkup._look(None)
    monkeypatch.setattr(watch.slots, "current", lambda _age: leaving)
    for place, name in ((watch.loaded, "if_loaded"), (watch.loaded, "changes")):
        monkeypatch.setattr(place, name, lambda: 0)
    monkeypatch.setattr(watch.partitions, "follow", unchanged)
    monkeypatch.setattr(watch.copies, "keep", unchanged)
    await watch._look()
    assert shard.marked() == {"a", "c"}
    await checkup._look(None)
    assert shard.marked() == {"a", "c"}
