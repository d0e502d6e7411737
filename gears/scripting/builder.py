"""`GearsBuilder`: scripts describe a pipeline step by step, then run or register it."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable
from typing import Any, Self

from ..registrations.sessions import MODES, RIGHTS, Plan, Registration, running_script
from ..runs import sources as readers
from ..runs.pipeline import Step, StepKind
from ..shard.executions import Execution, current
from ..shard.failures import GearsError
from .runtime import current_runtime

READERS = ("KeysReader", "KeysOnlyReader", "StreamReader", "PythonReader", "ShardsIDReader", "CommandReader")
FAILED_POLICIES = ("continue", "abort", "retry")
NO_HOOK = (
    "hook= is left out: to answer reads of keys that do not exist use GB('KeysReader').register(prefix=.., "
    "commands=['get'], eventTypes=['keymiss']) and override_reply; else use trigger= and RG.TRIGGER"
)
NO_SYNC = (
    "mode 'sync' is left out: use mode='async_local', with commands=['get'] and eventTypes=['keymiss'] where a client "
    "waits for the function"
)


def _function(value: object) -> Callable[..., Any]:
    if not callable(value):
        raise GearsError("argument must be a function")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise GearsError("argument must be a number")
    return value


def _whole(options: dict[str, Any], name: str, preset: int, least: int) -> int:
    value = options.get(name, preset)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise GearsError(f"{name} must be a whole number of at least {least}, got {value!r}")
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


def _names(value: Any, what: str, allowed: frozenset[str] | None = None) -> tuple[str, ...] | None:
    """A list of names of `register`, in lower case; None and an empty list both mean: all."""
    if not value:
        return None
    if isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise GearsError(f"{what} must be a list of strings, got {value!r}")
    names = tuple(item.lower() for item in value)
    unknown = [name for name in names if allowed is not None and name not in allowed]
    if unknown:
        raise GearsError(f"unknown {what}: {unknown[0]!r}, must be of {', '.join(sorted(allowed or ()))}")
    return names


class GearsBuilder:
    """A pipeline in the making; every operation returns the builder itself.

    >>> GearsBuilder("KeysReader").map(lambda record: record["key"]).run("sentence:*")  # doctest: +SKIP
    """

    def __init__(self, reader: str = "KeysReader", defaultArg: Any = "*", desc: str | None = None) -> None:
        if reader not in READERS:
            raise GearsError(f"reader does not exists: {reader!r}")
        self._reader = reader
        self._default = defaultArg
        self._description = desc or ""
        self._steps: list[Step] = []

    def _add(self, kind: StepKind, function: Any = None, **options: Any) -> Self:
        self._steps.append(Step(kind, _function(function) if function is not None else None, **options))
        return self

    def map(self, f: Callable[[Any], Any]) -> Self:
        """Replace each record by `f(record)`."""
        return self._add(StepKind.MAP, _function(f))

    def filter(self, f: Callable[[Any], Any]) -> Self:
        """Keep the records for which `f(record)` is true."""
        return self._add(StepKind.FILTER, _function(f))

    def flatmap(self, f: Callable[[Any], Any]) -> Self:
        """Replace each record by the items of the list `f(record)`."""
        return self._add(StepKind.FLATMAP, _function(f))

    def foreach(self, f: Callable[[Any], Any]) -> Self:
        """Call `f(record)` and keep the record."""
        return self._add(StepKind.FOREACH, _function(f))

    def accumulate(self, f: Callable[[Any, Any], Any]) -> Self:
        """Reduce each shard's records to one: `f(accumulator, record)`, the first accumulator being None."""
        return self._add(StepKind.ACCUMULATE, _function(f))

    def limit(self, length: int, start: int = 0) -> Self:
        """Keep `length` records after the first `start`, over all shards."""
        length, start = _number(length), _number(start)
        self._add(StepKind.LIMIT, length=start + length)
        self.collect()
        return self._add(StepKind.LIMIT, start=start, length=length)

    def collect(self) -> Self:
        """Move all records to the shard where the run started."""
        return self._add(StepKind.COLLECT)

    def repartition(self, f: Callable[[Any], Any]) -> Self:
        """Move each record to the shard that owns the slot of the key `f(record)`."""
        return self._add(StepKind.REPARTITION, key=_function(f))

    def localgroupby(self, extractor: Callable[[Any], Any], reducer: Callable[[Any, Any, Any], Any]) -> Self:
        """Reduce the records of each key on each shard: `reducer(key, accumulator, record)`."""
        return self._add(StepKind.GROUP, _function(reducer), key=_function(extractor))

    def groupby(self, extractor: Callable[[Any], Any], reducer: Callable[[Any, Any, Any], Any]) -> Self:
        """Reduce the records of each key over all shards."""
        return self.repartition(extractor).localgroupby(extractor, reducer)

    def batchgroupby(self, extractor: Callable[[Any], Any], reducer: Callable[[Any, list[Any]], Any]) -> Self:
        """Reduce the list of all records of each key: `reducer(key, records)`."""
        reducer = _function(reducer)
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
        """Reduce on each shard with `seqOp(accumulator, record)`, then over the shards with `combOp`."""
        seq, comb = _function(seqOp), _function(combOp)
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
        """Like `aggregate` for the records of each key; both functions get the key first."""
        seq, comb = _function(seqOp), _function(combOp)
        self.localgroupby(extractor, lambda key, acc, record: seq(key, acc or copy.deepcopy(zero), record))
        return self.groupby(
            lambda group: group["key"], lambda key, acc, group: comb(key, acc or copy.deepcopy(zero), group["value"])
        )

    def count(self) -> Self:
        """The number of records."""
        return self.aggregate(0, lambda acc, _record: acc + 1, lambda acc, part: acc + part)

    def countby(self, extractor: Callable[[Any], Any] = _identity) -> Self:
        """The number of records of each key."""
        return self.aggregateby(extractor, 0, lambda _key, acc, _record: acc + 1, lambda _key, acc, part: acc + part)

    def sort(self, reverse: bool = True) -> Self:
        """All records in order, on the shard where the run started."""
        self.aggregate([], _append, lambda acc, part: acc + part)
        return self.flatmap(lambda records: sorted(records, reverse=reverse))

    def distinct(self) -> Self:
        """Each different record once."""
        self.aggregate(set(), _add_to_set, lambda acc, part: acc | part)
        return self.flatmap(list)

    def avg(self, extractor: Callable[[Any], Any] = _identity) -> Self:
        """The mean of `extractor(record)`."""
        value = _function(extractor)
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
        """Run the pipeline: of a script once it has ended; in a function at once, for a future of [results, errors]."""
        if mode not in ("async", "async_local"):
            raise GearsError(f"unknown mode of run: {mode!r}, must be async or async_local")
        reader = self._run_reader(self._default if arg is None else arg, options)
        plan = Plan(reader, self._finished_steps(convertToStr, collect), mode, self._description)
        script = running_script()
        if script is not None:
            if not script.restoring:
                script.request_run(plan)
            return None
        caller = current.get()
        runtime = current_runtime()
        user = caller.user if caller is not None else ""
        if threading.current_thread() is not threading.main_thread():
            raise GearsError("run can not be called in a thread of a function's own: give runCoroutine a coroutine")
        execution = Execution(runtime.ids.next(), caller.session if caller else None, user=user)
        runtime.history.add(execution)
        task = runtime.distributor.start(plan, execution)
        return asyncio.ensure_future(_results(task, execution))

    def register(
        self,
        arg: Any = None,
        convertToStr: bool = True,
        collect: bool = True,
        mode: str = "async",
        onRegistered: Callable[[], Any] | None = None,
        **options: Any,
    ) -> str:
        """Run the pipeline whenever the reader's event happens; returns the registration's id.

        Functions of a `CommandReader` have the rights of the client that triggers them (`rights="caller"`), unless the
        registration says ``rights="owner"``: then, like all others, those of the worker.
        """
        if mode == "sync":
            raise GearsError(NO_SYNC)
        if mode not in MODES:
            raise GearsError(f"unknown mode of register: {mode!r}, must be one of {', '.join(MODES)}")
        if options.get("rights", "caller") not in RIGHTS:
            raise GearsError(f"unknown rights: {options['rights']!r}, must be one of {', '.join(RIGHTS)}")
        if onRegistered is not None:
            _function(onRegistered)
        reader = self._registered_reader(self._default if arg is None else arg, options)
        runtime = current_runtime()
        steps = self._finished_steps(convertToStr, collect and mode == "async")
        rights = options.get("rights", "caller") if self._reader == "CommandReader" else "owner"
        registration = Registration(runtime.ids.next(), reader, steps, mode, self._description, onRegistered, rights)
        script = running_script()
        if script is not None:
            script.session.registrations[registration.id] = registration
            return registration.id
        caller = current.get()
        if caller is None or caller.session is None:
            raise GearsError("register can only be called by a script or a function of a session")
        runtime.registrar.extend(caller.session, registration)
        return registration.id

    def _finished_steps(self, convert: bool, collect: bool) -> tuple[Step, ...]:
        steps = list(self._steps)
        if convert:
            steps.append(Step(StepKind.MAP, str))
        if collect:
            steps.append(Step(StepKind.COLLECT))
        return tuple(steps)

    def _run_reader(self, arg: Any, options: dict[str, Any]) -> readers.Reader:
        match self._reader:
            case "KeysReader":
                return readers.KeysReader(
                    _text(arg, "regex argument must be a string"),
                    no_scan=bool(options.get("noScan", False)),
                    read_value=bool(options.get("readValue", True)),
                    key_types=_names(options.get("keyTypes"), "key type", readers.KEY_TYPES),
                )
            case "KeysOnlyReader":
                generator = options.get("patternGenerator")
                return readers.KeysOnlyReader(
                    _text(arg, "regex argument must be a string"),
                    count=_whole(options, "count", readers.SCAN_COUNT, 1),
                    no_scan=bool(options.get("noScan", False)),
                    pattern_generator=_function(generator) if generator is not None else None,
                )
            case "PythonReader":
                if not callable(arg):
                    raise GearsError("pyreader argument must be a function")
                return readers.PythonReader(arg)
            case "ShardsIDReader":
                return readers.ShardsIDReader()
            case "StreamReader":
                stream = _text(arg, "stream argument must be a string")
                return readers.StreamReader(stream, str(options.get("fromId", "0-0")))
        raise GearsError("Given reader do not support run or not exists")

    def _registered_reader(self, arg: Any, options: dict[str, Any]) -> readers.RegisteredReader:
        if self._reader == "CommandReader":
            if options.get("hook") is not None:
                raise GearsError(NO_HOOK)
            trigger = options.get("trigger")
            if not isinstance(trigger, str) or not trigger:
                raise GearsError("no trigger or hook argument was given")
            return readers.CommandReader(trigger, bool(options.get("inorder", False)))
        prefix = options.get("prefix", options.get("regex", arg))
        if self._reader == "StreamReader":
            return _registered_stream(_text(prefix, "stream argument must be a string"), options)
        if self._reader != "KeysReader":
            raise GearsError(f"reader does not support register: {self._reader}")
        return readers.KeysReader(
            _text(prefix, "regex argument must be a string"),
            read_value=bool(options.get("readValue", True)),
            event_types=_names(options.get("eventTypes"), "event type"),
            key_types=_names(options.get("keyTypes"), "key type", readers.KEY_TYPES),
            commands=_names(options.get("commands"), "command"),
        )


def _registered_stream(prefix: str, options: dict[str, Any]) -> readers.StreamReader:
    policy = options.get("onFailedPolicy", "continue")
    if policy not in FAILED_POLICIES:
        raise GearsError(f"unknown onFailedPolicy: {policy!r}, must be one of {', '.join(FAILED_POLICIES)}")
    return readers.StreamReader(
        prefix,
        batch=_whole(options, "batch", 1, 1),
        duration_ms=_whole(options, "duration", 0, 0),
        on_failed=policy,
        retry_seconds=_whole(options, "onFailedRetryInterval", 1, 1),
        trim=bool(options.get("trimStream", True)),
    )


def _text(value: Any, problem: str) -> str:
    if not isinstance(value, str):
        raise GearsError(f"{problem}, got {type(value).__name__}")
    return value


async def _results(task: asyncio.Task[None], execution: Execution) -> list[list[Any]]:
    await task
    return [execution.results, execution.errors]
