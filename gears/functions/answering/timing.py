"""Measures a traced call of `qa.read` on this shard. The last item of the reply has the times.

A call is traced if its last argument is a `traceparent` (W3C Trace Context), which identifies the caller's step of the
trace. Other calls are not measured. A call may join a running read of the same sentence. In this case, the report
counts only the part of the model run after the start of the call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qa_cluster.gears.functions.calls import TriggerCall
from qa_cluster.gears.inference.served import RunTimes
from qa_cluster.tracing import ShardRun, ShardTimes, is_traceparent


class CallTimes:
    """The times of one call. The clock starts when the object is created."""

    def __init__(self, traceparent: str, waited_seconds: float) -> None:
        self._traceparent = traceparent
        self._waited = waited_seconds
        self._begun = time.monotonic()
        self._steps: list[tuple[str, int, int]] = []
        self._runs: dict[int, RunTimes] = {}

    @classmethod
    def begin(cls, call: TriggerCall) -> CallTimes | None:
        """Start to measure a call; return None if its last argument is not a `traceparent`."""
        last = call.arguments[-1] if call.arguments else ""
        return cls(last, call.waited_seconds) if is_traceparent(last) else None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the time that the ``with`` block takes. The report contains this time as the step `name`."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._steps.append((name, self._since(begun), self._since(time.monotonic())))

    def add(self, runs: Sequence[RunTimes]) -> None:
        """Add the model runs that produced an answer of the call. Several sentences of the call may share a run.

        Runs without a known batch, and runs that ended before the call started, are ignored.
        """
        for run in runs:
            if run.batch is not None and run.batch.ended > self._begun:
                self._runs[id(run)] = run

    def report(self) -> dict[str, Any]:
        """Return the times up to now, in the format of `ShardTimes.parse`."""
        by_run: dict[int, list[RunTimes]] = {}
        for run in self._runs.values():
            by_run.setdefault(id(run.batch), []).append(run)
        runs = []
        for shared in by_run.values():
            batch = shared[0].batch
            if batch is not None:
                queued = min(run.queued_at for run in shared)
                times = self._since(queued), self._since(batch.began), self._since(batch.ended)
                runs.append(ShardRun(*times, len(shared), batch.items, batch.rows, batch.length, batch.tokens))
        took = self._since(time.monotonic())
        return ShardTimes(self._traceparent, round(self._waited * 1e6), took, self._steps, runs).to_json()

    def _since(self, when: float) -> int:
        return max(0, round((when - self._begun) * 1e6))
