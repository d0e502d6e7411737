"""Runs a plan on one shard: it pushes records through its steps, one after the other.

A `Chain` runs the steps of one stage. Inside one shard a boundary does nothing, so a local run is one chain. A record
whose step raises is dropped and its error kept; the run goes on. Bulk runs yield to the event loop every few
milliseconds, so that questions are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from ..shard.atomic import AtomicBlock
from ..shard.executions import OUTSIDE, Execution
from ..shard.failures import GearsError
from .coroutines import settled
from .futures import GearsFuture
from .plan import Step, StepKind

TURN_SECONDS = 0.002


# the types that most functions return; they are never awaitable
_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple, set, bytes, bytearray})
_UNKNOWN = object()
_now = time.perf_counter


# module variables, because looking up or hashing a member of an enumeration takes longer than many steps
_MAP, _FILTER, _FOREACH = StepKind.MAP, StepKind.FILTER, StepKind.FOREACH
_ACCUMULATE, _GROUP, _LIMIT = StepKind.ACCUMULATE, StepKind.GROUP, StepKind.LIMIT
_REPARTITION, _COLLECT = StepKind.REPARTITION, StepKind.COLLECT


def key_text(value: object) -> str:
    """An extractor's result as text: routing and grouping compare text."""
    if isinstance(value, str):
        return value
    if inspect.iscoroutine(value):
        value.close()
        raise GearsError("coroutine are not allow on extractor")
    return repr(value)


class Turns:
    """Yields to the event loop when a run has kept it for a while."""

    __slots__ = ("_since", "pushed")

    def __init__(self) -> None:
        self._since = _now()
        self.pushed = 0

    def over(self, now: float) -> bool:
        """Count a pushed record; return whether the run must yield now (`give`)."""
        self.pushed += 1
        return now - self._since > TURN_SECONDS

    async def give(self) -> None:
        """Yield to the event loop."""
        await asyncio.sleep(0)
        self._since = _now()


class Chain:
    """The steps of one stage, with their state; `first` is the number of its first step in the plan.

    If the stage ends at a boundary (`moves`), `sink` sends the records on, and its time counts for the boundary's step.

    Most functions return at once. So that they do not cost a coroutine, records are pushed by plain calls, which return
    a coroutine only if a step has to be awaited. One record goes through the chain at a time.

    The clock is read once per step: a step lasts from the end of the one before. `clocked` is its last reading.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        sink: Callable[[Any], None],
        execution: Execution,
        atomic: AtomicBlock,
        first: int = 0,
        *,
        moves: bool = False,
    ) -> None:
        self._steps = tuple(steps)
        self._calls = tuple((s.kind, self._call_of(i, s), first + i) for i, s in enumerate(self._steps))
        self._state: list[Any] = [{} if s.kind is _GROUP else 0 if s.kind is _LIMIT else None for s in self._steps]
        self._group = ""  # the key of the record that is being grouped
        self._sink = sink
        self._boundary = first + len(self._steps) if moves else None
        self._execution = execution
        self._atomic = atomic
        self.clocked = _now()

    def push(self, record: Any, index: int = 0, since: float | None = None) -> Coroutine[Any, Any, None] | None:
        """Send a record through the steps from `index` on; a coroutine that it returns must be awaited.

        The execution keeps the error of a step that fails.
        """
        try:
            rest = self._advance(record, index, _now() if since is None else since)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # SystemExit of a function must not end the worker either
            self._execution.fail(error)
            return None
        return None if rest is None else self._with_errors_kept(rest)

    async def _with_errors_kept(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            self._execution.fail(error)

    async def finish(self) -> None:
        """Push the accumulated state of each step to the following steps: no more records come."""
        for index, step in enumerate(self._steps):
            state, self._state[index] = self._state[index], None
            if step.kind is _ACCUMULATE and state is not None:
                await _done(self.push(state, index + 1))
            elif step.kind is _GROUP:
                for key, value in state.items():
                    await _done(self.push({"key": key, "value": value}, index + 1))

    def _advance(
        self, record: Any, index: int, since: float, value: Any = _UNKNOWN
    ) -> Coroutine[Any, Any, None] | None:
        """Go through the steps from `index` on; `value` is the result of the first of them, if it has run already."""
        execution, seconds = self._execution, self._execution.step_seconds
        for position in range(index, len(self._calls)):
            kind, call, place = self._calls[position]
            if call is None:
                if kind is _LIMIT and not self._within_limit(position):
                    self.clocked = since
                    return None
                continue
            if value is _UNKNOWN:
                execution.step_future = None
                try:
                    value = call(record)
                except BaseException:
                    self._end_step(position, since)
                    raise
                if type(value) not in _PLAIN and isinstance(value, Awaitable):
                    return self._wait(record, position, since, value)
                execution.step_future = OUTSIDE
                now = _now()
                seconds[place] += now - since
                since = now
            if kind is _MAP:
                record = value
            elif kind is _FILTER:
                if not value:
                    self.clocked = since
                    return None
            elif kind is not _FOREACH:
                self.clocked = since
                return self._take(kind, position, value)
            value = _UNKNOWN
        self.clocked = since
        self._sink(record)
        if self._boundary is not None:
            self.clocked = _now()
            seconds[self._boundary] += self.clocked - since
        return None

    async def _wait(self, record: Any, position: int, since: float, value: Any) -> None:
        """Await a step's result, and go on with it."""
        try:
            if inspect.iscoroutine(value):
                value = await settled(value, self._atomic)
            if isinstance(value, GearsFuture):
                suspended = value.suspended()
                # this reference must not keep alive a future that no other code can continue: __del__ fails the step
                del value
                value = await settled(suspended, self._atomic)
            elif isinstance(value, Awaitable):
                value = await settled(value, self._atomic)
        finally:
            self._end_step(position, since)
        await _done(self._advance(record, position, self.clocked, value))

    def _end_step(self, position: int, since: float) -> None:
        self._execution.step_future = OUTSIDE
        self.clocked = _now()
        self._execution.step_seconds[self._calls[position][2]] += self.clocked - since

    def _take(self, kind: StepKind, position: int, value: Any) -> Coroutine[Any, Any, None] | None:
        """Store or spread the result of a step, by the step's kind; the record itself goes no further."""
        if kind is _ACCUMULATE:
            self._state[position] = value
        elif kind is _GROUP:
            self._state[position][self._group] = value
        else:
            return self._spread(value, position + 1)
        return None

    def _spread(self, records: Any, index: int) -> Coroutine[Any, Any, None] | None:
        if not isinstance(records, (list, tuple, set, frozenset)) and not hasattr(records, "__next__"):
            return self._advance(records, index, self.clocked)
        items = iter(records)
        for item in items:
            rest = self.push(item, index)
            if rest is not None:
                return self._spread_after(rest, items, index)
        return None

    async def _spread_after(self, rest: Coroutine[Any, Any, None], items: Iterator[Any], index: int) -> None:
        await rest
        for item in items:
            await _done(self.push(item, index))

    def _within_limit(self, position: int) -> bool:
        step = self._steps[position]
        self._state[position] += 1
        return bool(step.start < self._state[position] <= step.start + step.length)

    def _call_of(self, position: int, step: Step) -> Callable[[Any], Any] | None:
        """A function that calls the step's function with a record; None for kinds of steps without a function."""
        kind, function, key = step.kind, step.function, step.key
        if kind is _LIMIT or kind is _REPARTITION or kind is _COLLECT:
            return None
        if function is None or (kind is _GROUP and key is None):
            raise GearsError(f"step {kind.value} has no function")
        if kind is _ACCUMULATE:
            return lambda record: function(self._state[position], record)
        if kind is not _GROUP or key is None:
            return function

        def group(record: Any) -> Any:
            self._execution.step_future = OUTSIDE  # an extractor must not return a future
            name = self._group = key_text(key(record))
            self._execution.step_future = None
            return function(name, self._state[position].get(name), record)

        return group


async def _done(rest: Coroutine[Any, Any, None] | None) -> None:
    if rest is not None:
        await rest


async def run_local(
    records: AsyncIterable[Any], steps: Sequence[Step], execution: Execution, atomic: AtomicBlock
) -> None:
    """Run a whole plan on this shard; the execution gets the results and errors."""
    execution.begin([step.outline for step in steps])
    chain = Chain(steps, execution.results.append, execution, atomic)
    await feed(records, chain, execution, Turns())
    await chain.finish()


async def feed(records: AsyncIterable[Any], chain: Chain, execution: Execution, turns: Turns) -> None:
    """Push the records of a source into a chain; if the source fails, the execution keeps the error."""
    waiting_since = _now()
    try:
        async for record in records:
            now = _now()
            execution.read_seconds += now - waiting_since
            rest = chain.push(record, 0, now)
            if rest is not None:
                await rest
            waiting_since = chain.clocked
            if turns.over(waiting_since):
                await turns.give()
                waiting_since = _now()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        execution.fail(error)
