"""Compiles models when they arrive, and runs every shape of their manifests before the first question needs them."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.shard_functions import WARM_AGAIN_SECONDS

from .encoder import ShardEncoder
from .loaded import ShardReaders
from .shard_model import ShardModel


class Warming:
    """The running tasks that warm models, and the time of the last failure of each model, by the model's name."""

    def __init__(self, shard: ShardContext, readers: ShardReaders) -> None:
        self._commands = shard.commands
        self._readers = readers
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failed_at: dict[str, float] = {}

    def start_due(self) -> None:
        """Start to warm the readers and encoders that are not warm.

        Retry a failed model after `WARM_AGAIN_SECONDS`, because more memory may be free then.
        """
        for reader in self._readers.all_models():
            if reader.warm or reader.model is None or reader.name in self._tasks:
                continue
            if time.monotonic() - self._failed_at.get(reader.name, -WARM_AGAIN_SECONDS) >= WARM_AGAIN_SECONDS:
                task = asyncio.get_running_loop().create_task(self._warm(reader))
                self._tasks[reader.name] = task
                task.add_done_callback(partial(self._done, reader.name))

    def _done(self, name: str, _task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)

    async def _warm(self, reader: ShardModel) -> None:
        model = reader.model
        if model is None:
            return
        try:
            await model.warm(reader.shapes, vectors=isinstance(reader, ShardEncoder))
        except Exception as error:  # runtimes raise exceptions of any type, and no other code awaits this task
            self._failed_at[reader.name] = time.monotonic()
            if reader.problem != str(error):
                reader.problem = str(error)
                self._commands.log(f"reader {reader.name} is not loaded: {error}", "warning")
            return
        self._failed_at.pop(reader.name, None)
        if reader.model is model:
            reader.warm, reader.problem = True, ""
