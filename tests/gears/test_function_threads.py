"""The threads of functions without a shard: turns, bounds, and interruptions, which must not reach other code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from qa_cluster.gears.scripts.calling.queues import TurnQueue
from qa_cluster.gears.scripts.calling.sections import Aborted, CodeSection, shielded
from qa_cluster.gears.scripts.calling.strands import Strand
from qa_cluster.gears.scripts.calling.threads import FunctionPool, FunctionThreads


def threads_of(limit: int, gave_up: list[str] | None = None) -> FunctionThreads:
    noted = gave_up if gave_up is not None else []
    return FunctionThreads(asyncio.get_running_loop(), limit, 0.05, noted.append)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Waiting:
    owner: str
    number: int


async def test_owners_take_turns_and_have_bounded_shares() -> None:
    queue: TurnQueue[Waiting] = TurnQueue(2)
    calls = [Waiting("many", number) for number in range(4)]
    for call in (*calls, Waiting("one", 0)):
        queue.add(call)
    assert [queue.take() for _ in range(4)] == [calls[0], Waiting("one", 0), calls[1], None]
    queue.ended(calls[0])
    assert queue.remove(calls[2]) and not queue.remove(calls[2])
    assert (queue.take(), queue.length) == (calls[3], 0)


async def test_a_strand_has_its_own_thread_and_releases_it_while_it_waits() -> None:
    threads = threads_of(1)
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ran: list[Any] = []

    async def waits(strand: Strand) -> str:
        ran.append(threading.current_thread())
        copied = strand.create_future()
        gate.add_done_callback(lambda _: strand.call_soon_threadsafe(copied.set_result, None))
        await copied
        await asyncio.sleep(0.01)
        return "waited"

    async def returns() -> str:
        return "returned"

    first = Strand(threads, FunctionPool.RUNS, "first")
    work = asyncio.ensure_future(first.run(waits(first)))
    await until(lambda: bool(ran) and threads.running == 0)
    assert await Strand(threads, FunctionPool.RUNS, "second").run(returns()) == "returned"
    gate.set_result(None)
    assert await work == "waited"
    assert ran[0] is not threading.main_thread()
    assert threads.count == 1


async def test_errors_and_exits_reach_the_caller() -> None:
    async def fails(error: BaseException) -> None:
        raise error

    for error in (ValueError("x"), SystemExit(3), StopAsyncIteration()):
        with pytest.raises(type(error)):
            await Strand(threads_of(1), FunctionPool.RUNS, "x").run(fails(error))


@pytest.mark.parametrize("swallowing", [False, True])
async def test_a_cancelled_strand_is_interrupted_at_once_and_ends_with_its_thread(swallowing: bool) -> None:
    threads = threads_of(1)
    caught: list[BaseException] = []
    begun = threading.Event()

    async def loops() -> None:
        while True:
            try:
                begun.set()
                while True:
                    time.sleep(0.01)
            except BaseException as error:
                caught.append(error)
                if not swallowing or len(caught) > 1:
                    raise

    strand = Strand(threads, FunctionPool.RUNS, "x")
    work = asyncio.ensure_future(strand.run(loops()))
    await until(begun.is_set)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await strand.until_ended()
    await until(lambda: threads.running == 0)
    assert [type(error) for error in caught] == [Aborted] * (1 + swallowing)
    assert threads.stuck == 0


async def test_a_strand_that_is_cancelled_before_it_has_a_thread_never_begins() -> None:
    threads, ran = threads_of(1), []
    gate = threading.Event()

    async def holds() -> None:
        gate.wait(30)

    async def never() -> None:
        ran.append(1)

    held = asyncio.ensure_future(Strand(threads, FunctionPool.RUNS, "a").run(holds()))
    second = Strand(threads, FunctionPool.RUNS, "b")
    work = asyncio.ensure_future(second.run(never()))
    await until(lambda: threads.waiting == 1)
    work.cancel()
    await second.until_ended()
    gate.set()
    await held
    assert (ran, threads.waiting) == ([], 0)


async def test_work_that_is_ended_before_its_first_step_leaves_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def never() -> None:
        raise AssertionError

    class Unready(Strand):
        def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
            section = sections[0]
            section.interrupt()  # like an interruption by another thread just before the work starts
            super()._begin(work)

        def _turn(self, section: CodeSection) -> None:
            sections.append(section)
            super()._turn(section)

    sections: list[CodeSection] = []
    work = asyncio.ensure_future(Unready(threads_of(1), FunctionPool.RUNS, "x").run(never()))
    with pytest.raises(asyncio.CancelledError):
        await work
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


async def test_too_many_stuck_calls_end_the_worker() -> None:
    gave_up: list[str] = []
    threads = threads_of(1, gave_up)
    gate = threading.Event()

    inside = threading.Event()

    async def stuck() -> None:
        with shielded():  # cannot be interrupted, like a call into C
            inside.set()
            gate.wait(30)

    for number in range(2):
        inside.clear()
        work = asyncio.ensure_future(Strand(threads, FunctionPool.RUNS, str(number)).run(stuck()))
        await until(inside.is_set)
        work.cancel()
        await until(lambda number=number: threads.stuck == number + 1)  # type: ignore[misc]
    assert gave_up == ["2 functions do not end although they were aborted"]
    gate.set()
    await until(lambda: threads.stuck == 0)


async def test_a_shielded_piece_of_code_ends_before_the_interruption() -> None:
    section, done = CodeSection(), []
    inside, go = threading.Event(), threading.Event()

    def work() -> None:
        with shielded():
            inside.set()
            while not go.is_set():
                time.sleep(0.005)
            done.append("shielded")
        done.append("after")

    def run() -> None:
        try:
            section.run(work)
        except Aborted:
            done.append("aborted")

    thread = threading.Thread(target=run)
    thread.start()
    await until(inside.is_set)
    section.interrupt()
    go.set()
    await asyncio.to_thread(thread.join)
    assert done == ["shielded", "aborted"]


async def test_an_interruption_never_reaches_later_code() -> None:
    """Sections end repeatedly while they are being interrupted."""
    late: list[str] = []
    stop = threading.Event()
    current = [CodeSection()]

    def work() -> None:
        for _ in range(3000):
            section = current[0] = CodeSection()
            with contextlib.suppress(Aborted):
                section.run(sum, range(50))
            try:
                sum(range(50))
            except Aborted:
                late.append("late")
        stop.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not stop.is_set():
        current[0].interrupt()
        await asyncio.sleep(0)
    thread.join()
    assert late == []
