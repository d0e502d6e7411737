"""The event loop of users' coroutines. It has its own thread, because a coroutine may block the loop."""

from __future__ import annotations

import asyncio
import logging
import threading

import uvloop

from .sections import Aborted

logger = logging.getLogger(__name__)


class CoroutineLoop:
    """An event loop with its thread."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="coroutines", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def entered_here(self) -> bool:
        """Return whether the calling thread is the thread of the loop."""
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
                return
            except (SystemExit, KeyboardInterrupt, Aborted) as error:  # from a task that a function started
                logger.error("a function raised %s: ignored", type(error).__name__)
