"""The progress of a run without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from qa_cluster.models.training import progress


def test_time_left_counts_steps_and_not_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("qa_cluster.models.training.progress.time.monotonic", lambda: now)
    shown = io.StringIO()
    with progress.ConsoleWatcher(Console(file=shown, width=200)) as watcher:
        watcher.start("reads", 0, 10_000)
        for done in (2000, 4000, 6000):  # a report of 2,000 steps every 100 s
            now += 100.0
            watcher.step(done, 10_000, None, 0)
    assert shown.getvalue().splitlines() == [
        "reads: step 2000 of 10000",
        "reads: step 4000 of 10000, 0:05:00 left",
        "reads: step 6000 of 10000, 0:03:20 left",
    ]
