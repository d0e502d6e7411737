"""Decides whether to retry after an error, and after which pause.

After an error of the cluster or of the service, the adapter retries until success. After an error that the message may
have caused, it retries a few times. After an error of the message itself, it does not retry.
"""

from __future__ import annotations

import logging
import random
import time
from enum import Enum

import redis

from qa_cluster.errors import (
    AccessDenied,
    CapacityError,
    ClusterError,
    CollectionBusy,
    ModelError,
    NotFound,
    NoWorker,
    RequestError,
)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 10.0
# The maximum for a pause that an error requests. An API key at its daily limit, for example, requests a pause until the
# next day.
LONGEST_ASKED_SECONDS = 60.0
LOG_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Verdict(Enum):
    """What to do after an error of an attempt to process a message.

    - DEAD_LETTER: do not retry, and write the message to the topic for dead letters.
    - A_FEW_TIMES: retry until the maximum number of attempts, and then write a dead letter.
    - UNTIL_SUCCESS: retry without a limit.
    """

    DEAD_LETTER = "dead letter"
    A_FEW_TIMES = "a few times"
    UNTIL_SUCCESS = "until success"


def verdict_on(error: Exception, names_target: bool) -> Verdict:
    """Decide what to do after an error of an attempt to process a message.

    Args:
        error: the error of the attempt.
        names_target: whether the message itself names a collection or a model. If not, a missing collection, a missing
            model or a key without the right is an error of the installation, and the adapter retries until an operator
            corrects it. An API key that the service does not accept at all (401) is always such an error.

    >>> verdict_on(NotFound("no such collection: 'x'"), names_target=True).value
    'dead letter'
    >>> verdict_on(NotFound("no such collection: 'x'"), names_target=False).value
    'until success'
    """
    if isinstance(error, CollectionBusy) or (isinstance(error, AccessDenied) and error.http_status == 401):
        return Verdict.UNTIL_SUCCESS
    if isinstance(error, NotFound | AccessDenied | ModelError):
        return Verdict.DEAD_LETTER if names_target else Verdict.UNTIL_SUCCESS
    if isinstance(error, RequestError):
        return Verdict.DEAD_LETTER
    if isinstance(error, CapacityError | ClusterError | NoWorker | redis.RedisError | OSError):
        return Verdict.UNTIL_SUCCESS
    return Verdict.A_FEW_TIMES


def pause_seconds(error: Exception, attempt: int) -> float:
    """Return the pause after the failed attempt number `attempt` (from 1), in seconds: exponential backoff with jitter.
    If a CapacityError requests a longer pause, the pause is as long as requested, but at most `LONGEST_ASKED_SECONDS`.
    """
    grown = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * float(2 ** min(attempt - 1, 10)))
    asked = getattr(error, "retry_after_seconds", None) or 0.0
    if not isinstance(error, CapacityError):
        asked = 0.0
    return max(min(float(asked), LONGEST_ASKED_SECONDS), grown * random.uniform(0.5, 1.0))


class FailureLog:
    """Logs each type of failure at most once per `LOG_SECONDS`, because many messages have the same failure."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def note(self, error: Exception, place: str, attempt: int) -> None:
        """Log a failed attempt, unless an error of the same type was logged less than `LOG_SECONDS` ago.

        `place` says what has failed, such as ``questions[0]@17``. `attempt` is the number of the attempt, from 1.
        """
        kind, now = type(error).__name__, time.monotonic()
        if now - self._logged.get(kind, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged[kind] = now
            _log.warning("attempt %d of %s failed and is retried: %s: %s", attempt, place, kind, error)
