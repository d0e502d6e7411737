"""Questions are queued in order, and questions that would end too late are refused early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from qa_cluster.asking.engine import questions_at_once
from qa_cluster.errors import QueueFull
from qa_cluster.routing.admission import LEAST_ENDS, SPARE_TURNS, Admission
from qa_cluster.routing.on_behalf import work_for


class Work:
    """Running questions. The test controls their clock, and when each question ends."""

    def __init__(self, at_once: int, most_waiting: int = 1000) -> None:
        self.now = 0.0
        self.admission = Admission(at_once, most_waiting, lambda: self.now)
        self.begun: list[int] = []
        self.release: dict[int, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def _run(self, number: int, seconds: float, asker: str) -> None:
        work_for(asker)
        async with self.admission.turn(seconds):
            self.begun.append(number)
            await self.release[number].wait()

    async def add(self, count: int, seconds: float, asker: str = "") -> None:
        for _ in range(count):
            number = len(self.tasks)
            self.release[number] = asyncio.Event()
            self.tasks.append(asyncio.create_task(self._run(number, seconds, asker)))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end_next(self, after: float) -> None:
        """Advance the clock by `after` seconds and end the oldest running question."""
        self.now += after
        number = next(n for n in self.begun if not self.release[n].is_set())
        self.release[number].set()
        await self.settle()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def refused(self) -> list[int]:
        return [n for n, task in enumerate(self.tasks) if task.done() and isinstance(task.exception(), QueueFull)]


@pytest.fixture
async def working() -> AsyncIterator[Callable[..., Work]]:
    """Makes `Work` objects, and ends their questions after the test."""
    made: list[Work] = []

    def make(*numbers: int, **options: int) -> Work:
        made.append(Work(*numbers, **options))
        return made[-1]

    yield make
    for work in made:
        await work.close()


async def test_turns_come_in_the_order_of_arrival(working: Callable[..., Work]) -> None:
    work = working(2)
    await work.add(5, 100)
    assert (work.begun, work.admission.waiting) == ([0, 1], 3)
    for _ in range(5):
        await work.end_next(1)
    assert work.begun == [0, 1, 2, 3, 4]
    assert all(task.done() for task in work.tasks)
    assert work.admission.working == 0


async def test_questions_that_would_end_too_late_are_refused_before_their_deadline(
    working: Callable[..., Work],
) -> None:
    work = working(4)
    await work.add(100, 30)
    for _ in range(LEAST_ENDS - 1):
        await work.end_next(1)
    assert not work.refused()  # too few questions have ended for a rate
    await work.end_next(1)
    # One question ends each second, and 22 s are left: 22 more questions will end in time.
    assert work.refused() == list(range(30, 100))
    assert work.now < 30
    with pytest.raises(QueueFull, match=r"are queued, which takes .* s left \(timeout\)"):
        await work.tasks[99]
    while work.admission.waiting:
        await work.end_next(1)
    while work.admission.working:
        await work.end_next(1)
    assert work.now <= 30
    assert sum(task.exception() is None for task in work.tasks) == 100 - len(work.refused())


async def test_only_the_question_with_too_little_time_is_refused(working: Callable[..., Work]) -> None:
    work = working(1)
    await work.add(10, 1000)
    for _ in range(LEAST_ENDS):
        await work.end_next(1)
    await work.add(1, 1.5)
    await work.add(1, 1000)
    assert work.refused() == [10]


async def test_a_new_burst_is_not_judged_by_the_pace_of_the_last(working: Callable[..., Work]) -> None:
    work = working(1)
    await work.add(12, 1000)
    for _ in range(12):
        await work.end_next(50)
    await work.add(10, 5)
    assert not work.refused()
    assert work.admission.pace == 0


async def test_a_question_that_leaves_frees_its_turn(working: Callable[..., Work]) -> None:
    work = working(1)
    await work.add(3, 100)
    work.tasks[1].cancel()
    work.tasks[0].cancel()
    await work.settle()
    assert work.begun == [0, 2]
    work.release[2].set()
    await work.tasks[2]
    assert work.admission.working == 0


async def test_a_question_that_leaves_when_its_turn_comes_does_not_use_the_turn(working: Callable[..., Work]) -> None:
    work = working(1)
    await work.add(3, 100)
    work.release[0].set()
    work.tasks[1].cancel()  # the turn of question 1 comes in the same round of the event loop
    await work.settle()
    assert (work.begun, work.admission.working, work.admission.waiting) == ([0, 2], 1, 0)
    work.release[2].set()
    await work.settle()
    assert work.admission.working == 0
    assert [task.cancelled() for task in work.tasks] == [False, True, False]


async def test_the_number_of_queued_questions_is_limited(working: Callable[..., Work]) -> None:
    work = working(1, most_waiting=2)
    await work.add(4, 100)
    assert (work.refused(), work.admission.waiting) == ([3], 2)


async def test_the_pace_is_unknown_until_as_many_questions_have_ended_as_run_at_the_same_time(
    working: Callable[..., Work],
) -> None:
    work = working(3 * LEAST_ENDS)
    await work.add(10 * LEAST_ENDS, 1000)
    for _ in range(3 * LEAST_ENDS - 1):
        await work.end_next(1)
    assert work.admission.pace == 0
    await work.end_next(1)
    assert work.admission.pace == 1


@pytest.mark.parametrize(("partitions", "at_once"), [(1, 8), (4, 8), (12, 24), (32, 64), (400, 64)])
def test_the_limit_of_running_questions_follows_the_partitions(partitions: int, at_once: int) -> None:
    assert questions_at_once(partitions) == at_once


async def test_a_new_limit_applies_when_the_next_question_ends(working: Callable[..., Work]) -> None:
    work = working(1)
    await work.add(6, 100)
    work.admission.at_once = 3
    await work.end_next(1)
    assert work.begun == [0, 1, 2, 3]
    work.admission.at_once = 1
    await work.end_next(1)
    await work.end_next(1)
    assert (work.begun, work.admission.working) == ([0, 1, 2, 3], 1)
    await work.end_next(1)
    assert work.begun == [0, 1, 2, 3, 4]


async def test_failures_do_not_count_for_the_pace(working: Callable[..., Work]) -> None:
    work = working(1)
    await work.add(LEAST_ENDS + 5, 100)
    for number in range(LEAST_ENDS + 1):
        work.tasks[number].cancel()
        await work.settle()
    assert work.admission.pace == 0


async def test_an_asker_without_running_questions_need_not_wait(working: Callable[..., Work]) -> None:
    work = working(2)
    await work.add(5, 100, "many")
    await work.add(2, 100, "one")
    assert (work.begun, work.admission.waiting) == ([0, 1, 5], 4)
    for number in range(SPARE_TURNS):
        await work.add(1, 100, f"new {number}")
    assert work.admission.working == 2 + SPARE_TURNS
    assert work.admission.waiting == 4 + 1


async def test_the_asker_with_the_fewest_running_questions_is_next(working: Callable[..., Work]) -> None:
    work = working(3)
    await work.add(9, 100, "many")
    await work.add(3, 100, "one")
    assert work.begun == [0, 1, 2, 9]
    await work.end_next(1)  # question 9 runs above the limit, so this end starts no other question
    assert work.begun == [0, 1, 2, 9]
    for _ in range(2):
        await work.end_next(1)
    assert work.begun == [0, 1, 2, 9, 3, 10]
    while work.admission.working:
        await work.end_next(1)
    assert sorted(work.begun) == list(range(12))
    assert max(work.begun.index(number) for number in (10, 11)) < work.begun.index(5)


async def test_a_full_queue_evicts_the_newest_question_of_the_asker_with_the_most(working: Callable[..., Work]) -> None:
    work = working(1, 4)
    await work.add(5, 100, "many")
    for number in range(SPARE_TURNS):
        await work.add(1, 100, f"new {number}")
    await work.add(2, 100, "one")
    assert work.refused() == [3, 4]
    await work.add(1, 100, "one")
    assert work.refused() == [3, 4, 5 + SPARE_TURNS + 2]
    assert (work.admission.waiting, work.admission.refused) == (4, 3)
