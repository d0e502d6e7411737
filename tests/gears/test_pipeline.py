"""The operations of a pipeline on one shard: results, failing records, and turns of other work."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.errors import ClusterError
from qa_cluster.gears.scripts.calling.coroutines import CoroutineLoop
from qa_cluster.gears.scripts.host.atomic import guarded
from qa_cluster.gears.scripts.host.executions import Execution
from qa_cluster.gears.scripts.interface.builder import GearsBuilder
from qa_cluster.gears.scripts.runs import coroutines, pipeline
from qa_cluster.gears.scripts.runs.distributed import Distributor
from qa_cluster.gears.scripts.runs.pipeline import Chain, key_text, run_local
from qa_cluster.gears.scripts.runs.plan import ExecutionPlan, Step, StepKind, split_stages
from qa_cluster.gears.scripts.runs.sources import ShardsIDSource
from qa_cluster.gears.shard.failures import GearsError
from tests.gears.scripts import plan_of
from tests.harness.polling import eventually_async

NO_BLOCK: Any = SimpleNamespace(entered_here=False, abandon=lambda _: None)


class Host:
    """A host with a loop for coroutines, and without commands."""

    def __init__(self) -> None:
        self.coroutines = CoroutineLoop()
        self.coroutines.begin()
        self.atomic = NO_BLOCK

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()


@pytest.fixture(scope="module")
def one_host() -> Iterator[Host]:
    host = Host()
    yield host
    host.coroutines.loop.call_soon_threadsafe(host.coroutines.loop.stop)


@pytest.fixture(autouse=True)
def bound_host(one_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coroutines, "current_host", lambda: one_host)


async def stream(records: Iterable[Any]) -> AsyncIterator[Any]:
    for record in records:
        yield record


def run(describe: Callable[[GearsBuilder], object], records: Iterable[Any], convert: bool = False) -> Execution:
    """Run a pipeline over records like a script's `run()` on a standalone shard."""
    execution = Execution("x", None)
    asyncio.run(run_local(stream(records), plan_of(describe, convert).steps, execution))
    return execution


@pytest.mark.parametrize(
    ("describe", "records", "expected"),
    [
        (lambda gb: gb.map(lambda x: x + 1), [1, 2], [2, 3]),
        (lambda gb: gb.filter(lambda x: x > 1), [1, 2, 3], [2, 3]),
        (lambda gb: gb.flatmap(lambda x: [x] * x), [1, 2], [1, 2, 2]),
        (lambda gb: gb.flatmap(lambda x: x), [7], [7]),
        (lambda gb: gb.accumulate(lambda a, x: (a or 0) + x), [1, 2, 3], [6]),
        (lambda gb: gb.count(), "abc", [3]),
        (lambda gb: gb.count(), [], []),
        (lambda gb: gb.limit(2, 1), range(9), [1, 2]),
        (lambda gb: gb.sort(), [1, 3, 2], [1, 2, 3]),
        (lambda gb: gb.sort(reverse=False), [1, 3, 2], [3, 2, 1]),
        (lambda gb: gb.flatmap(list).limit(1, 3), ["abcdef"], ["d"]),
        (lambda gb: gb.accumulate(lambda a, x: None), [1, 2], [None]),
        (lambda gb: gb.accumulate(lambda a, x: None), [], []),
        (lambda gb: gb.avg(), [1, 2, 6], [3.0]),
        (lambda gb: gb.countby(), ["a", "b", "a"], [{"key": "a", "value": 2}, {"key": "b", "value": 1}]),
        (
            lambda gb: gb.groupby(lambda x: x % 2, lambda k, a, r: (a or 0) + r),
            [1, 2, 3],
            [{"key": "1", "value": 4}, {"key": "0", "value": 2}],
        ),
        (
            lambda gb: gb.batchgroupby(lambda x: x % 2, lambda k, r: sorted(r)),
            [3, 2, 1],
            [{"key": "1", "value": [1, 3]}, {"key": "0", "value": [2]}],
        ),
        (lambda gb: gb.repartition(str).collect(), [1, 2], [1, 2]),
        (lambda gb: gb.aggregate([], lambda a, r: [*a, r], lambda a, r: a + r), [1, 2], [[1, 2]]),
        # a false accumulator counts as missing, and zero replaces it
        (lambda gb: gb.aggregate(5, lambda a, r: a + r, lambda a, r: a + r), [-5, 1], [11]),
        (
            lambda gb: gb.aggregateby(str, 0, lambda k, a, r: a + r, lambda k, a, r: a + r),
            [2, 2],
            [{"key": "2", "value": 4}],
        ),
        (lambda gb: gb.filter(bool).flatmap(iter), [[], [1], [2, 3]], [1, 2, 3]),
        (lambda gb: gb.distinct().sort(), [1, 2, 1], [1, 2]),
    ],
)
def test_operation(describe: Callable[[GearsBuilder], object], records: Iterable[Any], expected: list[Any]) -> None:
    execution = run(describe, records)
    assert execution.errors == []
    assert execution.results == expected


def test_foreach_keeps_the_record() -> None:
    seen: list[int] = []
    assert run(lambda gb: gb.foreach(seen.append), [1, 2]).results == [1, 2]
    assert seen == [1, 2]


def test_results_are_text_by_default() -> None:
    assert run(lambda gb: gb, [1, {"a": 2}], convert=True).results == ["1", "{'a': 2}"]


def test_coroutines_are_steps() -> None:
    async def slow(x: int) -> int:
        await asyncio.sleep(0)
        return x * 2

    async def group(key: str, acc: int | None, x: int) -> int:
        await asyncio.sleep(0)
        return (acc or 0) + x

    execution = run(lambda gb: gb.map(slow).localgroupby(lambda _: "k", group), [1, 2])
    assert execution.results == [{"key": "k", "value": 6}]


async def coroutine_function(*_: Any) -> str:
    return "k"


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda gb: gb.localgroupby(coroutine_function, lambda k, a, r: r), "coroutine are not allow on extractor"),
        (lambda gb: gb.batchgroupby(str, lambda k, r: coroutine_function()), "coroutine are not allow on reduce"),
    ],
)
def test_coroutines_are_not_for_keys_and_batches(describe: Callable[[GearsBuilder], object], message: str) -> None:
    execution = run(describe, [1])
    assert execution.results == []
    assert message in execution.errors[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the steps. Only a step advances it."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pipeline, "_now", lambda: clock.now)
    return clock


def test_each_step_is_charged_its_own_time(clock: SimpleNamespace) -> None:
    def works(x: int) -> int:
        clock.now += 1
        return x

    def fails(x: int) -> int:
        clock.now += 10
        return 1 // x

    async def read() -> AsyncIterator[int]:
        for record in (1, 0, 1):
            clock.now += 100
            yield record

    execution = Execution("x", None)
    steps = plan_of(lambda gb: gb.map(works).foreach(fails).filter(bool)).steps
    asyncio.run(run_local(read(), steps, execution))
    assert execution.steps == [("map", "works"), ("foreach", "fails"), ("filter", "bool"), ("collect", "")]
    assert execution.step_seconds == [3, 30, 0, 0]
    assert execution.read_seconds == 300
    assert execution.results == [1, 1]


def test_a_step_with_waiting_records_lasts_from_the_first_to_the_last_record(clock: SimpleNamespace) -> None:
    async def waits(x: int) -> int:
        await asyncio.sleep(0)
        clock.now += 1
        return x

    execution = Execution("x", None)
    asyncio.run(run_local(stream([1, 2]), plan_of(lambda gb: gb.map(waits)).steps, execution))
    assert execution.step_seconds == [2, 0]


def test_the_time_to_send_records_is_charged_to_the_boundary(clock: SimpleNamespace) -> None:
    execution = Execution("x", None)
    steps = [Step(StepKind.MAP, str), Step(StepKind.REPARTITION, key=str)]
    execution.begin([step.outline for step in steps])
    sent: list[Any] = []

    def send(record: Any) -> None:
        clock.now += 1
        sent.append(record)

    assert Chain(steps[:1], send, execution, moves=True).push(7) is None
    assert sent == ["7"]
    assert execution.step_seconds == [0, 1]


def test_steps_that_sometimes_wait_keep_the_order() -> None:
    async def slow(x: int) -> int:
        await asyncio.sleep(0.001)
        return 6 // x

    def odd_ones_wait(x: int) -> Any:
        return slow(x) if x % 2 else x

    def both(x: int) -> list[int]:
        return [x, -x]

    execution = run(lambda gb: gb.flatmap(iter).map(odd_ones_wait).flatmap(both).foreach(odd_ones_wait), [[2, 3, 1, 4]])
    assert execution.results == [2, -2, 2, -2, 6, -6, 4, -4]
    execution = run(lambda gb: gb.flatmap(list).map(slow).accumulate(lambda a, x: [*(a or []), x]), [[1, 0, 3], [2]])
    assert execution.results == [[6, 2, 3]]
    assert ["ZeroDivisionError" in error for error in execution.errors] == [True]


def test_coroutines_of_a_run_wait_together_and_keep_the_order() -> None:
    waiting: list[asyncio.Event] = []

    async def waits_for_all(x: int) -> int:
        """Waits until all ten records are here."""
        waiting.append(asyncio.Event())
        if len(waiting) % 10 == 0:
            for event in waiting:
                event.set()
        await waiting[-1].wait()
        await asyncio.sleep(0.001 * (x % 3))  # the coroutines end in another order
        return x

    execution = run(lambda gb: gb.map(waits_for_all).map(lambda x: x + 1).map(waits_for_all), range(10))
    assert (execution.results, execution.errors) == (list(range(1, 11)), [])


def test_long_lists_keep_their_order_while_records_wait() -> None:
    async def slow(x: int) -> int:
        await asyncio.sleep(0)
        return x

    execution = run(lambda gb: gb.flatmap(lambda x: iter(range(1500))).map(slow).flatmap(lambda x: [x, x]), [1, 2])
    assert execution.results == [x for x in range(1500) for _ in "ab"] * 2


def test_the_states_of_a_step_take_one_record_at_a_time() -> None:
    async def add(key: str, sum_so_far: int | None, x: int) -> int:
        busy[key] = busy.get(key, 0) + 1
        most[0] = max(most[0], sum(busy.values()))
        await asyncio.sleep(0.001)
        busy[key] -= 1
        return (sum_so_far or 0) + x

    async def join(before: list[int] | None, x: int) -> list[int]:
        await asyncio.sleep(0)
        return [*(before or []), x]

    busy: dict[str, int] = {}
    most = [0]
    execution = run(lambda gb: gb.localgroupby(lambda x: str(x % 3), add), range(9))
    assert execution.results == [{"key": str(n), "value": 9 + 3 * n} for n in range(3)]
    assert most == [1]
    assert run(lambda gb: gb.accumulate(join), range(5)).results == [[0, 1, 2, 3, 4]]


async def test_waiting_records_end_with_their_run() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def waits(x: int) -> None:
        try:
            begun.append(x)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(x)

    task = asyncio.create_task(run_local(stream([1, 2]), plan_of(lambda gb: gb.map(waits)).steps, Execution("x", None)))
    await eventually_async(lambda: len(begun) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [1, 2]


def test_a_cancelled_future_of_a_function_is_an_error_of_its_record() -> None:
    async def waits(x: int) -> int:
        future = asyncio.get_running_loop().create_future()
        if x == 1:
            future.cancel()
            await future
        return x

    execution = run(lambda gb: gb.map(waits), [1, 2])
    assert execution.results == [2]
    assert ["was cancelled" in error for error in execution.errors] == [True]


def test_inside_one_shard_repartition_calls_its_extractor() -> None:
    seen: list[int] = []
    assert run(lambda gb: gb.repartition(lambda x: seen.append(x) or str(x)), [1, 2]).results == [1, 2]
    assert seen == [1, 2]
    execution = run(lambda gb: gb.repartition(lambda x: str(1 // x)), [1, 0])
    assert execution.results == [1]
    assert "ZeroDivisionError" in execution.errors[0]


def test_the_history_has_no_reference_to_functions_of_an_ended_script() -> None:
    known: list[weakref.ref[Any]] = []

    def described(builder: GearsBuilder) -> None:
        def function(x: int) -> int:
            return x

        builder.map(function)
        known.append(weakref.ref(function))

    execution = run(described, [1])
    gc.collect()
    assert known[0]() is None
    assert execution.steps[0] == ("map", "function")


def test_a_failing_record_is_dropped_and_its_error_kept() -> None:
    execution = run(lambda gb: gb.map(lambda x: 1 // x), [1, 0, 1])
    assert execution.results == [1, 1]
    assert ["ZeroDivisionError" in error for error in execution.errors] == [True]
    assert execution.failure is not None
    assert execution.failure.startswith("ERR ZeroDivisionError")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_a_function_is_an_error_of_its_record(error: type[BaseException]) -> None:
    def leave(_: object) -> None:
        raise error

    assert error.__name__ in run(lambda gb: gb.map(leave), [1]).errors[0]


async def test_await_inside_an_atomic_block_raises_in_the_function() -> None:
    block: Any = SimpleNamespace(entered_here=True)

    async def waits() -> str:
        try:
            await asyncio.sleep(1)
        except GearsError as error:
            return str(error)
        return "waited"

    assert await guarded(waits(), block) == "await is not allow inside atomic block"


async def test_a_coroutine_that_ignores_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coroutines, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(coroutines, "STUCK_SECONDS", 0.02)
    loop = CoroutineLoop()
    loop.begin()
    host: Any = SimpleNamespace(loop=asyncio.get_running_loop(), coroutines=loop, atomic=NO_BLOCK)
    begun: list[str] = []

    async def waits() -> None:
        begun.append("first")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        begun.append("second")
        await asyncio.sleep(3600)

    task = asyncio.create_task(coroutines._Coroutine(host, waits()).result())
    await eventually_async(lambda: begun == ["first"])
    task.cancel()
    await eventually_async(task.done)
    assert task.cancelled()
    assert begun == ["first", "second"]
    loop.loop.call_soon_threadsafe(loop.loop.stop)


async def test_bulk_runs_yield_to_other_work(clock: SimpleNamespace) -> None:
    turns: list[int] = []
    records: list[int] = []

    def slow(x: int) -> int:
        clock.now += pipeline.TURN_SECONDS / 2
        records.append(x)
        return x

    async def other() -> None:
        while True:
            turns.append(len(records))
            await asyncio.sleep(0)

    watcher = asyncio.create_task(other())
    await run_local(stream(range(9)), plan_of(lambda gb: gb.map(slow)).steps, Execution("x", None))
    watcher.cancel()
    assert turns == [3, 6, 9]


def test_keys_are_text() -> None:
    assert key_text("a") == "a"
    assert key_text(1) == "1"
    with pytest.raises(GearsError, match="coroutine are not allow on extractor"):
        key_text(coroutine_function())


def test_stages_end_at_boundaries() -> None:
    stages = split_stages(plan_of(lambda gb: gb.map(str).repartition(str).filter(bool)).steps)
    assert [(len(steps), boundary and boundary.kind) for steps, boundary in stages] == [
        (1, StepKind.REPARTITION),
        (1, StepKind.COLLECT),
        (0, None),
    ]


async def test_a_run_that_cannot_ask_the_other_shards_says_why() -> None:
    def no_slots() -> None:
        raise ClusterError("no shard serves slots")

    nothing: Any = SimpleNamespace()
    host: Any = SimpleNamespace(threads=SimpleNamespace(loop=asyncio.get_running_loop()), background_seconds=0)
    peers: Any = SimpleNamespace(topology=no_slots)
    settings: Any = SimpleNamespace(keep_fresh=lambda: None)
    execution = Execution("x", None)
    distributor = Distributor(host, peers, nothing, settings, nothing)
    await distributor.run(ExecutionPlan(ShardsIDSource(), (), "async"), execution)
    assert execution.finished
    assert [error for error in execution.errors if "no shard serves slots" in error] == execution.errors != []
    assert execution.failure == "CLUSTER no shard serves slots"
