"""The operations of a pipeline on one shard: what comes out, what a failing record does, who gets their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from qa_cluster.gears.builder import GearsBuilder
from qa_cluster.gears.executions import Execution
from qa_cluster.gears.failures import GearsError
from qa_cluster.gears.pipeline import StepKind, key_text, run_local, split_stages
from qa_cluster.gears.sessions import ScriptRun, Session, running_script

NO_BLOCK: Any = SimpleNamespace(active=False)
NO_FUNCTION: Any = 1
NO_NUMBER: Any = "1"


async def stream(records: Iterable[Any]) -> AsyncIterator[Any]:
    for record in records:
        yield record


def run(describe: Callable[[GearsBuilder], object], records: Iterable[Any], convert: bool = False) -> Execution:
    """Run a pipeline over records as a script's `run()` on a shard alone."""
    builder = GearsBuilder("ShardsIDReader")
    describe(builder)
    script = ScriptRun(Session("s", "", ""))
    token = running_script.set(script)
    try:
        builder.run(convertToStr=convert)
    finally:
        running_script.reset(token)
    assert script.plan is not None
    execution = Execution("x", None)
    asyncio.run(run_local(stream(records), script.plan.steps, execution, NO_BLOCK))
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
        (lambda gb: gb.sort(), [1, 3, 2], [3, 2, 1]),
        (lambda gb: gb.sort(reverse=False), [1, 3, 2], [1, 2, 3]),
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
    ],
)
def test_operation(describe: Callable[[GearsBuilder], object], records: Iterable[Any], expected: list[Any]) -> None:
    execution = run(describe, records)
    assert execution.errors == []
    assert execution.results == expected


def test_distinct() -> None:
    assert sorted(run(lambda gb: gb.distinct(), [1, 2, 1]).results) == [1, 2]


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


def test_a_failing_record_is_dropped_and_told() -> None:
    execution = run(lambda gb: gb.map(lambda x: 1 // x), [1, 0, 1])
    assert execution.results == [1, 1]
    assert len(execution.errors) == 1
    assert "ZeroDivisionError" in execution.errors[0]
    assert execution.failure is not None
    assert execution.failure.startswith("ERR ZeroDivisionError")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_of_a_function_is_an_error_of_its_record(error: type[BaseException]) -> None:
    def leave(_: object) -> None:
        raise error

    assert error.__name__ in run(lambda gb: gb.map(leave), [1]).errors[0]


def test_await_inside_an_atomic_block_raises_in_the_function() -> None:
    block: Any = SimpleNamespace(active=True)

    async def waits(_: object) -> str:
        try:
            await asyncio.sleep(1)
        except GearsError as error:
            return str(error)
        return "waited"

    from qa_cluster.gears.atomic import guarded

    async def main() -> str:
        text: str = await guarded(waits(0), block)
        return text

    assert asyncio.run(main()) == "await is not allow inside atomic block"


def test_bulk_runs_give_others_their_turn() -> None:
    async def main() -> int:
        turns = 0
        done = False

        async def other() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        def slow(x: int) -> int:
            return sum(range(20000)) + x

        watcher = asyncio.create_task(other())
        builder = GearsBuilder("ShardsIDReader").map(slow)
        steps = builder._finished_steps(False, True)
        await run_local(stream(range(100)), steps, Execution("x", None), NO_BLOCK)
        done = True
        await watcher
        return turns

    assert asyncio.run(main()) > 3


def test_keys_are_text() -> None:
    async def coroutine() -> str:
        return "k"

    assert key_text("a") == "a"
    assert key_text(1) == "1"
    with pytest.raises(GearsError, match="coroutine are not allow on extractor"):
        key_text(coroutine())


def test_stages_end_at_boundaries() -> None:
    builder = GearsBuilder("ShardsIDReader").map(str).repartition(str).filter(bool)
    stages = split_stages(builder._finished_steps(False, True))
    assert [(len(steps), boundary and boundary.kind) for steps, boundary in stages] == [
        (1, StepKind.REPARTITION),
        (1, StepKind.COLLECT),
        (0, None),
    ]


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda: GearsBuilder("NoReader"), "reader does not exists"),
        (lambda: GearsBuilder().map(NO_FUNCTION), "argument must be a function"),
        (lambda: GearsBuilder().limit(NO_NUMBER), "argument must be a number"),
        (lambda: GearsBuilder("CommandReader").run(), "do not support run"),
        (lambda: GearsBuilder("CommandReader").register(), "no trigger or hook argument was given"),
        (lambda: GearsBuilder("PythonReader").run("x"), "pyreader argument must be a function"),
        (lambda: GearsBuilder().run(7), "regex argument must be a string"),
        (lambda: GearsBuilder().register(mode="never"), "unknown mode"),
        (lambda: GearsBuilder().register(keyTypes=["strnig"]), "unknown key type: 'strnig'"),
    ],
)
def test_misuse_is_refused(misuse: Callable[[], object], message: str) -> None:
    with pytest.raises(GearsError, match=message):
        misuse()


def test_one_run_per_script() -> None:
    script = ScriptRun(Session("s", "", ""))
    token = running_script.set(script)
    try:
        GearsBuilder().run()
        with pytest.raises(GearsError, match="Can not run more then 1 executions in a single script"):
            GearsBuilder().run()
    finally:
        running_script.reset(token)
