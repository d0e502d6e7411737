"""Locks by name; a lock exists only while a task holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from qa_cluster.gears.functions.state import state


@dataclass
class _Locks:
    """Each lock, with the number of tasks that hold it or wait for it."""

    by_name: dict[str, tuple[asyncio.Lock, int]] = field(default_factory=dict)


@asynccontextmanager
async def held(name: str) -> AsyncIterator[None]:
    """Hold the lock of a name. All holders are on the worker's event loop."""
    locks = state.of(_Locks).by_name
    lock, users = locks.get(name, (None, 0))
    lock = lock or asyncio.Lock()
    locks[name] = (lock, users + 1)
    try:
        async with lock:
            yield
    finally:
        lock, users = locks[name]
        if users == 1:
            del locks[name]
        else:
            locks[name] = (lock, users - 1)
