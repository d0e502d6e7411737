"""The sources of a pipeline's records, in runs and in registrations.

RedisGears calls a source a reader, and `name` is its name for scripts and clients. A source is data, because it is
pickled with the plan. A source reads with the worker's `ScriptHost`. The arguments of a registration are sent to the
module as fields of `QA.REGISTER`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from ...shard.failures import GearsError
from ...shard.link import raise_on_error
from ...shard.replies import decode_reply, encode_data
from ..host.script_host import ScriptHost
from .coroutines import settled
from .key_values import SCAN_COUNT, PagedValues, hashable, read_records, read_types, scan, type_name


class OneRecord:
    """The records of a run for one event of a key or one call of a trigger: exactly one record."""

    def __init__(self, record: Any) -> None:
        self.record = record

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield self.record


@dataclass(frozen=True, slots=True)
class Match:
    """The events or the trigger of a registration, as fields of `QA.REGISTER`.

    Attributes:
        match: the pattern of the keys or streams, or the name of the trigger.
        events: the names of the key events, separated by commas; empty: all events except reads of missing keys.
        commands: the hooked commands (commands that read a missing key), separated by commas.
        arguments: the arguments that `RG.DUMPREGISTRATIONS` shows, as a RESP array of names and values.
    """

    match: str
    events: str
    commands: str
    arguments: bytes


def _own_key(host: ScriptHost, key: str) -> list[list[bytes]]:
    """Return the pages (lists of keys) of a run over one key: one page, or none if another shard has the key's slot."""
    name = key.encode("utf-8", "surrogateescape")
    if host.info.cluster:
        (answer,) = host.execute_many([(b"TYPE", name)])
        if isinstance(answer, Exception) and str(answer).startswith("MOVED"):
            return []
    return [[name]]


@dataclass(frozen=True, slots=True)
class KeysSource:
    """Keys of the shard. A run scans the keys. In a registration, events report changed keys.

    Attributes:
        pattern: the pattern of the keys; with `no_scan`, the name of one key.
        no_scan: whether a run reads one key instead of scanning the keys.
        read_value: whether the records have values and types.
        event_types: the events of a registration; None means all events except reads of missing keys.
        key_types: the wanted types of keys (`KEY_TYPES`); None means all types.
        commands: the hooked commands of a registration, which read a missing key; None means no command.
    """

    pattern: str = "*"
    no_scan: bool = False
    read_value: bool = True
    event_types: tuple[str, ...] | None = None
    key_types: tuple[str, ...] | None = None
    commands: tuple[str, ...] | None = None
    name = "KeysReader"

    async def records(self, host: ScriptHost) -> AsyncIterator[Any]:
        """Yield a record for each key that matches the pattern and has a wanted type."""
        values = PagedValues(host, self.key_types)
        for keys in _own_key(host, self.pattern) if self.no_scan else scan(host, self.pattern):
            if not self.read_value and not self.key_types:
                for key in keys:
                    yield {"key": decode_reply(key), "event": None}
                continue
            if self.read_value:
                for record in values.read(keys):
                    yield record
                continue
            for key, kind in zip(keys, read_types(host, keys), strict=True):
                if self.key_types and kind in self.key_types:
                    yield {"key": decode_reply(key), "event": None}

    def event_record(self, host: ScriptHost, key: bytes, event: str) -> dict[str, Any] | None:
        """Return the record of an event of a key. With `read_value`, the record has the key's current value and type.

        Return None if `key_types` does not contain the key's type.
        """
        if not self.read_value and not self.key_types:
            return {"key": decode_reply(key), "event": event}
        # reads type and value together, because most keys are strings
        commands: list[tuple[bytes, ...]] = [(b"TYPE", key)]
        if self.read_value:
            commands.append((b"GET", key))
        answers = host.execute_many(commands)
        kind = type_name(raise_on_error(answers[0]))
        if self.key_types and kind not in self.key_types:
            return None
        if not self.read_value:
            return {"key": decode_reply(key), "event": event}
        if kind in ("hash", "list"):
            return read_records(host, [key], event, [kind])[0]
        value = decode_reply(answers[1]) if kind == "string" and not isinstance(answers[1], Exception) else None
        return {"key": decode_reply(key), "value": value, "type": kind, "event": event}

    def match(self) -> Match:
        """Return the fields of `QA.REGISTER` for a registration with this source."""
        arguments = [
            *("regex", self.pattern),
            *("eventTypes", list(self.event_types) if self.event_types else None),
            *("keyTypes", list(self.key_types) if self.key_types else None),
            *("hookCommands", list(self.commands) if self.commands else None),
        ]
        return Match(
            self.pattern, ",".join(self.event_types or ()), ",".join(self.commands or ()), encode_data(arguments)
        )


@dataclass(frozen=True, slots=True)
class KeysOnlySource:
    """Names of the shard's keys.

    Attributes:
        pattern: the pattern of the names; with `no_scan`, the name of one key.
        count: about how many keys the server examines in one call of SCAN.
        no_scan: whether a run looks up one key instead of scanning the keys.
        pattern_generator: a user function that each shard calls once. It returns a pair that replaces `pattern` and
            `no_scan`.
    """

    pattern: str = "*"
    count: int = SCAN_COUNT
    no_scan: bool = False
    pattern_generator: Callable[[], tuple[str, bool]] | None = None
    name = "KeysOnlyReader"

    async def records(self, host: ScriptHost) -> AsyncIterator[Any]:
        """Yield each name that matches the pattern; with `no_scan`, yield the name if the key exists on this shard."""
        pattern, no_scan = self.pattern_generator() if self.pattern_generator else (self.pattern, self.no_scan)
        if no_scan:
            if _own_key(host, pattern) and host.execute("EXISTS", pattern):
                yield pattern
            return
        for keys in scan(host, pattern, self.count):
            for key in keys:
                yield decode_reply(key)


_END = object()


async def _next(produced: AsyncIterator[Any]) -> Any:
    return await anext(produced, _END)


@dataclass(frozen=True, slots=True)
class PythonSource:
    """The values that a generator function yields."""

    generator: Callable[[], Any]
    name = "PythonReader"

    async def records(self, host: ScriptHost) -> AsyncIterator[Any]:
        """Yield the values of the function, which may also be an async generator function."""
        produced = self.generator()
        if inspect.isasyncgen(produced):
            while (record := await settled(_next(produced))) is not _END:
                yield record
            return
        for record in produced:
            yield record


@dataclass(frozen=True, slots=True)
class ShardsIDSource:
    """One record for each shard: its id."""

    name = "ShardsIDReader"

    async def records(self, host: ScriptHost) -> AsyncIterator[Any]:
        """Yield the node id of this shard, or ``1`` outside a cluster."""
        yield host.info.shard_id if host.info.cluster else "1"


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Entries of streams. A run reads one stream after an id; a registration reads all matching streams.

    Attributes:
        stream: the key of the stream; in a registration, the pattern of the keys.
        from_id: for a run, the id after which reading starts; the entry with this id is not read.
        batch: the maximum number of entries in one run of a registration.
        duration_ms: how long a registration waits for a full batch; 0 means that it waits until the batch is full.
        on_failed: ``continue``, ``abort`` or ``retry``: what a registration does after a batch has failed.
        retry_seconds: the time until a failed batch is tried again.
        trim: whether processed entries are removed from the stream.
    """

    stream: str
    from_id: str = "0-0"
    batch: int = 1
    duration_ms: int = 0
    on_failed: str = "continue"
    retry_seconds: int = 1
    trim: bool = True
    name = "StreamReader"

    async def records(self, host: ScriptHost) -> AsyncIterator[Any]:
        """Yield each entry after `from_id`."""
        last: str | bytes = self.from_id
        while reply := host.execute("XREAD", "COUNT", SCAN_COUNT, "STREAMS", self.stream, last):
            for entry_id, fields in reply[0][1]:
                yield stream_record(self.stream, entry_id, fields)
                last = entry_id

    def match(self) -> Match:
        """Return the fields of `QA.REGISTER` for a registration with this source."""
        arguments = [
            *("batchSize", self.batch),
            *("durationMS", self.duration_ms),
            *("stream", self.stream),
            *("trimStream", int(self.trim)),
            *("onFailedPolicy", self.on_failed),
            *("retryInterval", self.retry_seconds),
        ]
        return Match(self.stream, "", "", encode_data(arguments))


def stream_record(key: Any, entry_id: bytes, fields: list[bytes]) -> dict[str, Any]:
    """Return an entry of a stream in the form for functions: a dict with the key of the stream, the id and the value.

    `fields` has the names and values of the entry, in turn. The value in the result is a dict of the fields.
    """
    values = decode_reply(fields)
    pairs = zip(values[::2], values[1::2], strict=True)
    return {"key": key, "id": entry_id.decode(), "value": {hashable(name): value for name, value in pairs}}


@dataclass(frozen=True, slots=True)
class CommandSource:
    """The calls of a trigger with `RG.TRIGGER`, as the source of a registration.

    Attributes:
        trigger: the name of the trigger.
        inorder: whether the calls run one after the other.
    """

    trigger: str
    inorder: bool = False
    # the time limit of a call in milliseconds; 0 means the setting `qa.job-timeout-ms`, and -1 means no limit
    timeout_ms: int = 0
    name = "CommandReader"

    def records(self, host: ScriptHost) -> AsyncIterator[Any]:
        """Raise an error, because `run()` does not support this source."""
        raise GearsError("Given reader do not support run or not exists")

    def match(self) -> Match:
        """Return the fields of `QA.REGISTER` for a registration with this source."""
        arguments: list[Any] = ["trigger", self.trigger, "inorder", int(self.inorder)]
        if self.timeout_ms:
            arguments += ("timeout", self.timeout_ms)
        return Match(self.trigger, "", "", encode_data(arguments))


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One call of a trigger. `arguments` has the name of the trigger, and then the arguments of the call.

    Every shard that reads this source gets the same record.
    """

    arguments: tuple[Any, ...]
    name = "CommandReader"

    def records(self, host: ScriptHost) -> OneRecord:
        """Return the record: a list of the name and the arguments."""
        return OneRecord(list(self.arguments))


RecordSource = CommandCall | KeysSource | KeysOnlySource | PythonSource | ShardsIDSource | StreamSource | CommandSource
RegisteredSource = KeysSource | CommandSource | StreamSource
