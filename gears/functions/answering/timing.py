"""Tells the caller of a traced `qa.read` or `qa.rank` where its time went on this shard, as the reply's last part.

A call is traced if its last argument names the caller's step (`traceparent`); others are not measured. What ran for
another call that asked for the same sentence counts here as far as this one waited for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from qa_cluster.gears.scripting import api as rg
from qa_cluster.tracing import ShardRun, ShardTimes, is_traceparent


class CallTimes:
    """The times of one call, which begins now."""

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent
        self._waited = rg.waited_seconds()
        self._begun = time.monotonic()
        self._steps: list[tuple[str, int, int]] = []
        self._runs: dict[int, rg.RunTimes] = {}

    @classmethod
    def begin(cls, arguments: Sequence[Any]) -> CallTimes | None:
        """The times of the call with these arguments; None if the last one is not the name of the caller's step."""
        return cls(arguments[-1]) if is_traceparent(arguments[-1]) else None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A part of the call."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._steps.append((name, self._since(begun), self._since(time.monotonic())))

    def add(self, runs: Sequence[rg.RunTimes]) -> None:
        """Models ran for the call, or had run for an earlier one before it came; several sentences may share a run."""
        for run in runs:
            if run.batch is not None and run.batch.ended > self._begun:
                self._runs[id(run)] = run

    def report(self) -> dict[str, Any]:
        """The times up to now, as `ShardTimes.parse` reads them."""
        by_run: dict[int, list[rg.RunTimes]] = {}
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
