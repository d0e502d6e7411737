"""How many portions of long work are read at the same time, without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from qa_cluster.gears.functions.answering import portions
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The settings of a server with one run at a time; no state is kept."""
    known = {"qa.threads-per-queue": "1", "qa.inference-workers": "0"}
    monkeypatch.setattr(api, "server_setting", lambda name: known.get(name, ""))
    state.forget()
    yield known
    state.forget()


async def at_once(wanted: int) -> tuple[int, portions.Portion]:
    """How many of so many that come together read a portion, and the portion of the first."""
    let_go, taken = asyncio.Event(), list[portions.Portion]()

    async def read() -> None:
        async with portions.turn() as portion:
            taken.append(portion)
            await let_go.wait()

    reading = [asyncio.create_task(read()) for _ in range(wanted)]
    for _ in range(20):
        await asyncio.sleep(0)
    count = len(taken)
    let_go.set()
    await asyncio.gather(*reading)
    assert len(taken) == wanted
    return count, taken[0]


@pytest.mark.parametrize(("threads", "workers", "runs"), [("1", "0", 1), ("1", "4", 4), ("3", "0", 3), ("2", "3", 6)])
async def test_as_many_as_there_are_runs(settings: dict[str, str], threads: str, workers: str, runs: int) -> None:
    settings |= {"qa.threads-per-queue": threads, "qa.inference-workers": workers}
    assert await at_once(8) == (runs, portions.ALONE)


async def test_one_while_short_questions_come(settings: dict[str, str]) -> None:
    settings["qa.inference-workers"] = "4"
    portions.note_short()
    assert await at_once(8) == (1, portions.SHARED)


async def test_who_is_cancelled_while_waiting_leaves_no_turn_taken(settings: dict[str, str]) -> None:
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
        assert await at_once(3) == (1, portions.SHARED)
