"""One lock per name, there only while somebody holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_locks: dict[str, tuple[asyncio.Lock, int]] = {}


@asynccontextmanager
async def held(name: str) -> AsyncIterator[None]:
    """Hold the lock of a name. All holders are on the worker's event loop."""
    lock, users = _locks.get(name, (None, 0))
    lock = lock or asyncio.Lock()
    _locks[name] = (lock, users + 1)
    try:
        async with lock:
            yield
    finally:
        lock, users = _locks[name]
        if users == 1:
            del _locks[name]
        else:
            _locks[name] = (lock, users - 1)
