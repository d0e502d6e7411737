"""The plan of a pipeline and its execution: records are pushed through steps, one after the other.

A plan is cut into stages at its *boundaries*, the steps that move records between shards (repartition, collect); a
`Chain` runs the steps of one stage. Inside one shard a boundary does nothing, so a local run is one chain. A record
whose step raises is dropped and its error kept; the run goes on. Bulk runs give the event loop its turn every few
milliseconds, so that questions are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .atomic import AtomicBlock, guarded
from .executions import Execution
from .failures import GearsError

TURN_SECONDS = 0.002


class StepKind(enum.Enum):
    """What a step does; the value is its name in `RG.GETEXECUTION`."""

    MAP = "map"
    FILTER = "filter"
    FLATMAP = "flatmap"
    FOREACH = "foreach"
    ACCUMULATE = "accumulate"
    GROUP = "accumulatebykey"
    LIMIT = "limit"
    REPARTITION = "repartition"
    COLLECT = "collect"


_FIRST_STATES: dict[StepKind, Callable[[], Any]] = {StepKind.GROUP: dict, StepKind.LIMIT: int}
BOUNDARIES = frozenset({StepKind.REPARTITION, StepKind.COLLECT})


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `key` extracts the key of GROUP and REPARTITION; `start` and `length` are those of LIMIT."""

    kind: StepKind
    function: Callable[..., Any] | None = None
    key: Callable[[Any], Any] | None = None
    start: int = 0
    length: int = 0

    @property
    def name(self) -> str:
        """Name of the step's function."""
        return getattr(self.function or self.key, "__name__", "") if self.function or self.key else ""


def key_text(value: object) -> str:
    """The key an extractor gave, as text: routing and grouping compare text."""
    if inspect.iscoroutine(value):
        value.close()
        raise GearsError("coroutine are not allow on extractor")
    return value if isinstance(value, str) else repr(value)


def split_stages(steps: Sequence[Step]) -> list[tuple[list[Step], Step | None]]:
    """Cut a plan after each boundary: (the stage's steps, the boundary that ends it or None)."""
    stages: list[tuple[list[Step], Step | None]] = []
    stage: list[Step] = []
    for step in steps:
        if step.kind in BOUNDARIES:
            stages.append((stage, step))
            stage = []
        else:
            stage.append(step)
    stages.append((stage, None))
    return stages


class Turns:
    """Gives the event loop its turn when a run has kept it for a while."""

    __slots__ = ("_since", "pushed")

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self.pushed = 0

    async def give(self) -> None:
        """A record was pushed: let others run if this run's turn is over."""
        self.pushed += 1
        if time.perf_counter() - self._since > TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


class Chain:
    """The steps of one stage, with their state."""

    def __init__(
        self, steps: Sequence[Step], sink: Callable[[Any], None], execution: Execution, atomic: AtomicBlock
    ) -> None:
        self._steps = tuple(steps)
        self._state: list[Any] = [_FIRST_STATES.get(step.kind, lambda: None)() for step in steps]
        self._sink = sink
        self._execution = execution
        self._atomic = atomic

    async def push(self, record: Any, index: int = 0) -> None:
        """Send a record through the steps from `index` on; a failing one is told to the execution."""
        try:
            await self._push(record, index)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit of a function must not end the worker either
            self._execution.fail(error)

    async def finish(self) -> None:
        """No record follows: accumulated state goes on to the steps behind it."""
        for index, step in enumerate(self._steps):
            state = self._state[index]
            if step.kind is StepKind.ACCUMULATE and state is not None:
                await self.push(state, index + 1)
            elif step.kind is StepKind.GROUP:
                for key, value in state.items():
                    await self.push({"key": key, "value": value}, index + 1)
            self._state[index] = None

    async def _push(self, record: Any, index: int) -> None:
        for position in range(index, len(self._steps)):
            step = self._steps[position]
            match step.kind:
                case StepKind.MAP:
                    record = await self._call(step, record)
                case StepKind.FILTER:
                    if not await self._call(step, record):
                        return
                case StepKind.FOREACH:
                    await self._call(step, record)
                case StepKind.FLATMAP:
                    await self._spread(await self._call(step, record), position + 1)
                    return
                case StepKind.LIMIT:
                    self._state[position] += 1
                    if not step.start < self._state[position] <= step.start + step.length:
                        return
                case StepKind.ACCUMULATE:
                    self._state[position] = await self._call(step, self._state[position], record)
                    return
                case StepKind.GROUP:
                    await self._group(step, self._state[position], record)
                    return
                case StepKind.REPARTITION | StepKind.COLLECT:
                    continue
        self._sink(record)

    async def _spread(self, records: Any, index: int) -> None:
        if not isinstance(records, (list, tuple, set, frozenset)) and not hasattr(records, "__next__"):
            await self._push(records, index)
            return
        for item in records:
            await self.push(item, index)

    async def _group(self, step: Step, groups: dict[str, Any], record: Any) -> None:
        if step.key is None:
            raise GearsError("a grouping step has no key function")
        key = key_text(step.key(record))
        groups[key] = await self._call(step, key, groups.get(key), record)

    async def _call(self, step: Step, *arguments: Any) -> Any:
        if step.function is None:
            raise GearsError(f"step {step.kind.value} has no function")
        value = step.function(*arguments)
        if inspect.iscoroutine(value):
            return await guarded(value, self._atomic)
        return await value if isinstance(value, Awaitable) else value


async def run_local(
    records: AsyncIterable[Any], steps: Sequence[Step], execution: Execution, atomic: AtomicBlock
) -> None:
    """Run a whole plan on this shard; results and errors are left in the execution."""
    chain = Chain(steps, execution.results.append, execution, atomic)
    turns = Turns()
    await feed(records, chain, execution, turns)
    await chain.finish()


async def feed(records: AsyncIterable[Any], chain: Chain, execution: Execution, turns: Turns) -> None:
    """Push what a reader yields into a chain; a failing reader is told to the execution."""
    try:
        async for record in records:
            await chain.push(record)
            await turns.give()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        execution.fail(error)
