"""The messages of the adapter: messages that were read, messages to write, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from qa_cluster.errors import InvalidInput

Headers = tuple[tuple[str, bytes | None], ...]
# Headers that the adapter adds. If a message passes several adapters, each one replaces these headers.
SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET = "qa-source-topic", "qa-source-partition", "qa-source-offset"
SOURCE_TIMESTAMP = "qa-source-timestamp"
ERROR_CODE, ERROR, ATTEMPTS = "qa-error-code", "qa-error", "qa-attempts"
_OF_ADAPTER = frozenset({SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET, SOURCE_TIMESTAMP, ERROR_CODE, ERROR, ATTEMPTS})
MAX_ERROR_CHARS = 2000


class UndecodableMessage(InvalidInput):
    """A message cannot be decoded, for example because its value is not a JSON object, or its key is not UTF-8."""

    resp_code = "NOTJSON"


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A message that was read from a topic.

    `timestamp_ms` is the time of the message in milliseconds since 1970; None: the message has no timestamp.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    @property
    def place(self) -> str:
        """Topic, partition and offset, such as ``questions[0]@17``, for logs and errors."""
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A message to write.

    Attributes:
        outcome: the label of the message in the metrics: ``answer``, ``no_answer`` or ``dead_letter``.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    outcome: str


def decoded(record: KafkaRecord) -> Mapping[str, Any]:
    """Return the JSON object in the value of a message. Raise UndecodableMessage for any other value."""
    if record.value is None:
        raise UndecodableMessage("the message has no value, but must have a JSON object")
    try:
        value = orjson.loads(record.value)
    except orjson.JSONDecodeError as error:
        raise UndecodableMessage(f"the value is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UndecodableMessage(f"the value is not a JSON object, but {_kind(value)}")
    return value


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a Boolean", type(None): "null"}
    return names.get(type(value), "a number")


def reply(record: KafkaRecord, topic: str, value: bytes, outcome: str) -> OutgoingRecord:
    """Return the message to write to `topic` in reply to `record`.

    It has the key and the headers of `record`. Additional headers have the topic, partition, offset and timestamp of
    `record`.
    """
    return OutgoingRecord(topic, record.key, value, _headers_of(record), outcome)


def dead_letter(record: KafkaRecord, topic: str, error: BaseException, attempts: int) -> OutgoingRecord:
    """Return the dead letter to write to `topic`: the message's key, value and headers, with the error in additional
    headers. `attempts` is the number of failed attempts.
    """
    code = getattr(error, "resp_code", "INTERNAL")
    text = str(error) or type(error).__name__
    if len(text) > MAX_ERROR_CHARS:
        text = f"{text[:MAX_ERROR_CHARS]}.."
    reason = (
        (ERROR_CODE, code.encode()),
        (ERROR, text.encode(errors="replace")),
        (ATTEMPTS, b"%d" % attempts),
    )
    return OutgoingRecord(topic, record.key, record.value, (*_headers_of(record), *reason), "dead_letter")


def _headers_of(record: KafkaRecord) -> Headers:
    source: list[tuple[str, bytes | None]] = [
        (SOURCE_TOPIC, record.topic.encode()),
        (SOURCE_PARTITION, b"%d" % record.partition),
        (SOURCE_OFFSET, b"%d" % record.offset),
    ]
    if record.timestamp_ms is not None:
        source.append((SOURCE_TIMESTAMP, b"%d" % record.timestamp_ms))
    return (*((name, value) for name, value in record.headers if name not in _OF_ADAPTER), *source)
