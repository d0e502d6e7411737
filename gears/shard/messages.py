"""The format of messages between workers: MessagePack, which contains data and never code.

A message is ``[kind, request, body]``. A body consists of None, booleans, numbers, texts, bytes, lists, dicts and
dataclasses with the decorator `sent`. A value that contains functions, such as the steps of a RedisGears pipeline, is
not allowed in a body. Its sender pickles the value and puts the pickled bytes into the body.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import msgpack

from .failures import GearsError

_DATACLASS = 1
_PART = 2
_KNOWN: dict[str, type[Any]] = {}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Message:
    """A message to another worker.

    `request` is the number of the request, or 0 if no answer is expected. The answer has the kind ``answer`` and the
    number of its request.
    """

    kind: str
    body: Any
    request: int = 0


@dataclass(frozen=True, slots=True)
class MessagePart:
    """A part of a long message. All parts of a message have the same `number`. The parts from one sender arrive in
    order.
    """

    number: int
    last: bool
    data: bytes


def sent(kind: type[_T]) -> type[_T]:
    """Allow a dataclass in messages. Its name must be unique among the allowed classes.

    Sequences with the type ``tuple[..]`` arrive as tuples, other sequences as lists.
    """
    if _KNOWN.setdefault(kind.__name__, kind) is not kind:
        raise TypeError(f"two kinds of bodies have the name {kind.__name__}")
    return kind


def encode(message: Message) -> bytes:
    """Return the bytes of a message. Raise GearsError for a body with an unsupported type."""
    try:
        packed: bytes = msgpack.packb(
            [message.kind, message.request, message.body], default=_default, unicode_errors="surrogateescape"
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise GearsError(f"ERR a message {message.kind} cannot be sent: {error}") from error
    return packed


def encode_part(part: MessagePart) -> bytes:
    """Return the bytes of a part of a message."""
    packed: bytes = msgpack.packb(msgpack.ExtType(_PART, msgpack.packb([part.number, part.last, part.data])))
    return packed


def decode(payload: bytes) -> Message | MessagePart:
    """Return the message or part. Raise GearsError if the bytes are not valid."""
    try:
        found = _unpack(payload)
        if isinstance(found, MessagePart):
            return found
        kind, request, body = found
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as error:
        raise GearsError(f"ERR a message cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(kind, str) or not isinstance(request, int):
        raise GearsError(f"ERR a message cannot be read: its kind is {kind!r:.50}, its request {request!r:.50}")
    return Message(kind, body, request)


def _unpack(payload: bytes) -> Any:
    return msgpack.unpackb(payload, ext_hook=_extension, strict_map_key=False, unicode_errors="surrogateescape")


def _default(value: Any) -> Any:
    name = type(value).__name__
    if _KNOWN.get(name) is not type(value):
        raise TypeError(f"values of type {name} are not sent")
    parts = [name, *(getattr(value, field.name) for field in fields(value))]
    packed = msgpack.packb(parts, default=_default, unicode_errors="surrogateescape")
    return msgpack.ExtType(_DATACLASS, packed)


def _extension(code: int, data: bytes) -> Any:
    if code == _PART:
        number, last, part = _unpack(data)
        return MessagePart(number, last, part)
    if code != _DATACLASS:
        raise ValueError(f"unknown extension {code}")
    name, *values = _unpack(data)
    kind = _KNOWN[name]
    if len(values) != len(fields(kind)):
        raise ValueError(f"{name} has {len(values)} fields")
    declared = [str(field.type) for field in fields(kind)]
    return kind(*(tuple(v) if as_what.startswith("tuple") else v for v, as_what in zip(values, declared, strict=True)))
