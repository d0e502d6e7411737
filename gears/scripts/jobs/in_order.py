"""Executions that must run one after the other: triggers registered with `inorder`, and events of one key."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any

from ..host.executions import Execution


class InOrder:
    """Runs executions with the same name one after the other, in the order of their calls."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Future[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, name: Hashable, execution: Execution, run: Coroutine[Any, Any, None]) -> None:
        """Wait until the previous execution with this name has ended, and then await `run`, the run of `execution`.

        An execution has ended when its run has ended and no thread works for it any more. If this call is cancelled
        while it waits, `run` never starts.
        """
        before = self._last.get(name)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last[name] = mine
        try:
            if before is not None:
                try:
                    await asyncio.shield(before)
                except BaseException:
                    run.close()
                    raise
            await run
        finally:
            task = asyncio.get_running_loop().create_task(self._end(name, before, mine, execution))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _end(
        self, name: Hashable, before: asyncio.Future[None] | None, mine: asyncio.Future[None], execution: Execution
    ) -> None:
        if before is not None:
            await before
        await execution.until_ended()
        mine.set_result(None)
        if self._last.get(name) is mine:
            del self._last[name]
