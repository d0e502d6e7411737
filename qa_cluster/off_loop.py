"""Moves work to a thread if it would block the event loop for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

# Work on fewer bytes takes a millisecond or less, so a switch to another thread costs more than it saves.
LOOP_BYTES = 64 * 1024

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


async def off_loop(size: int, work: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
    """Call `work` and return its result. If `size` exceeds `LOOP_BYTES`, `work` runs in a thread.

    `size` is the number of bytes that `work` reads or writes.

    >>> await off_loop(len(text), orjson.loads, text)
    """
    if size <= LOOP_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
