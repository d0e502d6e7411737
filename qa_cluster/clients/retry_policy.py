"""Decides when the clients of the REST service retry a request."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

import httpx

from qa_cluster.errors import InvalidInput


def retry_after(response: httpx.Response) -> float | None:
    """Return the pause in seconds that a response asks for; None if `Retry-After` is not a number of seconds."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() else None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a client retries a request.

    A client retries after status 503, after a lost connection, and after status 429 if its `Retry-After` is at most
    `max_pause`.
    All attempts and pauses of a call together stay within its timeout.

    Attributes:
        attempts: the maximum number of attempts of one call; None: no limit.
        first_pause: the seconds before the second attempt, if the response has no `Retry-After`. Each later pause is
            twice as long as the pause before it.
        max_pause: the limit of a pause in seconds. If a response with status 429 asks for a longer pause, or names no
            pause, the client does not retry.
        connect: while no connection can be opened, the client retries only within this many seconds after the start of
            the call. A service that restarts accepts connections again within 2 seconds.
    """

    attempts: int | None = None
    first_pause: float = 0.5
    max_pause: float = 5.0
    connect: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise InvalidInput(f"attempts of a RetryPolicy must be 1 or more, or None, got {self.attempts!r}")
        for name in ("first_pause", "max_pause", "connect"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < inf:
                raise InvalidInput(f"{name} of a RetryPolicy must be 0 or more seconds, got {value!r}")

    def pause(
        self,
        response: httpx.Response | None,
        lost: httpx.TransportError | None,
        attempt: int,
        begun: float,
        until: float,
    ) -> float | None:
        """Return the seconds to wait before the next attempt; None if the client does not retry.

        `response` is the response of the last attempt; it is None if the attempt failed with `lost`. `attempt` is the
        number of the last attempt, counted from 0. The times `begun` and `until` of the call are on the clock of
        `time.monotonic`.
        """
        if self.attempts is not None and attempt + 1 >= self.attempts:
            return None
        if isinstance(lost, httpx.ConnectError):
            until = min(until, begun + self.connect)
        if response is not None and response.status_code not in (429, 503):
            return None
        asked = retry_after(response) if response is not None else None
        if response is not None and response.status_code == 429 and (asked is None or asked > self.max_pause):
            return None  # the client must wait for a longer time, for example after a limit per day
        pause = min(asked if asked is not None else self.first_pause * 2**attempt, self.max_pause)
        return pause if time.monotonic() + pause < until else None


DEFAULT_RETRY = RetryPolicy()
