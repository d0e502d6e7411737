"""The event loop of users' coroutines. It has its own thread, so a coroutine that blocks this loop does not block the
worker's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading

import uvloop

from .sections import Aborted

logger = logging.getLogger(__name__)


class CoroutineLoop:
    """The event loop that runs the coroutines of all user functions, and the thread that runs this loop."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="coroutines", daemon=True)

    def begin(self) -> None:
        """Start the thread of the loop. Call this method once."""
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
            except (SystemExit, KeyboardInterrupt, Aborted) as error:
                # A task that a function started has raised this error and stopped the loop. The loop must run again.
                logger.error("a function raised %s: ignored", type(error).__name__)
