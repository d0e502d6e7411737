"""The number of portions of long requests that are read at the same time, tested without a worker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.gears.functions.answering.portions import ALONE, SHARED, Portion, Portions


def portions_of(threads: str = "1", workers: str = "0") -> Portions:
    """The queue of a server with these settings."""
    known = {"qa.threads-per-queue": threads, "qa.inference-workers": workers}
    shard: Any = SimpleNamespace(setting=known.__getitem__)
    return Portions(shard)


async def at_once(portions: Portions, wanted: int) -> tuple[int, Portion]:
    """Make `wanted` requests; return how many of them read a portion at the same time, and the first portion."""
    resumed, taken = asyncio.Event(), list[Portion]()

    async def read() -> None:
        async with portions.turn() as portion:
            taken.append(portion)
            await resumed.wait()

    reading = [asyncio.create_task(read()) for _ in range(wanted)]
    for _ in range(20):
        await asyncio.sleep(0)
    count = len(taken)
    resumed.set()
    await asyncio.gather(*reading)
    assert len(taken) == wanted
    return count, taken[0]


@pytest.mark.parametrize(("threads", "workers", "runs"), [("1", "0", 1), ("1", "4", 4), ("3", "0", 3), ("2", "3", 6)])
async def test_each_parallel_run_reads_a_portion(threads: str, workers: str, runs: int) -> None:
    assert await at_once(portions_of(threads, workers), 8) == (runs, ALONE)


async def test_one_portion_is_read_while_short_questions_arrive() -> None:
    portions = portions_of(workers="4")
    portions.note_short()
    assert await at_once(portions, 8) == (1, SHARED)


async def test_a_cancelled_request_does_not_use_a_turn() -> None:
    portions = portions_of()

    async def read() -> None:
        async with portions.turn():
            pass

    portions.note_short()
    async with portions.turn():
        waiting = [asyncio.create_task(read()) for _ in range(2)]
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert all(each.cancelled() for each in waiting)
    async with asyncio.timeout(30):
        assert await at_once(portions, 3) == (1, SHARED)
