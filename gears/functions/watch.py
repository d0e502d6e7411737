"""Looks after the shard's surroundings several times a second: role, slots, number of partitions, readers.

Events tell what happens to keys; what happens to slots and servers, and all on a replica, is seen by looking. A replica
has its readers loaded and the number of partitions at hand, so that it can answer as soon as it is promoted.
"""

from __future__ import annotations

import asyncio
from contextvars import Context

from qa_cluster.errors import QAError
from qa_cluster.gears.functions.indexing import sweep
from qa_cluster.gears.functions.readers import copies as reader_copies
from qa_cluster.gears.functions.readers import pieces as reader_pieces
from qa_cluster.gears.functions.readers import reader as readers
from qa_cluster.gears.functions.shard import partitions, slots
from qa_cluster.gears.scripting import api as rg

LOOK_SECONDS = 0.25


class _Watch:
    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()
        self.was_primary: bool | None = None
        self.tags: frozenset[str] | None = None
        self.reader_changes = 0
        self.tokenizer_id = ""
        self.complaint = ""


_state = _Watch()


def on_registered() -> None:
    """Events may have been missed, the change of the reader's keys among them."""
    rg.answer_shards(reader_pieces.REQUEST, reader_pieces.answer)
    rg.answer_shards(partitions.REQUEST, partitions.answer)
    readers.forget()
    sweep.request()
    if _state.task is None:
        _state.task = asyncio.get_running_loop().create_task(_watch(), context=Context())
    _state.wake.set()


def on_reader_file(_record: object) -> None:
    """The tokenizer or the manifest of a reader of the shard was written, removed or renamed."""
    readers.forget()
    _state.wake.set()


async def _watch() -> None:
    while True:
        try:
            await _look()
            _state.complaint = ""
        except (rg.error, QAError) as error:
            if str(error) != _state.complaint:
                _state.complaint = str(error)
                rg.log(f"watch: {error}", "warning")
        except Exception as error:  # nobody awaits this task, and without it the shard would be alone
            rg.log(f"watch failed: {error!r}", "warning")
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await _state.wake.wait()
        except TimeoutError:
            continue
        _state.wake.clear()


async def _look() -> None:
    view = slots.current(0)
    if await partitions.follow():
        sweep.request()
    tags = frozenset(await partitions.local_tags())
    if view.is_primary and _state.was_primary is False:
        sweep.request()
    elif _state.tags is not None and tags - _state.tags:
        # What came with a slot may have been half done where it came from, and events of its way here found nothing.
        sweep.request(tags - _state.tags)
    _state.was_primary, _state.tags = view.is_primary, tags
    sweep.go_on(view)
    await reader_copies.keep(view)
    if readers.changes() != _state.reader_changes:
        _state.reader_changes = readers.changes()
        reader = readers.if_loaded()
        if reader is not None and reader.tokenizer_id != _state.tokenizer_id:
            _state.tokenizer_id = reader.tokenizer_id
            sweep.request()
        else:
            sweep.request_answers()
