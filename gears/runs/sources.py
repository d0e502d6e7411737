"""Readers: where the records of a pipeline come from, in runs and in registrations.

A reader is data (it is pickled with the plan); what reads takes the worker's link. A registration's arguments travel to
the module as the nine fields of `QA.REGISTER`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..scripting.runtime import Runtime
from ..shard.failures import GearsError
from ..shard.link import raise_on_error
from ..shard.replies import decode_reply, encode_data

SCAN_COUNT = 500
_BUILT_IN_TYPES = frozenset({"string", "hash", "list", "set", "zset", "stream"})
# bytes: they are packed again for every key
_READ_COMMANDS: dict[str, tuple[bytes, tuple[bytes, ...]]] = {
    "string": (b"GET", ()),
    "hash": (b"HGETALL", ()),
    "list": (b"LRANGE", (b"0", b"-1")),
}
KEY_TYPES = _BUILT_IN_TYPES | {"module", "empty"}


@dataclass(frozen=True, slots=True)
class Match:
    """What makes the module start a registration, as `QA.REGISTER` wants it."""

    match: str
    events: str
    commands: str
    arguments: bytes


def type_name(reply: bytes) -> str:
    """The key type as functions see it: the server's name, ``module`` for module types, ``empty`` for no key."""
    name = reply.decode()
    if name == "none":
        return "empty"
    return name if name in _BUILT_IN_TYPES else "module"


def _value(kind: str, reply: Any) -> Any:
    value = decode_reply(raise_on_error(reply))
    if kind == "hash" and isinstance(value, list):
        return {_hashable(name): item for name, item in zip(value[::2], value[1::2], strict=True)}
    return value


def _hashable(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def read_records(runtime: Runtime, keys: list[bytes], event: str | None, types: list[str]) -> list[dict[str, Any]]:
    """Records with key, value, type and event, read in one round trip."""
    readable = [(index, kind) for index, kind in enumerate(types) if kind in _READ_COMMANDS]
    replies = runtime.execute_many(
        [(_READ_COMMANDS[kind][0], keys[index], *_READ_COMMANDS[kind][1]) for index, kind in readable]
    )
    values: dict[int, Any] = {}
    for (index, kind), reply in zip(readable, replies, strict=True):
        # a key may change its type between the two round trips: it has no value of the type that was asked for
        values[index] = None if isinstance(reply, Exception) else _value(kind, reply)
    return [
        {"key": decode_reply(key), "value": values.get(index), "type": types[index], "event": event}
        for index, key in enumerate(keys)
    ]


def _read_types(runtime: Runtime, keys: list[bytes]) -> list[str]:
    return [type_name(raise_on_error(reply)) for reply in runtime.execute_many([(b"TYPE", key) for key in keys])]


class PageReader:
    """Reads the values of many keys, page by page.

    Neighbours in a scan are mostly of one type: the keys of a page are read as what most keys of the page before were,
    in one round trip. Only those that turn out to be something else, or nothing, are asked for their type.
    """

    def __init__(self, runtime: Runtime, key_types: tuple[str, ...] | None) -> None:
        self._runtime = runtime
        self._key_types = key_types
        self._expected = next((kind for kind in _READ_COMMANDS if self._wants(kind)), None)

    def _wants(self, kind: str) -> bool:
        return not self._key_types or kind in self._key_types

    def read(self, keys: list[bytes]) -> list[dict[str, Any]]:
        """The records of the keys whose type is wanted, in their order."""
        found = self._read_expected(keys)
        others = [index for index, record in enumerate(found) if record is None]
        types = _read_types(self._runtime, [keys[index] for index in others]) if others else []
        wanted = [(index, kind) for index, kind in zip(others, types, strict=True) if self._wants(kind)]
        records = read_records(self._runtime, [keys[i] for i, _ in wanted], None, [kind for _, kind in wanted])
        for (index, _), record in zip(wanted, records, strict=True):
            found[index] = record
        if 2 * len(others) > len(keys):
            ((common, _),) = Counter(types).most_common(1)
            self._expected = common if common in _READ_COMMANDS and self._wants(common) else None
        return [record for record in found if record is not None]

    def _read_expected(self, keys: list[bytes]) -> list[dict[str, Any] | None]:
        """The records of the keys that are of the expected type, None for others."""
        kind = self._expected
        if kind is None:
            return [None] * len(keys)
        command, arguments = _READ_COMMANDS[kind]
        replies = self._runtime.execute_many([(command, key, *arguments) for key in keys])
        # there is no empty hash or list
        return [
            {"key": decode_reply(key), "value": _value(kind, reply), "type": kind, "event": None}
            if isinstance(reply, bytes) or (reply and isinstance(reply, list))
            else None
            for key, reply in zip(keys, replies, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class KeysReader:
    """Keys of the shard: scanned in a run, reported by events in a registration."""

    pattern: str = "*"
    no_scan: bool = False
    read_value: bool = True
    event_types: tuple[str, ...] | None = None
    key_types: tuple[str, ...] | None = None
    commands: tuple[str, ...] | None = None
    name = "KeysReader"

    async def records(self, runtime: Runtime) -> AsyncIterator[Any]:
        """Yield a record for each matching key."""
        values = PageReader(runtime, self.key_types)
        for keys in [[self.pattern.encode()]] if self.no_scan else scan(runtime, self.pattern):
            if not self.read_value and not self.key_types:
                for key in keys:
                    yield {"key": decode_reply(key), "event": None}
                continue
            if self.read_value:
                for record in values.read(keys):
                    yield record
                continue
            for key, kind in zip(keys, _read_types(runtime, keys), strict=True):
                if self.key_types and kind in self.key_types:
                    yield {"key": decode_reply(key), "event": None}

    def event_record(self, runtime: Runtime, key: bytes, event: str) -> dict[str, Any] | None:
        """The record of an event, its value read now; None when the key's type is not one of `keyTypes`."""
        if not self.read_value and not self.key_types:
            return {"key": decode_reply(key), "event": event}
        # most keys are strings: ask for the value along with the type
        commands: list[tuple[bytes, ...]] = [(b"TYPE", key)]
        if self.read_value:
            commands.append((b"GET", key))
        answers = runtime.execute_many(commands)
        kind = type_name(raise_on_error(answers[0]))
        if self.key_types and kind not in self.key_types:
            return None
        if not self.read_value:
            return {"key": decode_reply(key), "event": event}
        if kind in ("hash", "list"):
            return read_records(runtime, [key], event, [kind])[0]
        value = decode_reply(answers[1]) if kind == "string" and not isinstance(answers[1], Exception) else None
        return {"key": decode_reply(key), "value": value, "type": kind, "event": event}

    def match(self) -> Match:
        """What the module watches."""
        arguments = [
            *("regex", self.pattern),
            *("eventTypes", list(self.event_types) if self.event_types else None),
            *("keyTypes", list(self.key_types) if self.key_types else None),
            *("hookCommands", list(self.commands) if self.commands else None),
        ]
        return Match(
            self.pattern, ",".join(self.event_types or ()), ",".join(self.commands or ()), encode_data(arguments)
        )


def scan(runtime: Runtime, pattern: str, count: int = SCAN_COUNT) -> Iterator[list[bytes]]:
    """The keys of this shard that match a glob pattern, in pages of about `count` looked at."""
    cursor: bytes = b"0"
    while True:
        cursor, keys = runtime.execute("SCAN", cursor, "MATCH", pattern, "COUNT", count)
        if keys:
            yield keys
        if cursor == b"0":
            return


@dataclass(frozen=True, slots=True)
class KeysOnlyReader:
    """Names of the shard's keys."""

    pattern: str = "*"
    count: int = SCAN_COUNT
    no_scan: bool = False
    pattern_generator: Callable[[], tuple[str, bool]] | None = None
    name = "KeysOnlyReader"

    async def records(self, runtime: Runtime) -> AsyncIterator[Any]:
        """Yield each name."""
        pattern, no_scan = self.pattern_generator() if self.pattern_generator else (self.pattern, self.no_scan)
        if no_scan:
            if runtime.execute("EXISTS", pattern):
                yield pattern
            return
        for keys in scan(runtime, pattern, self.count):
            for key in keys:
                yield decode_reply(key)


@dataclass(frozen=True, slots=True)
class PythonReader:
    """Whatever a generator function yields."""

    generator: Callable[[], Any]
    name = "PythonReader"

    async def records(self, runtime: Runtime) -> AsyncIterator[Any]:
        """Yield what the function yields; an async generator is legal too."""
        produced = self.generator()
        if inspect.isasyncgen(produced):
            async for record in produced:
                yield record
            return
        for record in produced:
            yield record


@dataclass(frozen=True, slots=True)
class ShardsIDReader:
    """The shard's id, once per shard."""

    name = "ShardsIDReader"

    async def records(self, runtime: Runtime) -> AsyncIterator[Any]:
        """Yield the id; ``1`` outside a cluster."""
        yield runtime.info.shard_id if runtime.info.cluster else "1"


@dataclass(frozen=True, slots=True)
class StreamReader:
    """The entries of a stream: in a run those after an id, in a registration those of all streams that match."""

    stream: str
    from_id: str = "0-0"
    batch: int = 1
    duration_ms: int = 0
    on_failed: str = "continue"
    retry_seconds: int = 1
    trim: bool = True
    name = "StreamReader"

    async def records(self, runtime: Runtime) -> AsyncIterator[Any]:
        """Yield each entry after `from_id`."""
        last: str | bytes = self.from_id
        while reply := runtime.execute("XREAD", "COUNT", SCAN_COUNT, "STREAMS", self.stream, last):
            for entry_id, fields in reply[0][1]:
                yield stream_record(self.stream, entry_id, fields)
                last = entry_id

    def match(self) -> Match:
        """What the module watches."""
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
    """An entry of a stream as functions see it."""
    values = decode_reply(fields)
    pairs = zip(values[::2], values[1::2], strict=True)
    return {"key": key, "id": entry_id.decode(), "value": {_hashable(name): value for name, value in pairs}}


@dataclass(frozen=True, slots=True)
class CommandReader:
    """The arguments of `RG.TRIGGER`."""

    trigger: str
    inorder: bool = False
    name = "CommandReader"

    def records(self, runtime: Runtime) -> AsyncIterator[Any]:
        """Refuse: commands come from clients only."""
        raise GearsError("Given reader do not support run or not exists")

    def match(self) -> Match:
        """What the module watches."""
        return Match(self.trigger, "", "", encode_data(["trigger", self.trigger, "inorder", int(self.inorder)]))


Reader = KeysReader | KeysOnlyReader | PythonReader | ShardsIDReader | StreamReader | CommandReader
RegisteredReader = KeysReader | CommandReader | StreamReader
