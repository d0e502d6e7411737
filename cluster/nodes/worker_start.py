"""Waits until the workers of the shards have started, or until a worker makes no progress.

A slow machine takes longer to start a worker and to load its models. So the time limit starts again with each sign of
progress: a new worker process, or used CPU time. A worker that restarts `MOST_RESTARTS` times has failed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis

from qa_cluster.errors import ClusterError

from .connect import ShardClient
from .polling import POLL_SECONDS

MOST_RESTARTS = 5
# This much used CPU time counts as progress. A worker that only sends heartbeats uses less CPU time, even in minutes.
_PROGRESS_SECONDS = 0.5
_PROCESSOR_TIME = "qa_ai_queue_CPU_bthread_n1_used_cpu_total"


def wait_workers(shards: Sequence[ShardClient], patience_seconds: float) -> None:
    """Wait until the worker of every shard is ready. Raises ClusterError if a worker makes no progress for
    `patience_seconds`, or restarts `MOST_RESTARTS` times.
    """
    for node, client in shards:
        wait_worker(client, WorkerStart(f"the worker of {node.address}", patience_seconds))


def wait_worker(client: redis.Redis, start: WorkerStart) -> None:
    """Wait until the worker of one server is ready. `start` has the limits; it raises ClusterError if the worker
    exceeds them.
    """
    while not start.is_over(client.info("everything")):
        time.sleep(POLL_SECONDS)


class WorkerStart:
    """The progress of one worker that is starting, from repeated INFO replies of its shard."""

    def __init__(self, worker: str, patience_seconds: float, most_restarts: int = MOST_RESTARTS) -> None:
        """Create the state. `worker` names the worker in errors. The worker has failed if it makes no progress for
        `patience_seconds`, or restarts `most_restarts` times.
        """
        self._worker = worker
        self._patience_seconds = patience_seconds
        self._most_restarts = most_restarts
        self._restarts_before: int | None = None
        self._pid = 0
        self._processor_seconds = 0.0
        self._moved_at = time.monotonic()

    def is_over(self, info: Mapping[str, Any]) -> bool:
        """Return whether the worker is ready. `info` is a new INFO reply. Raises ClusterError if the worker
        has failed.
        """
        state = info.get("qa_worker_state")
        if state == "ready":
            return True
        restarts = int(info.get("qa_worker_restarts", 0))
        if self._restarts_before is None:
            self._restarts_before = restarts
        if restarts - self._restarts_before >= self._most_restarts:
            ended = info.get("qa_worker_last_exit")
            raise ClusterError(f"{self._worker} was not ready after {restarts} restarts; last exit: {ended}")
        self._note_progress(int(info.get("qa_worker_pid", 0)), float(info.get(_PROCESSOR_TIME, 0)))
        if time.monotonic() - self._moved_at > self._patience_seconds:
            raise ClusterError(
                f"{self._worker} was not ready: its state is {state}, and it made no progress for"
                f" {self._patience_seconds:g} s (start_timeout_ms)"
            )
        return False

    def _note_progress(self, pid: int, processor_seconds: float) -> None:
        if pid != self._pid or processor_seconds - self._processor_seconds >= _PROGRESS_SECONDS:
            self._pid, self._processor_seconds, self._moved_at = pid, processor_seconds, time.monotonic()
