"""What the documents of a partition are made with, and whether every change of them has been noted since a look at all.

The mark stands behind the layout's number, with the id of the shard that has looked: on a shard to which the partition
comes, and for a worker of an earlier version, the layout is another one. A partition without the mark is looked through
once. Where the server cannot note (`INFO qa`: `qa_text_notes`), none has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.documents.sentences import SPLITTER_VERSION
from qa_cluster.gears.functions.indexing import late
from qa_cluster.gears.functions.shard.calls import is_wrong_type
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import layout_key, slot
from qa_cluster.ranking.terms import ANALYZER_VERSION

LAYOUT = {"layout": "2", "splitter": SPLITTER_VERSION, "analyzer": ANALYZER_VERSION}
"""What the documents of a partition are made with; one that differs is made anew."""


@dataclass
class _Looked:
    """The partitions at which a look is under way that may mark them when it is complete."""

    tags: set[str] = field(default_factory=set)


def is_noting() -> bool:
    """Whether the server notes changes of texts: Redis 7.0 cannot."""
    return "qa_text_notes:on" in str(rg.execute("INFO", "qa"))


def is_of_this_version(made: dict[str, str]) -> bool:
    """Whether documents were made as this version makes them: by the reply to `HGETALL` of their layout's key."""
    return {**made, "layout": made.get("layout", "").partition(" ")[0]} == LAYOUT


def unmarked(tags: Iterable[str]) -> list[str]:
    """The partitions that are of this version, and whose changes this shard has not noted since a look at all."""
    mark = _mark()
    return [tag for tag, made in _layouts(tags) if is_of_this_version(made) and made["layout"] != mark]


def begin_look(tags: Collection[str]) -> None:
    """A look at all documents of partitions begins, which is to mark them."""
    state.of(_Looked).tags = set(tags)


def give_up(tags: Collection[str] | None) -> None:
    """The look under way marks none of these partitions (None: none at all): they need another one."""
    looked = state.of(_Looked)
    looked.tags = set() if tags is None else looked.tags - set(tags)


def set_marks(tags: Collection[str]) -> list[str]:
    """Mark those partitions that the look under way may mark, unless their slots are moving; return which these are."""
    mark, looked = _mark(), state.of(_Looked).tags
    marked = []
    for tag, made in _layouts(sorted(looked & set(tags))):
        if is_of_this_version(made) and not late.is_waiting(tag) and _set(tag, mark):
            marked.append(tag)
    return marked


def remove_marks(tags: Collection[str]) -> None:
    """Have partitions looked through again: while a slot moves, not every change can be noted."""
    give_up(tags)
    for tag, made in _layouts(tags):
        if " " in made.get("layout", ""):
            _set(tag, LAYOUT["layout"])


def remove_marks_of_leaving(view: View, tags: Iterable[str]) -> None:
    """Remove the marks of partitions whose slots are leaving; those that stay after all are looked through again."""
    leaving = [tag for tag in tags if slot(tag) in view.leaving]
    for tag in leaving:
        late.add(tag, moved=True)
    if leaving:
        remove_marks(leaving)


def complain(tag: str, error: rg.error) -> None:
    """Log that a key of a partition is of another type, so that the others go on; any other error is raised."""
    if not is_wrong_type(error):
        raise error
    rg.log(f"partition {tag}: a key of ours has a value of another type, remove it: {error}", "warning")


def _layouts(tags: Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    chosen = list(tags)
    replies: list[Any] = rg.execute_many([("HGETALL", layout_key(tag)) for tag in chosen], keep_errors=True)
    found = []
    for tag, made in zip(chosen, replies, strict=True):
        if not isinstance(made, rg.error):
            found.append((tag, dict(zip(made[::2], made[1::2], strict=True))))
        elif not late.is_moving(tag, made):
            complain(tag, made)
    return found


def _set(tag: str, layout: str) -> bool:
    try:
        rg.execute("HSET", layout_key(tag), "layout", layout)
    except rg.error as error:
        if not late.is_moving(tag, error):
            raise
        return False
    return True


def _mark() -> str:
    try:
        shard = str(rg.execute("CLUSTER", "MYSHARDID"))
    except rg.error as error:
        if "cluster support disabled" not in str(error):
            raise
        shard = "alone"
    return f"{LAYOUT['layout']} {shard}"
