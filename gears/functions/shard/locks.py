"""Locks with names. A lock exists only while a task holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Locks:
    """The locks that are in use, each with the number of tasks that hold it or wait for it.

    All tasks run on the event loop.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Wait for the lock with this name, and hold the lock until the end of the ``with`` block."""
        lock, users = self._by_name.get(name, (None, 0))
        lock = lock or asyncio.Lock()
        self._by_name[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._by_name[name]
            if users == 1:
                del self._by_name[name]
            else:
                self._by_name[name] = (lock, users - 1)
