"""A signal ends what runs in an event loop in order, whenever it comes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from qa_cluster.cluster import signals
from qa_cluster.cluster.signals import run_until_signal, until_signal

NUMBERS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("moment", ["before the loop", "first", "last"])
def test_a_signal_ends_the_work_in_order(moment: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run

    def signalled(coroutine: Coroutine[Any, Any, None]) -> None:
        if moment == "before the loop":
            os.kill(os.getpid(), number)
        run(coroutine)

    async def work() -> None:
        if moment == "first":
            os.kill(os.getpid(), number)
        try:
            await asyncio.sleep(0.2 if moment == "last" else 60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        os.kill(os.getpid(), number)

    monkeypatch.setattr(signals.asyncio, "run", signalled)
    with until_signal(), pytest.raises(KeyboardInterrupt):
        run_until_signal(work())
    assert ended == (["cancelled"] if moment == "first" else [])


def test_without_a_signal_the_work_is_done_and_its_errors_are_its_own() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("its own")

    with until_signal():
        run_until_signal(asyncio.sleep(0))
        with pytest.raises(ValueError, match="its own"):
            run_until_signal(fails())
        with pytest.raises(KeyboardInterrupt):  # what was installed before is back
            os.kill(os.getpid(), signal.SIGTERM)
