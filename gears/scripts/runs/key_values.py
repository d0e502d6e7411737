"""Reads the shard's keys and values for functions, in pages (lists of keys) and with few round trips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...shard.link import raise_on_error
from ...shard.replies import decode_reply
from ..host.script_host import ScriptHost

SCAN_COUNT = 500
_BUILT_IN_TYPES = frozenset({"string", "hash", "list", "set", "zset", "stream"})
# For each type of key with a value for functions: the command that reads the value, and its arguments after the key.
# They are bytes, because packing a str again for every key takes longer.
_READ_COMMANDS: dict[str, tuple[bytes, tuple[bytes, ...]]] = {
    "string": (b"GET", ()),
    "hash": (b"HGETALL", ()),
    "list": (b"LRANGE", (b"0", b"-1")),
}
KEY_TYPES = _BUILT_IN_TYPES | {"module", "empty"}


def scan(host: ScriptHost, pattern: str, count: int = SCAN_COUNT) -> Iterator[list[bytes]]:
    """Yield pages of this shard's keys that match a glob pattern. The server examines about `count` keys for a page."""
    cursor: bytes = b"0"
    while True:
        cursor, keys = host.execute("SCAN", cursor, "MATCH", pattern, "COUNT", count)
        if keys:
            yield keys
        if cursor == b"0":
            return


def type_name(reply: bytes) -> str:
    """Return the key type for functions, from the server's reply to TYPE.

    The key type is the server's name of the type, ``module`` for a module type, or ``empty`` for a missing key.
    """
    name = reply.decode()
    if name == "none":
        return "empty"
    return name if name in _BUILT_IN_TYPES else "module"


def _value(kind: str, reply: Any) -> Any:
    value = decode_reply(raise_on_error(reply))
    if kind == "hash" and isinstance(value, list):
        return {hashable(name): item for name, item in zip(value[::2], value[1::2], strict=True)}
    return value


def hashable(value: Any) -> Any:
    """Return a bytearray as bytes, which are hashable; return any other value unchanged."""
    return bytes(value) if isinstance(value, bytearray) else value


def read_records(host: ScriptHost, keys: list[bytes], event: str | None, types: list[str]) -> list[dict[str, Any]]:
    """Return the record of each key, in the order of `keys`: its key, value, type and event.

    All values are read in one round trip. The value is None for a type without a command in `_READ_COMMANDS`, and for a
    key that does not have its type any more.

    Args:
        event: the event that all records get; None in a run.
        types: the type of each key, as `read_types` returns it.
    """
    readable = [(index, kind) for index, kind in enumerate(types) if kind in _READ_COMMANDS]
    replies = host.execute_many(
        [(_READ_COMMANDS[kind][0], keys[index], *_READ_COMMANDS[kind][1]) for index, kind in readable]
    )
    values: dict[int, Any] = {}
    for (index, kind), reply in zip(readable, replies, strict=True):
        # An error means that the key has changed its type since the read of the type. So the key has no value of the
        # old type.
        values[index] = None if isinstance(reply, Exception) else _value(kind, reply)
    return [
        {"key": decode_reply(key), "value": values.get(index), "type": types[index], "event": event}
        for index, key in enumerate(keys)
    ]


def read_types(host: ScriptHost, keys: list[bytes]) -> list[str]:
    """Return the types of keys (`type_name`) in the order of `keys`, read in one round trip."""
    return [type_name(raise_on_error(reply)) for reply in host.execute_many([(b"TYPE", key) for key in keys])]


class PagedValues:
    """Reads the values of many keys, page by page.

    The keys of a page usually have the same type. So the first round trip reads all keys of a page as one type, the
    expected type. The types are then read only for the remaining keys: keys of a different type, and missing keys. If
    more than half of the keys remain, the most frequent of their types becomes the expected type of the next page.

    `key_types` has the wanted types. None or an empty tuple means that all types are wanted.
    """

    def __init__(self, host: ScriptHost, key_types: tuple[str, ...] | None) -> None:
        self._host = host
        self._key_types = key_types
        self._expected = next((kind for kind in _READ_COMMANDS if self._wants(kind)), None)

    def _wants(self, kind: str) -> bool:
        return not self._key_types or kind in self._key_types

    def read(self, keys: list[bytes]) -> list[dict[str, Any]]:
        """Return the records of the keys with a wanted type, in the order of `keys`."""
        found = self._read_expected(keys)
        others = [index for index, record in enumerate(found) if record is None]
        types = read_types(self._host, [keys[index] for index in others]) if others else []
        wanted = [(index, kind) for index, kind in zip(others, types, strict=True) if self._wants(kind)]
        records = read_records(self._host, [keys[i] for i, _ in wanted], None, [kind for _, kind in wanted])
        for (index, _), record in zip(wanted, records, strict=True):
            found[index] = record
        if 2 * len(others) > len(keys):
            ((common, _),) = Counter(types).most_common(1)
            self._expected = common if common in _READ_COMMANDS and self._wants(common) else None
        return [record for record in found if record is not None]

    def _read_expected(self, keys: list[bytes]) -> list[dict[str, Any] | None]:
        """Return the record of each key with the expected type, and None for each other key, in the order of `keys`.

        Without an expected type, read nothing and return None for all keys.
        """
        kind = self._expected
        if kind is None:
            return [None] * len(keys)
        command, arguments = _READ_COMMANDS[kind]
        replies = self._host.execute_many([(command, key, *arguments) for key in keys])
        # an empty reply means that the key is missing, because empty hashes and lists do not exist
        return [
            {"key": decode_reply(key), "value": _value(kind, reply), "type": kind, "event": None}
            if isinstance(reply, bytes) or (reply and isinstance(reply, list))
            else None
            for key, reply in zip(keys, replies, strict=True)
        ]
