"""Watches, several times a second, what events do not report: role, slots, number of partitions, readers.

Events report changes of keys, but not those of slots and servers, and none on a replica. A replica keeps its readers
loaded and the number of partitions known, so that it can answer as soon as it is promoted.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field

from qa_cluster.errors import QAError
from qa_cluster.gears.functions.indexing import marks, sweep
from qa_cluster.gears.functions.readers import copies, exchange, loaded
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import slot

LOOK_SECONDS = 0.25


@dataclass
class _Watching:
    """The task and what it saw last."""

    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    was_primary: bool | None = None
    tags: frozenset[str] | None = None
    view: View | None = None
    reader_changes: int = 0
    complaint: str = ""


def on_registered() -> None:
    """Start watching and have everything checked: events may have been missed, also those of the readers' keys."""
    watching = state.of(_Watching)
    rg.answer_shards(exchange.REQUEST, exchange.answer)
    rg.answer_shards(partitions.REQUEST, partitions.answer)
    loaded.forget()
    sweep.request()
    if watching.task is None:
        watching.task = asyncio.get_running_loop().create_task(_watch(), context=Context())
    watching.wake.set()


def on_reader_file(_record: object) -> None:
    """Handle a tokenizer or a manifest of a reader that was written, removed or renamed on this shard."""
    loaded.forget()
    state.of(_Watching).wake.set()


async def _watch() -> None:
    watching = state.of(_Watching)
    while True:
        try:
            await _look()
            watching.complaint = ""
        except (rg.error, QAError) as error:
            if str(error) != watching.complaint:
                watching.complaint = str(error)
                rg.log(f"watch: {error}", "warning")
        except Exception as error:  # nothing awaits this task, and it must go on
            rg.log(f"watch failed: {error!r}", "warning")
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await watching.wake.wait()
        except TimeoutError:
            continue
        watching.wake.clear()


async def _look() -> None:
    watching = state.of(_Watching)
    view = slots.current(0)
    # Before anything waits for other shards: when the shard's slots change meanwhile, the keys have another tag.
    loaded.if_loaded()
    if await partitions.follow():
        sweep.request()
    tags = frozenset(await partitions.local_tags())
    if view.is_primary and watching.was_primary is False:
        sweep.request()
    elif watching.tags is not None and tags - watching.tags:
        # Work on a partition that came with a slot may be unfinished, and the events of its move did not start it.
        # A partition may also be new because the number of partitions was not known before.
        new, before = tags - watching.tags, watching.view
        sweep.request(new, moved={tag for tag in new if before is None or not before.has(slot(tag))})
    marks.remove_marks_of_leaving(view, tags)
    watching.was_primary, watching.tags, watching.view = view.is_primary, tags, view
    sweep.go_on(view)
    await copies.keep(view)
    if loaded.changes() != watching.reader_changes:
        watching.reader_changes = loaded.changes()
        sweep.request_answers()
