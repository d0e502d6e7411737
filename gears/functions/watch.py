"""Looks after the shard's surroundings several times a second: role, slots, number of partitions, readers.

Events say what happens to keys; what happens to slots and servers, and all on a replica, is seen by looking. A replica
has its readers loaded and the number of partitions at hand, so that it can answer as soon as it is promoted.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass, field

from qa_cluster.errors import QAError
from qa_cluster.gears.functions.indexing import sweep
from qa_cluster.gears.functions.readers import copies, exchange, loaded
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg

LOOK_SECONDS = 0.25


@dataclass
class _Watching:
    """The task and what it saw last."""

    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    was_primary: bool | None = None
    tags: frozenset[str] | None = None
    reader_changes: int = 0
    tokenizer_id: str = ""
    complaint: str = ""


def on_registered() -> None:
    """Events may have been missed, the change of the reader's keys among them."""
    watching = state.of(_Watching)
    rg.answer_shards(exchange.REQUEST, exchange.answer)
    rg.answer_shards(partitions.REQUEST, partitions.answer)
    loaded.forget()
    sweep.request()
    if watching.task is None:
        watching.task = asyncio.get_running_loop().create_task(_watch(), context=Context())
    watching.wake.set()


def on_reader_file(_record: object) -> None:
    """The tokenizer or the manifest of a reader of the shard was written, removed or renamed."""
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
        except Exception as error:  # nobody awaits this task, and without it the shard would be alone
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
    if await partitions.follow():
        sweep.request()
    tags = frozenset(await partitions.local_tags())
    if view.is_primary and watching.was_primary is False:
        sweep.request()
    elif watching.tags is not None and tags - watching.tags:
        # What came with a slot may have been half done where it came from, and events of its way here found nothing.
        sweep.request(tags - watching.tags)
    watching.was_primary, watching.tags = view.is_primary, tags
    sweep.go_on(view)
    await copies.keep(view)
    if loaded.changes() != watching.reader_changes:
        watching.reader_changes = loaded.changes()
        reader = loaded.if_loaded()
        if reader is not None and reader.tokenizer_id != watching.tokenizer_id:
            watching.tokenizer_id = reader.tokenizer_id
            sweep.request()
        else:
            sweep.request_answers()
