"""Tracing creates no objects while it is off. While it is on, steps are nested. A shard's times fit into its call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qa_cluster.tracing import (
    MAX_RUNS,
    Fact,
    ShardRun,
    ShardTimes,
    current,
    is_traceparent,
    recording,
    step,
)

NAME = f"00-{'ab' * 16}-{'cd' * 8}-01"


@dataclass
class Recorded:
    """A step that records what it gets."""

    name: str = "request"
    parts: list[Recorded] = field(default_factory=list)
    facts: dict[str, Fact] = field(default_factory=dict)
    ended: int = 0
    error: BaseException | None = None
    sent_at: float | None = None

    @property
    def traceparent(self) -> str:
        return NAME

    def begin(self, name: str, facts: Mapping[str, Fact], *, is_call: bool) -> Recorded:
        self.parts.append(Recorded(name, facts=dict(facts)))
        return self.parts[-1]

    def put(self, name: str, begun: float, ended: float, facts: Mapping[str, Fact]) -> None:
        self.parts.append(Recorded(name, facts=dict(facts), ended=1))

    def note(self, facts: Mapping[str, Fact]) -> None:
        self.facts |= facts

    def end(self, error: BaseException | None) -> None:
        self.ended += 1
        self.error = error


def test_without_a_recorder_nothing_is_made() -> None:
    blocks = [step("a"), step("b", {"x": 1}, is_call=True)]
    assert blocks[0] is blocks[1]
    with blocks[0] as found, blocks[1] as inner:
        assert (found, inner, current()) == (None, None, None)


async def test_a_step_is_part_of_the_step_that_starts_it_also_in_other_tasks() -> None:
    async def work(name: str) -> None:
        with step(name):
            await asyncio.sleep(0)
            with step(f"{name}.inner", {"n": 1}):
                await asyncio.sleep(0)

    top = Recorded()
    with recording(top):
        with step("wave"):
            await asyncio.gather(work("a"), work("b"))
        assert current() is top
    assert current() is None
    (wave,) = top.parts
    assert sorted(part.name for part in wave.parts) == ["a", "b"]
    assert [[(inner.name, inner.facts) for inner in part.parts] for part in wave.parts] == [
        [(f"{part.name}.inner", {"n": 1})] for part in wave.parts
    ]
    assert {part.ended for part in (wave, *wave.parts)} == {1}


def test_a_step_gets_the_error_that_ended_it() -> None:
    top = Recorded()
    with recording(top), pytest.raises(ValueError, match="no"), step("a"):
        raise ValueError("no")
    assert (top.parts[0].ended, str(top.parts[0].error)) == (1, "no")


@pytest.mark.parametrize("value", [NAME, NAME.replace("-01", "-00")])
def test_a_name_of_a_step(value: str) -> None:
    assert is_traceparent(value)


@pytest.mark.parametrize("value", ["", "a:{1}:0", NAME.upper(), NAME[:-1], f"{NAME}\n", NAME.encode(), None])
def test_invalid_names_of_steps(value: object) -> None:
    assert not is_traceparent(value)


RUNS = (ShardRun(100, 900, 1900, 2, 5, 8, 64, 300), ShardRun(50, 60, 80, 1, 1, 1, 32, 20))
TIMES = ShardTimes(NAME, 4000, 2000, [("answers", 0, 40)], RUNS)


def test_times_on_the_wire() -> None:
    sent = orjson.dumps(TIMES.to_json())
    found = ShardTimes.parse(sent, NAME)
    assert found is not None
    assert (found.waited, found.took, found.steps) == (4000, 2000, [("answers", 0, 40)])
    assert sorted(found.runs, key=lambda run: -run.queued) == list(RUNS)
    assert ShardTimes.parse(sent, NAME.replace("cd", "ce")) is None, "the times of another call"


WRONG: tuple[dict[str, object], ...] = ({"runs": [[1]]}, {"steps": [["a"]]}, {"waited_us": "x"}, {"runs": None})


@pytest.mark.parametrize(
    "value",
    [
        *(b"-ERR no such sentence", b"", None, [], b"[]", b"{}", {"traceparent": NAME}),
        *(TIMES.to_json() | wrong for wrong in WRONG),
    ],
)
def test_invalid_times(value: object) -> None:
    assert ShardTimes.parse(value, NAME) is None


def test_only_the_longest_runs_are_reported() -> None:
    runs = [ShardRun(0, number, 2 * number, 1, 1, 1, 16, 9) for number in range(100)]
    sent = ShardTimes(NAME, 0, 0, [], runs).to_json()["runs"]
    assert [run[1] for run in sent] == list(range(100 - MAX_RUNS, 100))


def test_the_shards_times_are_in_the_middle_of_the_call() -> None:
    """The shard reports 6 ms of a call of 10 ms, so 2 ms come before its times and 2 ms after."""
    parts = {(part.name, part.facts.get("qa.batch.items", 0)): part for part in TIMES.parts(100.0, 100.010)}
    assert (parts["queue", 0].begun, parts["queue", 0].ended) == pytest.approx((100.002, 100.006))
    assert (parts["answers", 0].begun, parts["answers", 0].ended) == pytest.approx((100.006, 100.00604))
    assert (parts["model", 5].begun, parts["model", 5].ended) == pytest.approx((100.0069, 100.0079))
    assert parts["model", 5].facts["qa.batch.own_items"] == 2


@given(
    waited=st.integers(0, 10**9),
    took=st.integers(0, 10**9),
    numbers=st.lists(st.integers(-(10**9), 10**10), min_size=3, max_size=3),
    lasted=st.floats(0, 10),
)
def test_parts_never_leave_the_call(waited: int, took: int, numbers: list[int], lasted: float) -> None:
    """The parts stay within the call for any report, because a shard's clock or arithmetic may be wrong."""
    run = ShardRun(numbers[0], numbers[1], numbers[2], 1, 1, 1, 1, 1)
    times = ShardTimes(NAME, waited, took, [("x", numbers[0], numbers[1])], [run])
    for part in times.parts(50.0, 50.0 + lasted):
        assert 50.0 <= part.begun <= part.ended <= 50.0 + lasted
