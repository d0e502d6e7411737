"""`GearsBuilder`: scripts build a pipeline in steps, and then run or register it."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, Self

from ...shard.failures import GearsError
from ..calling.threads import FunctionPool
from ..host.executions import Execution, current
from ..registrations.script_source import running_script
from ..registrations.sessions import MODES, RIGHTS, Registration, session_of
from ..runs.plan import ExecutionPlan, Step, StepKind
from .runtime import Runtime, current_runtime
from .source_options import SOURCE_NAMES, checked_function, registered_source, run_source

NO_SYNC = (
    "mode 'sync' is left out: use mode='async_local', with commands=['get'] and eventTypes=['keymiss'] if a client "
    "waits for the function"
)


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise GearsError("argument must be a number")
    return value


def _identity(value: Any) -> Any:
    return value


def _append(records: list[Any] | None, record: Any) -> list[Any]:
    records = records if records is not None else []
    records.append(record)
    return records


def _add_to_set(records: set[Any], record: Any) -> set[Any]:
    records.add(record)
    return records


def _checks_arity(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method, so that a call with a wrong number of arguments raises GearsError with RedisGears' text."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(*arguments: Any, **named: Any) -> Any:
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            told = f"wrong number of args: wrong number of arguments for {method.__name__}: {error}"
            raise GearsError(told) from None
        return method(*arguments, **named)

    return checked


def _with_checked_arity(builder: type[GearsBuilder]) -> type[GearsBuilder]:
    for name, method in list(vars(builder).items()):
        if inspect.isfunction(method) and (not name.startswith("_") or name == "__init__"):
            setattr(builder, name, _checks_arity(method))
    return builder


@_with_checked_arity
class GearsBuilder:
    """A pipeline under construction. Every operation adds steps, and returns the builder itself.

    `reader` is the name of the reader (`SOURCE_NAMES`). `defaultArg` is the argument of the reader, which `run` and
    `register` can override. `desc` describes the pipeline.
    >>> GearsBuilder("KeysReader").map(lambda record: record["key"]).run("sentence:*")  # doctest: +SKIP
    """

    def __init__(self, reader: str = "KeysReader", defaultArg: Any = "*", desc: str | None = None) -> None:
        if reader not in SOURCE_NAMES:
            raise GearsError(f"reader does not exists: {reader!r}")
        self._source_name = reader
        self._default = defaultArg
        self._description = desc or ""
        self._steps: list[Step] = []

    def _add(self, kind: StepKind, function: Any = None, **options: Any) -> Self:
        self._steps.append(Step(kind, checked_function(function) if function is not None else None, **options))
        return self

    def map(self, f: Callable[[Any], Any]) -> Self:
        """Replace each record with `f(record)`."""
        return self._add(StepKind.MAP, checked_function(f))

    def filter(self, f: Callable[[Any], Any]) -> Self:
        """Keep each record if `f(record)` is true."""
        return self._add(StepKind.FILTER, checked_function(f))

    def flatmap(self, f: Callable[[Any], Any]) -> Self:
        """Replace each record with the items of the list `f(record)`."""
        return self._add(StepKind.FLATMAP, checked_function(f))

    def foreach(self, f: Callable[[Any], Any]) -> Self:
        """Call `f(record)` and keep the record."""
        return self._add(StepKind.FOREACH, checked_function(f))

    def accumulate(self, f: Callable[[Any, Any], Any]) -> Self:
        """Reduce the records of each shard to one record with `f(accumulator, record)`. The accumulator starts with
        None.
        """
        return self._add(StepKind.ACCUMULATE, checked_function(f))

    def limit(self, length: int, start: int = 0) -> Self:
        """Skip the first `start` records and keep the next `length` records, over all shards."""
        length, start = _number(length), _number(start)
        self._add(StepKind.LIMIT, length=start + length)
        self.collect()
        return self._add(StepKind.LIMIT, start=start, length=length)

    def collect(self) -> Self:
        """Move all records to the shard where the run started."""
        return self._add(StepKind.COLLECT)

    def repartition(self, f: Callable[[Any], Any]) -> Self:
        """Move each record to the shard that owns the slot of the key `f(record)`."""
        return self._add(StepKind.REPARTITION, key=checked_function(f))

    def localgroupby(self, extractor: Callable[[Any], Any], reducer: Callable[[Any, Any, Any], Any]) -> Self:
        """Reduce the records of each key on each shard with `reducer(key, accumulator, record)`.

        `extractor(record)` is the key. The accumulator starts with None. For each key, the result is a record
        ``{"key": key, "value": accumulator}``.
        """
        return self._add(StepKind.GROUP, checked_function(reducer), key=checked_function(extractor))

    def groupby(self, extractor: Callable[[Any], Any], reducer: Callable[[Any, Any, Any], Any]) -> Self:
        """Move all records of a key to one shard, and then reduce the records like `localgroupby`."""
        return self.repartition(extractor).localgroupby(extractor, reducer)

    def batchgroupby(self, extractor: Callable[[Any], Any], reducer: Callable[[Any, list[Any]], Any]) -> Self:
        """Replace all records of each key with one record ``{"key": key, "value": reducer(key, records)}``.

        `extractor(record)` is the key. `records` is the list of the key's records over all shards. The reducer must not
        be a coroutine function.
        """
        reducer = checked_function(reducer)
        if asyncio.iscoroutinefunction(reducer):
            raise GearsError("coroutine are not allow on reduce")

        def reduce(group: dict[str, Any]) -> dict[str, Any]:
            value = reducer(group["key"], group["value"])
            if asyncio.iscoroutine(value):
                value.close()
                raise GearsError("coroutine are not allow on reduce")
            return {"key": group["key"], "value": value}

        return self.groupby(extractor, lambda _key, records, record: _append(records, record)).map(reduce)

    def aggregate(self, zero: Any, seqOp: Callable[[Any, Any], Any], combOp: Callable[[Any, Any], Any]) -> Self:
        """Reduce the records of each shard with `seqOp(accumulator, record)`, and then the results of all shards with
        `combOp(accumulator, result)`.

        Both accumulators start with a copy of `zero`. A copy of `zero` also replaces a later accumulator that is false,
        such as 0 or an empty list.
        """
        seq, comb = checked_function(seqOp), checked_function(combOp)
        self.accumulate(lambda acc, record: seq(acc or copy.deepcopy(zero), record))
        self.collect()
        return self.accumulate(lambda acc, record: comb(acc or copy.deepcopy(zero), record))

    def aggregateby(
        self,
        extractor: Callable[[Any], Any],
        zero: Any,
        seqOp: Callable[[Any, Any, Any], Any],
        combOp: Callable[[Any, Any, Any], Any],
    ) -> Self:
        """Like `aggregate`, but for the records of each key. The first argument of `seqOp` and `combOp` is the key.

        `extractor(record)` is the key. For each key, the result is a record ``{"key": key, "value": accumulator}``.
        """
        seq, comb = checked_function(seqOp), checked_function(combOp)
        self.localgroupby(extractor, lambda key, acc, record: seq(key, acc or copy.deepcopy(zero), record))
        return self.groupby(
            lambda group: group["key"], lambda key, acc, group: comb(key, acc or copy.deepcopy(zero), group["value"])
        )

    def count(self) -> Self:
        """Replace all records with one record, the number of the records over all shards."""
        return self.aggregate(0, lambda acc, _record: acc + 1, lambda acc, part: acc + part)

    def countby(self, extractor: Callable[[Any], Any] = _identity) -> Self:
        """Replace the records of each key with one record ``{"key": key, "value": number of the records}``.

        `extractor(record)` is the key. By default, the key is the record itself.
        """
        return self.aggregateby(extractor, 0, lambda _key, acc, _record: acc + 1, lambda _key, acc, part: acc + part)

    def sort(self, reverse: bool = True) -> Self:
        """Sort all records, on the shard where the run started.

        As in RedisGears, the order is ascending unless `reverse` is False.
        """
        self.aggregate([], _append, lambda acc, part: acc + part)
        return self.flatmap(lambda records: sorted(records, reverse=not reverse))

    def distinct(self) -> Self:
        """Remove duplicate records over all shards. The remaining records have no particular order."""
        self.aggregate(set(), _add_to_set, lambda acc, part: acc | part)
        return self.flatmap(list)

    def avg(self, extractor: Callable[[Any], Any] = _identity) -> Self:
        """Replace all records with the mean of the numbers `extractor(record)`. By default, the records are numbers."""
        value = checked_function(extractor)
        self.aggregate(
            (0, 0),
            lambda acc, record: (acc[0] + value(record), acc[1] + 1),
            lambda acc, part: (acc[0] + part[0], acc[1] + part[1]),
        )
        return self.map(lambda total: total[0] / total[1])

    def run(
        self,
        arg: Any = None,
        convertToStr: bool = True,
        collect: bool = True,
        mode: str = "async",
        **options: Any,
    ) -> asyncio.Future[list[list[Any]]] | None:
        """Run the pipeline. In a function, start the run at once and return a future of [results, errors].

        In a script, return None. The run starts after the end of the script.

        Args:
            arg: the argument of the reader, such as a pattern of keys; None: the builder's `defaultArg`.
            convertToStr: whether to convert each resulting record to a string.
            collect: whether to move the results of all shards to the shard where the run started.
            mode: ``async`` runs on all shards, and ``async_local`` only on this shard.
            options: the other options of the reader.
        """
        if mode not in ("async", "async_local"):
            raise GearsError(f"unknown mode of run: {mode!r}, must be async or async_local")
        source = run_source(self._source_name, self._default if arg is None else arg, options)
        plan = ExecutionPlan(source, self._finished_steps(convertToStr, collect), mode, self._description)
        script = running_script()
        if script is not None:
            if not script.restoring:
                script.request_run(plan)
            return None
        caller = current.get()
        runtime = current_runtime()
        user = caller.user if caller is not None else ""
        if asyncio._get_running_loop() is None:
            raise GearsError("run can not be called in a thread that a function has started: use runCoroutine")
        pool = caller.pool if caller is not None else FunctionPool.BACKGROUND
        execution = Execution(runtime.host.ids.next(), caller.session if caller else None, user=user, pool=pool)
        return runtime.host.await_on_loop(_results(runtime, plan, execution))

    def register(
        self,
        arg: Any = None,
        convertToStr: bool = True,
        collect: bool = True,
        mode: str = "async",
        onRegistered: Callable[[], Any] | None = None,
        **options: Any,
    ) -> str:
        """Run the pipeline at each event of the reader; return the registration's id.

        The arguments are as in `run`. `onRegistered` is called on each shard when the registration becomes active.
        Functions of a `CommandReader` have the rights of the client that triggers them (``rights="caller"``, the
        default), or the worker's rights (``rights="owner"``). All other functions have the worker's rights.
        """
        if mode == "sync":
            raise GearsError(NO_SYNC)
        if mode not in MODES:
            raise GearsError(f"unknown mode of register: {mode!r}, must be one of {', '.join(MODES)}")
        if options.get("rights", "caller") not in RIGHTS:
            raise GearsError(f"unknown rights: {options['rights']!r}, must be one of {', '.join(RIGHTS)}")
        if onRegistered is not None:
            checked_function(onRegistered)
        source = registered_source(self._source_name, self._default if arg is None else arg, options)
        runtime = current_runtime()
        steps = self._finished_steps(convertToStr, collect and mode == "async")
        rights = options.get("rights", "caller") if self._source_name == "CommandReader" else "owner"
        registration = Registration(
            runtime.host.ids.next_dated(), source, steps, mode, self._description, onRegistered, rights
        )
        script = running_script()
        if script is not None:
            script.session.registrations[registration.id] = registration
            return registration.id
        session = session_of(current.get())
        if session is None:
            raise GearsError("register can only be called by a script or a function of a session")
        runtime.host.on_loop(runtime.registrar.extend, session, registration)
        return registration.id

    def _finished_steps(self, convert: bool, collect: bool) -> tuple[Step, ...]:
        steps = list(self._steps)
        if convert:
            steps.append(Step(StepKind.MAP, str))
        if collect:
            steps.append(Step(StepKind.COLLECT))
        return tuple(steps)


async def _results(runtime: Runtime, plan: ExecutionPlan, execution: Execution) -> list[list[Any]]:
    runtime.history.add(execution)
    await runtime.distributor.start(plan, execution)
    return [execution.results, execution.errors]
