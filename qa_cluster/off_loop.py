"""Runs work in a thread if it would keep the event loop of the process busy for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

# Smaller work takes a millisecond or less, which a change to another thread is not worth.
LOOP_BYTES = 64 * 1024

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


async def off_loop(size: int, work: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
    """Return the result of `work`, which runs in a thread if it reads or makes more than `LOOP_BYTES`.

    >>> await off_loop(len(text), orjson.loads, text)
    """
    if size <= LOOP_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
