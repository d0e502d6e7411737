"""Waiting: polls a condition up to a deadline that only a fault reaches.

Deadlines are generous, because no test waits for one while all is well: on a busy machine a step of a millisecond may
take seconds. A test that needs time to pass uses a setting or a fake clock, not a short deadline.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import redis

T = TypeVar("T")
Ignored = type[Exception] | tuple[type[Exception], ...]
SECONDS = 120.0
_SHARE = 2.0  # of a check's time
_GROWTH = 0.05  # of the time waited so far
_LONGEST_PAUSE = 0.2


def eventually(
    check: Callable[[], T],
    seconds: float = SECONDS,
    pause: float = 0.02,
    ignore: Ignored = redis.ConnectionError,
) -> T:
    """Returns the first true result of `check`; the failure names the last value or error.

    The pause between two checks is longer where a check takes long, or the wait does: processor time is what the tests
    that run beside this one lack.
    """
    begun = time.monotonic()
    deadline = begun + seconds
    last: object = None
    while True:
        looked = time.monotonic()
        try:
            value = check()
        except ignore as error:
            last = error
        else:
            if value:
                return value
            last = value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"not so within {seconds} s, last seen: {last!r}")
        time.sleep(max(pause, min(_LONGEST_PAUSE, max(_SHARE * (now - looked), _GROWTH * (now - begun)))))


async def eventually_async(
    check: Callable[[], T] | Callable[[], Awaitable[T]], seconds: float = SECONDS, pause: float = 0.005
) -> T:
    """As `eventually`, while the event loop runs; `check` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        value = cast(T, await found if inspect.isawaitable(found) else found)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {seconds} s, last seen: {value!r}")
        await asyncio.sleep(pause)
