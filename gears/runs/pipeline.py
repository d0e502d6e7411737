"""Runs a plan on one shard: it pushes records through its steps, one after the other.

A `Chain` runs the steps of one stage. Inside one shard a boundary does nothing, so a local run is one chain. A record
whose step raises is dropped and its error kept; the run goes on. Bulk runs give the event loop its turn every few
milliseconds, so that questions are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from ..shard.atomic import AtomicBlock, guarded
from ..shard.executions import OUTSIDE, Execution
from ..shard.failures import GearsError
from .futures import GearsFuture
from .plan import Step, StepKind

TURN_SECONDS = 0.002


# what most functions return: there is nothing in it to wait for
_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple, set, bytes, bytearray})
_UNKNOWN = object()
_now = time.perf_counter


# looking up or hashing a member of an enumeration takes longer than many a step
_MAP, _FILTER, _FOREACH = StepKind.MAP, StepKind.FILTER, StepKind.FOREACH
_ACCUMULATE, _GROUP, _LIMIT = StepKind.ACCUMULATE, StepKind.GROUP, StepKind.LIMIT
_REPARTITION, _COLLECT = StepKind.REPARTITION, StepKind.COLLECT


def key_text(value: object) -> str:
    """The key an extractor gave, as text: routing and grouping compare text."""
    if isinstance(value, str):
        return value
    if inspect.iscoroutine(value):
        value.close()
        raise GearsError("coroutine are not allow on extractor")
    return repr(value)


class Turns:
    """Gives the event loop its turn when a run has kept it for a while."""

    __slots__ = ("_since", "pushed")

    def __init__(self) -> None:
        self._since = _now()
        self.pushed = 0

    def over(self, now: float) -> bool:
        """A record was pushed: whether others are to run now (`give`)."""
        self.pushed += 1
        return now - self._since > TURN_SECONDS

    async def give(self) -> None:
        """Let others run."""
        await asyncio.sleep(0)
        self._since = _now()


class Chain:
    """The steps of one stage, with their state; `first` is the number of its first step in the plan.

    Where the records move to other shards behind it, `sink` works for the boundary, the step that follows in the plan.

    Most functions return at once. So that they cost no coroutine, records are pushed by plain calls, which return one
    only where a step has to be waited for. One record goes through the chain at a time.

    The clock is read once a step: a step lasts from where the one before it ended. `clocked` is when it was read last.
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
        """Send a record through the steps from `index` on; what is returned has to be awaited.

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
        """No record follows: accumulated state goes on to the steps behind it."""
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
        """Go through the steps from `index` on; `value` is what the first of them has returned, if it has."""
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
        """Wait for what a step has returned, and go on with it."""
        try:
            if inspect.iscoroutine(value):
                value = await guarded(value, self._atomic)
            if isinstance(value, GearsFuture):
                suspended = value.suspended()
                # a future that nobody else knows can never be continued: it must be seen to be gone
                del value
                value = await suspended
            elif isinstance(value, Awaitable):
                value = await value
        finally:
            self._end_step(position, since)
        await _done(self._advance(record, position, self.clocked, value))

    def _end_step(self, position: int, since: float) -> None:
        self._execution.step_future = OUTSIDE
        self.clocked = _now()
        self._execution.step_seconds[self._calls[position][2]] += self.clocked - since

    def _take(self, kind: StepKind, position: int, value: Any) -> Coroutine[Any, Any, None] | None:
        """Do with the value of a step what its kind wants: the record goes no further."""
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
        """What calls the step's function with a record; None for a step that has no function by its nature."""
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
            self._execution.step_future = OUTSIDE  # a key cannot be waited for
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
    """Run a whole plan on this shard; results and errors are left in the execution."""
    execution.begin([step.outline for step in steps])
    chain = Chain(steps, execution.results.append, execution, atomic)
    await feed(records, chain, execution, Turns())
    await chain.finish()


async def feed(records: AsyncIterable[Any], chain: Chain, execution: Execution, turns: Turns) -> None:
    """Push what a source yields into a chain; the execution keeps the error of a source that fails."""
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
