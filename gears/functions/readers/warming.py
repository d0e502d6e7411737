"""Compiles readers and runs every shape of their manifests when they come, not at the first question."""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial

from qa_cluster.gears.functions.readers import loaded
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.shard_functions import WARM_AGAIN_SECONDS


@dataclass
class _Warming:
    """The warming under way and the time of the last failure, by reader."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    failed_at: dict[str, float] = field(default_factory=dict)


def go_on() -> None:
    """Start to warm the readers that are not; after a failure it waits a while, until memory may have become free."""
    warming = state.of(_Warming)
    for reader in loaded.everyone():
        if reader.warm or reader.model is None or reader.name in warming.tasks:
            continue
        if time.monotonic() - warming.failed_at.get(reader.name, -WARM_AGAIN_SECONDS) >= WARM_AGAIN_SECONDS:
            # an empty context: the rights and the deadline of the current execution must not apply
            task = asyncio.get_running_loop().create_task(_warm(reader), context=Context())
            warming.tasks[reader.name] = task
            task.add_done_callback(partial(_done, reader.name))


def _done(name: str, _task: asyncio.Task[None]) -> None:
    state.of(_Warming).tasks.pop(name, None)


async def _warm(reader: Reader) -> None:
    model = reader.model
    if model is None:
        return
    failed_at = state.of(_Warming).failed_at
    shapes = reader.manifest.shapes
    usual = [(rows, length) for length in shapes.lengths for rows in shapes.batches]
    try:
        await model.warm([*usual, (1, reader.manifest.window_tokens)])
    except Exception as error:  # runtimes raise exceptions of any type, and nothing awaits this task
        failed_at[reader.name] = time.monotonic()
        if reader.problem != str(error):
            reader.problem = str(error)
            rg.log(f"reader {reader.name} is not loaded: {error}", "warning")
        return
    failed_at.pop(reader.name, None)
    if reader.model is model:
        reader.warm, reader.problem = True, ""
