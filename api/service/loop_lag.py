"""Measures the lag of the event loop: the delay of a timer while other work keeps the loop busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD_SECONDS = 0.1


class LoopLag:
    """Sets a timer every `PERIOD_SECONDS` and reports its delay in seconds to `observe`."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Set the first timer on the running event loop."""
        loop = asyncio.get_running_loop()
        self._set(loop, loop.time() + PERIOD_SECONDS)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._timer = loop.call_at(due, self._run, loop, due)

    def _run(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self._observe(max(0.0, now - due))
        self._set(loop, now + PERIOD_SECONDS)
