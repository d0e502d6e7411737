"""Runs a plan on one shard: pushes records through the steps, one after the other.

A `Chain` runs the steps of one stage, up to the next boundary (`plan.py`). Boundaries move records only between shards,
so a local run is one chain. If a step fails for a record, the record is dropped, the error is stored, and the run
continues. Long runs yield to their event loop every few milliseconds.

Several records may wait for a coroutine or a future at the same time. Records continue in the order of their arrival.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from ...shard.failures import GearsError
from ..calling.sections import Aborted
from ..host.executions import OUTSIDE, Execution
from .coroutines import settled
from .futures import GearsFuture, StepSlot, step_slot
from .plan import Step, StepKind
from .sources import OneRecord
from .suspended import Gate, Suspended

TURN_SECONDS = 0.002


# the usual types of results, which are never awaitable
_PLAIN = frozenset({str, int, float, bool, type(None), dict, list, tuple, set, bytes, bytearray})
_UNKNOWN = object()
_now = time.perf_counter


# module variables, because the lookup or hash of an enumeration's member takes longer than many steps
_MAP, _FILTER, _FOREACH = StepKind.MAP, StepKind.FILTER, StepKind.FOREACH
_ACCUMULATE, _GROUP, _LIMIT = StepKind.ACCUMULATE, StepKind.GROUP, StepKind.LIMIT
_REPARTITION, _COLLECT, _FLATMAP = StepKind.REPARTITION, StepKind.COLLECT, StepKind.FLATMAP


def key_text(value: object) -> str:
    """Return the result of an extractor as text, because routing and grouping compare text.

    An *extractor* is a user function that returns the key of a record. Raise GearsError if `value` is a coroutine.
    """
    if isinstance(value, str):
        return value
    if inspect.iscoroutine(value):
        value.close()
        raise GearsError("coroutine are not allow on extractor")
    return repr(value)


class Turns:
    """Yields to the event loop after a run has used the loop for `TURN_SECONDS`.

    Attributes:
        pushed: the number of records that were pushed into the chains of the run.
    """

    __slots__ = ("_since", "pushed")

    def __init__(self) -> None:
        self._since = _now()
        self.pushed = 0

    def is_over(self, now: float) -> bool:
        """Count a pushed record; return whether the run must call `yield_now` now.

        `now` is the time on the clock of `time.perf_counter`, like all times in this module.
        """
        self.pushed += 1
        return now - self._since > TURN_SECONDS

    async def yield_now(self) -> None:
        """Let the event loop run its other callbacks; return when the run may use the loop again."""
        await asyncio.sleep(0)
        self._since = _now()


class Chain:
    """Runs the steps of one stage, and stores the state of each step.

    `first` is the number of the first step in the plan. `sink` gets the records after all steps. If the stage ends at a
    boundary (`moves`), `sink` forwards the records, and the time of `sink` counts for the boundary's step.

    Most functions return at once, and a coroutine for each record would take too much time. So `push` is an ordinary
    function that moves a record through the steps. It returns a coroutine only if a step must wait. The caller awaits
    this coroutine, or passes it to `suspend` and pushes the next record.

    The clock is read once per step: the end of a step is also the start of the next step. `clocked` is the
    last reading. If records wait at a step, its duration is from the start of the first wait to the end of the last
    wait.

    The arguments `index` and `position` of the methods are indexes of steps in this chain (from 0), not in the plan.
    The argument `since` is the time from which the duration of the next step counts.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        sink: Callable[[Any], None],
        execution: Execution,
        first: int = 0,
        *,
        moves: bool = False,
    ) -> None:
        self._steps = tuple(steps)
        self._execution = execution
        self._calls = tuple((s.kind, self._call_of(i, s), first + i) for i, s in enumerate(self._steps))
        self._state: list[Any] = [
            {} if s.kind is _GROUP else 0 if s.kind is _LIMIT else _UNKNOWN if s.kind is _ACCUMULATE else None
            for s in self._steps
        ]
        # for the index of each step with waiting records: the gate of its last waiting record
        self._gates: dict[int, Gate] = {}
        # for the index of each step with waiting records: their number, and the start of the first wait
        self._waiting: dict[int, tuple[int, float]] = {}
        self._sink = sink
        self._boundary = first + len(self._steps) if moves else None
        self.suspended = Suspended(execution)
        self.clocked = _now()

    @property
    def waits(self) -> bool:
        """Whether records wait at a step for a coroutine, a future, or an earlier record."""
        return bool(self._waiting)

    def push(self, record: Any, index: int = 0, since: float | None = None) -> Coroutine[Any, Any, None] | None:
        """Push a record through the steps of this chain, starting at the step `index`.

        If the result is a coroutine, the caller must run it, because the record waits. If a step fails, store the error
        in the execution. If `since` is None, the duration of the first step counts from now.
        """
        try:
            rest = self._advance(record, index, _now() if since is None else since)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # also SystemExit: a function must not end the worker
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

    async def _alone(self, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        except Aborted:
            self.suspended.cancel()  # now, so that no later record continues with its step after the abort
            raise
        except asyncio.CancelledError:
            if self.suspended.ending:
                raise
            # The run continues, because only the awaited coroutine or future of the function was cancelled.
            self._execution.fail(GearsError("a future or coroutine that a function awaited was cancelled"))

    async def suspend(self, rest: Coroutine[Any, Any, None]) -> None:
        """In the background, run the coroutine that `push` has returned.

        Return when the next record may be pushed, because fewer records wait than the limit (`Suspended.full`).
        """
        self.suspended.add(self._alone(rest))
        await self.suspended.capacity()

    async def finish(self) -> None:
        """After the last record, push the accumulated state of each step to the following steps.

        Return when no record waits any more.
        """
        for index, step in enumerate(self._steps):
            if step.kind is not _ACCUMULATE and step.kind is not _GROUP:
                continue
            await self.suspended.drain()
            state, self._state[index] = self._state[index], None
            if step.kind is _GROUP:
                reduced = [{"key": key, "value": value} for key, value in state.items() if value is not _UNKNOWN]
            else:
                reduced = [] if state is _UNKNOWN else [state]
            for record in reduced:
                rest = self.push(record, index + 1)
                if rest is not None:
                    await self.suspend(rest)
        await self.suspended.drain()

    async def end(self) -> None:
        """Cancel the records that still wait after an early end of the run, and wait for the end of their tasks."""
        await self.suspended.end()

    def _advance(
        self, record: Any, index: int, since: float, value: Any = _UNKNOWN
    ) -> Coroutine[Any, Any, None] | None:
        """Push a record through the steps, starting at the step `index`; return a coroutine if a step must wait.

        If a step fails, raise its error. `value` is the result of the step `index` if this step has already run for the
        record.
        """
        execution, seconds, gates = self._execution, self._execution.step_seconds, self._gates
        held = value is not _UNKNOWN
        for position in range(index, len(self._calls)):
            kind, call, place = self._calls[position]
            if call is None:
                continue
            if value is _UNKNOWN:
                if kind is _ACCUMULATE or kind is _GROUP:
                    return self._reduce(record, position, since)
                execution.step_future = None
                try:
                    value = call(record)
                except BaseException:
                    self._end_step(position, since)
                    raise
                if type(value) not in _PLAIN and isinstance(value, Awaitable):
                    execution.step_future = OUTSIDE
                    self.clocked = since
                    waits = self._wait(record, position, value, self._queue(position, since))
                    return self._future(waits) if isinstance(value, GearsFuture) else waits
                execution.step_future = OUTSIDE
                now = _now()
                seconds[place] += now - since
                since = now
                if gates and position in gates:
                    self.clocked = since
                    return self._hold(record, position, value, self._queue(position, since))
            if kind is _MAP:
                record = value
            elif kind is _FILTER or kind is _LIMIT:
                if not value:
                    self.clocked = since
                    return None
            elif kind is _FLATMAP:
                self.clocked = since
                return self._spread(value, position, held=held)
            value, held = _UNKNOWN, False
        self._leave(record, since)
        return None

    def _leave(self, record: Any, since: float) -> None:
        self.clocked = since
        self._sink(record)
        if self._boundary is not None:
            self.clocked = _now()
            self._execution.step_seconds[self._boundary] += self.clocked - since

    # ---- Steps that wait ----

    def _future(self, waits: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Return a coroutine that runs `waits` and meanwhile counts its record as waiting for a future."""
        self.suspended.futures += 1
        return self._counted(waits)

    async def _counted(self, waits: Coroutine[Any, Any, None]) -> None:
        try:
            await waits
        finally:
            self.suspended.futures -= 1

    def _queue(self, position: int, since: float) -> Gate:
        """Count one more waiting record of a step; return its gate, behind the gates of the other waiting records.

        `since` is the start of the wait.
        """
        gate = self._gates[position] = Gate(self._gates.get(position))
        count, began = self._waiting.get(position, (0, since))
        self._waiting[position] = (count + 1, began)
        return gate

    def _pass(self, position: int, gate: Gate) -> None:
        """Open the gate of a record, so that the records behind this record can pass the step."""
        gate.open()
        if self._gates.get(position) is gate and gate.passed.done():
            del self._gates[position]

    def _end_waiting(self, position: int) -> None:
        count, began = self._waiting.pop(position)
        self.clocked = _now()
        if count > 1:
            self._waiting[position] = (count - 1, began)
        else:
            self._execution.step_seconds[self._calls[position][2]] += self.clocked - began

    async def _value_of(self, awaited: Any) -> Any:
        """Await the coroutine or future that a step has returned; return its result or raise its error."""
        slot = StepSlot()
        token = step_slot.set(slot)
        try:
            if inspect.iscoroutine(awaited):
                awaited = await settled(awaited)
            if isinstance(awaited, GearsFuture):
                suspended = awaited.suspended()
                # This reference must not keep an unreachable future alive: when the future is freed, its __del__ fails
                # the step.
                del awaited
                return await settled(suspended)
            return await settled(awaited) if isinstance(awaited, Awaitable) else awaited
        finally:
            slot.step_future = OUTSIDE
            step_slot.reset(token)

    async def _wait(self, record: Any, position: int, value: Any, gate: Gate) -> None:
        """Await `value`, the awaitable result of a step, and push its result to the next steps.

        The result is pushed after the earlier records have passed the step. `gate` is the gate of this record.
        """
        try:
            waiting = self._value_of(value)
            del value  # see _value_of
            try:
                found = await waiting
            finally:
                self._end_waiting(position)
            rest = await self._behind(record, position, found, gate)
        finally:
            self._pass(position, gate)
        if rest is not None:
            await rest

    async def _hold(self, record: Any, position: int, value: Any, gate: Gate) -> None:
        """Push `value`, the result of a step, to the next steps after the earlier records have passed the step.

        `gate` is the gate of this record.
        """
        self._end_waiting(position)
        try:
            rest = await self._behind(record, position, value, gate)
        finally:
            self._pass(position, gate)
        if rest is not None:
            await rest

    async def _behind(self, record: Any, position: int, value: Any, gate: Gate) -> Coroutine[Any, Any, None] | None:
        """Wait until the earlier records have passed the step, and push the result `value` to the next steps.

        Return a coroutine if one of the next steps must wait.
        """
        await gate.turn()
        rest = self._advance(record, position, _now(), value)
        if rest is None or self._calls[position][0] is not _FLATMAP:
            return rest
        await rest  # the next records continue after all items of this record
        return None

    # ---- Steps that reduce ----

    def _reduce(self, record: Any, position: int, since: float) -> Coroutine[Any, Any, None] | None:
        """Add a record to the state of an ACCUMULATE or GROUP step. Return a coroutine if the record must wait.

        A step adds one record at a time, and later records wait, including records of other groups. So, as in
        RedisGears, the functions of all groups may share a global without a lock. If a function fails, raise its error.
        """
        key = ""
        try:
            if self._calls[position][0] is _GROUP:
                self._execution.step_future = OUTSIDE  # an extractor must not return a future
                key = key_text(self._steps[position].key(record))  # type: ignore[misc]
            if self._gates and position in self._gates:
                self.clocked = since
                return self._reduce_later(record, position, key, self._queue(position, since))
            self._execution.step_future = None
            value = self._reduced(record, position, key)
        except BaseException:
            self._end_step(position, since)
            raise
        if type(value) not in _PLAIN and isinstance(value, Awaitable):
            self._execution.step_future = OUTSIDE
            self.clocked = since
            return self._reduce_wait(position, key, value, self._queue(position, since))
        self._store(position, key, value)
        self._end_step(position, since)
        return None

    def _reduced(self, record: Any, position: int, key: str) -> Any:
        kind, call, _ = self._calls[position]
        state = self._state[position]
        before = state.setdefault(key, _UNKNOWN) if kind is _GROUP else state
        before = None if before is _UNKNOWN else before
        return call(key, before, record) if kind is _GROUP else call(before, record)  # type: ignore[misc]

    def _store(self, position: int, key: str, value: Any) -> None:
        if self._calls[position][0] is _GROUP:
            self._state[position][key] = value
        else:
            self._state[position] = value

    async def _reduce_wait(self, position: int, key: str, value: Any, gate: Gate) -> None:
        try:
            waiting = self._value_of(value)
            del value  # see _value_of
            self._store(position, key, await waiting)
        finally:
            self._end_waiting(position)
            self._pass(position, gate)

    async def _reduce_later(self, record: Any, position: int, key: str, gate: Gate) -> None:
        try:
            await gate.turn()
            self._execution.step_future = None
            try:
                value = self._reduced(record, position, key)
            finally:
                self._execution.step_future = OUTSIDE
            if type(value) not in _PLAIN and isinstance(value, Awaitable):
                waiting = self._value_of(value)
                del value
                value = await waiting
            self._store(position, key, value)
        finally:
            self._end_waiting(position)
            self._pass(position, gate)

    def _end_step(self, position: int, since: float) -> None:
        self._execution.step_future = OUTSIDE
        self.clocked = _now()
        self._execution.step_seconds[self._calls[position][2]] += self.clocked - since

    # ---- Items of a flatmap ----

    def _spread(self, records: Any, position: int, *, held: bool) -> Coroutine[Any, Any, None] | None:
        """Push the items in the result of a FLATMAP step to the next steps; return a coroutine if the record must wait.

        If `records` is neither a list, tuple or set nor an iterator, push it as one item. `held` says that the record
        with this result already has a gate at the step, and that no earlier record waits there.
        """
        if not isinstance(records, (list, tuple, set, frozenset)) and not hasattr(records, "__next__"):
            return self._advance(records, position + 1, self.clocked)
        items = iter(records)
        for item in items:
            rest = self.push(item, position + 1)
            if rest is None:
                continue
            task = self.suspended.add(self._alone(rest))
            if self.suspended.full:
                gate = None if held else self._queue(position, self.clocked)
                return self._spread_on(task, items, position, gate)
        return None

    async def _spread_on(
        self, task: asyncio.Task[None], items: Iterator[Any], position: int, gate: Gate | None
    ) -> None:
        """Push the remaining items of a FLATMAP step's result while earlier items finish.

        The first of these items is pushed when `task`, the task of the previous item, has ended. `gate` is the gate of
        the record with this result; None means that the caller opens the gate.
        """
        try:
            # This does not call `Suspended.capacity`, because this record already counts as a waiting record. If all
            # waiting records waited for capacity, none of them would end.
            await asyncio.wait({task})
            for item in items:
                rest = self.push(item, position + 1)
                if rest is not None:
                    task = self.suspended.add(self._alone(rest))
                    if self.suspended.full:
                        await asyncio.wait({task})
        finally:
            if gate is not None:
                self._end_waiting(position)
                self._pass(position, gate)

    def _within_limit(self, position: int) -> bool:
        step = self._steps[position]
        self._state[position] += 1
        return bool(step.start < self._state[position] <= step.start + step.length)

    def _call_of(self, position: int, step: Step) -> Callable[..., Any] | None:
        """Return the function that is called for each record of a step.

        Return None for a COLLECT and for a REPARTITION without an extractor. For the other kinds, raise GearsError if
        the function is missing.
        """
        kind, function, key = step.kind, step.function, step.key
        if kind is _LIMIT:
            return lambda _: self._within_limit(position)
        if kind is _COLLECT or (kind is _REPARTITION and key is None):
            return None
        if kind is _REPARTITION:

            def extract(record: Any) -> str:
                # On one shard, the record does not move, but the extractor may have effects, or may refuse the record.
                self._execution.step_future = OUTSIDE  # an extractor must not return a future
                return key_text(key(record))  # type: ignore[misc]

            return extract
        if function is None or (kind is _GROUP and key is None):
            raise GearsError(f"step {kind.value} has no function")
        return function


async def run_local(records: AsyncIterable[Any], steps: Sequence[Step], execution: Execution) -> None:
    """Run all steps of a plan on this shard, with `records` as the input. Store results and errors in the execution."""
    execution.begin([step.outline for step in steps])
    chain = Chain(steps, execution.results.append, execution)
    try:
        await feed(records, chain, execution, Turns())
        await chain.finish()
    finally:
        await chain.end()


async def feed(records: AsyncIterable[Any], chain: Chain, execution: Execution, turns: Turns) -> None:
    """Push the records of a source into a chain. Store an error of the source in the execution.

    The function returns when the source has ended. Some records may then still wait at a step (`Chain.finish`).
    """
    if isinstance(records, OneRecord):
        turns.is_over(_now())
        rest = chain.push(records.record)
        if rest is not None:
            await rest
        return
    waiting_since = _now()
    try:
        async for record in records:
            now = _now()
            execution.read_seconds += now - waiting_since
            rest = chain.push(record, 0, now)
            waiting_since = chain.clocked
            if rest is not None:
                await chain.suspend(rest)
                waiting_since = _now()
            if turns.is_over(waiting_since):
                await turns.yield_now()
                waiting_since = _now()
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        execution.fail(error)
