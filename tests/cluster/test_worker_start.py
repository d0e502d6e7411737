"""Commands wait for workers as long as the workers make progress."""

from __future__ import annotations

from typing import Any

import pytest

from qa_cluster.cluster.nodes import worker_start
from qa_cluster.errors import ClusterError

PATIENCE_SECONDS = 60.0


class Clock:
    """A clock that a test controls."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(worker_start, "time", clock)
    return clock


def info(processor_seconds: float, *, pid: int = 7, restarts: int = 0, state: str = "starting") -> dict[str, Any]:
    return {
        "qa_worker_state": state,
        "qa_worker_pid": pid,
        "qa_worker_restarts": restarts,
        "qa_worker_last_exit": "status 1",
        worker_start._PROCESSOR_TIME: processor_seconds,
    }


def test_a_command_waits_an_hour_for_a_worker_that_loads_a_model(clock: Clock) -> None:
    start = worker_start.WorkerStart("the worker", PATIENCE_SECONDS)
    for second in range(0, 3600, 30):
        clock.seconds += 30
        assert not start.is_over(info(second / 10))
    assert start.is_over(info(400, state="ready"))


def test_a_command_gives_up_on_a_worker_that_only_sends_heartbeats(clock: Clock) -> None:
    start = worker_start.WorkerStart("the worker of 127.0.0.1:7000", PATIENCE_SECONDS)
    assert not start.is_over(info(1.0))
    clock.seconds += PATIENCE_SECONDS
    assert not start.is_over(info(1.1))
    clock.seconds += 1
    with pytest.raises(ClusterError, match=r"worker of 127.0.0.1:7000 .* no progress for 60 s .*start_timeout_ms"):
        start.is_over(info(1.1))


def test_a_command_gives_up_on_a_worker_that_ends_repeatedly(clock: Clock) -> None:
    start = worker_start.WorkerStart("the worker", PATIENCE_SECONDS)
    for number in range(worker_start.MOST_RESTARTS):
        assert not start.is_over(info(1.0, pid=number, restarts=3 + number))
    with pytest.raises(ClusterError, match="8 restarts; last exit: status 1"):
        start.is_over(info(1.0, restarts=3 + worker_start.MOST_RESTARTS))
