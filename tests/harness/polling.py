"""Polls a condition until a deadline that passes only if something is wrong.

Deadlines are long, because a step of a millisecond may take seconds on a busy machine. They also grow with the
machine's load, up to four times. A test that depends on passing time uses a setting or a fake clock, not a short
deadline.

A wait fails at once when a server that should run has ended.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import redis

from tests.harness.figures import crowding

T = TypeVar("T")
Ignored = type[Exception] | tuple[type[Exception], ...]
SECONDS = 120.0
_SHARE = 2.0  # the pause, as a multiple of the duration of a check
_GROWTH = 0.05  # the pause, as a share of the time waited so far
_LONGEST_PAUSE = 0.2
_MOST_CROWDING = 4.0

# For each server that should run, by its id: a function that says how the server has ended; empty while it runs.
_watched: dict[int, Callable[[], str]] = {}


def watch(server: object, ended: Callable[[], str]) -> None:
    """Make every wait fail once `ended` returns a text."""
    _watched[id(server)] = ended


def unwatch(server: object) -> None:
    """Do not make waits fail when the server ends."""
    _watched.pop(id(server), None)


def _need_living_servers() -> None:
    for ended in list(_watched.values()):
        if text := ended():
            raise AssertionError(f"the condition cannot become true: {text}")


def eventually(
    check: Callable[[], T],
    seconds: float = SECONDS,
    pause: float = 0.02,
    ignore: Ignored = redis.ConnectionError,
) -> T:
    """Returns the first true result of `check`; the failure names the last value or error.

    The pause between two checks grows with the duration of a check and of the wait, because other tests need the
    processor time.
    """
    begun = time.monotonic()
    deadline = begun + seconds * min(_MOST_CROWDING, crowding())
    last: object = None
    while True:
        checked = time.monotonic()
        try:
            value = check()
        except ignore as error:
            last = error
        else:
            if value:
                return value
            last = value
        _need_living_servers()
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"the condition was not true within {seconds} s, last value: {last!r}")
        time.sleep(max(pause, min(_LONGEST_PAUSE, max(_SHARE * (now - checked), _GROWTH * (now - begun)))))


async def eventually_async(
    check: Callable[[], T] | Callable[[], Awaitable[T]], seconds: float = SECONDS, pause: float = 0.005
) -> T:
    """Like `eventually`, but does not block the event loop; `check` may be a coroutine function."""
    deadline = time.monotonic() + seconds * min(_MOST_CROWDING, crowding())
    while True:
        found = check()
        value = cast(T, await found if inspect.isawaitable(found) else found)
        if value:
            return value
        _need_living_servers()
        if time.monotonic() > deadline:
            raise AssertionError(f"the condition was not true within {seconds} s, last value: {value!r}")
        await asyncio.sleep(pause)
