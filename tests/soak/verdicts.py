"""Counts the outcomes of requests: right, an error that a client may get, or wrong."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import redis

from qa_cluster.errors import ModelError, ProtocolError, QAError

T = TypeVar("T")

# The errors that clients may get during faults. Everything else is a finding.
ALLOWED_CODES = {
    "OVERLOADED": "a queue was full",
    "DEADLINE": "a job reached its time limit",
    "NOWORKER": "the worker was being restarted",
    "WORKERLOST": "two workers died during the job, or the worker's state was lost",
    "CLUSTER": "a shard could not be reached",
    "TRYAGAIN": "the shard was not ready to write",
    "INFERENCE": "a worker was killed in the middle of a batch",
}
ALLOWED_TEXTS = {
    # a registration or a run needs every shard, and waits only some seconds for a hanging worker
    "did not answer within": "the worker of another shard did not run",
    "execution plan does not exist": "the worker of another shard was replaced during a run",
    "execution does not exist": "the worker of another shard was replaced during a run",
    "Execution max idle reached": "the worker of another shard was replaced during a run",
    "so it is not started a second time": "the worker of another shard was replaced while a run started there",
    "no longer leads this run": "the worker that led a run was replaced",
    "which leads this run, has not answered": "the worker that led a run did not run",
    "WORKERLOST the link to the shard broke": "the connections of a worker were killed during a run",
    "WORKERLOST the shard closed the link": "the connections of a worker were killed during a run",
}


class Wrong(Exception):
    """A wrong answer."""


class Verdicts:
    """Counts verdicts by kind of request; thread-safe."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.lock = threading.Lock()

    def note(self, kind: str, verdict: str) -> None:
        """Counts one outcome."""
        with self.lock:
            self.counts[kind, verdict] += 1

    def attempt(self, kind: str, call: Callable[[], T]) -> T | None:
        """Makes a request and counts the outcome. Returns None after an allowed error."""
        try:
            value = call()
        except (OSError, redis.ConnectionError, redis.TimeoutError, redis.exceptions.ClusterDownError) as error:
            self.note(kind, type(error).__name__)
        except (ModelError, ProtocolError) as error:
            self.fail(kind, error)
        except QAError as error:
            self.note(kind, error.resp_code) if error.resp_code in ALLOWED_CODES else self.fail(kind, error)
        except redis.RedisError as error:
            text = str(error)
            code = text.split(" ", maxsplit=1)[0]
            if code in ALLOWED_CODES:
                self.note(kind, code)
            elif allowed := next((allowed for allowed in ALLOWED_TEXTS if allowed in text), None):
                self.note(kind, allowed)
            else:
                self.fail(kind, error)
        except Wrong as error:
            self.fail(kind, error)
        else:
            self.note(kind, "right")
            return value
        return None

    def fail(self, kind: str, error: Exception) -> None:
        """Records a finding."""
        with self.lock:
            self.counts[kind, "WRONG"] += 1
            self.wrong.append(f"{time.strftime('%H:%M:%S')} {kind}: {type(error).__name__}: {error}")

    def right(self, kind: str) -> int:
        """The number of right answers."""
        return self.counts[kind, "right"]
