"""The handlers of messages. One handler answers questions, and the other handler stores and deletes documents.

A handler raises `RequestError` if the message itself is wrong, so that a retry cannot succeed. Other errors are errors
of the cluster or of the service (`retries.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, get_type_hints

import orjson

from qa_cluster.client import AsyncClient, AsyncClusterClient, NotFound
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.keys import DEFAULT_COLLECTION, check_collection
from qa_cluster.options.questions import AskArguments

from .records import KafkaRecord, OutgoingRecord, UndecodableMessage, decoded, reply

MAX_CORRELATION_BYTES = 1024
# For each Python type of an option of a question: the types of its valid JSON values, and their name in error texts.
_JSON_TYPES: Mapping[Any, tuple[tuple[type, ...], str]] = {
    str | None: ((str,), "a string"),
    int | None: ((int,), "an integer"),
    float | None: ((int, float), "a number"),
    bool | None: ((bool,), "a Boolean"),
    str | Iterable[str] | None: ((str, list), "a string or an array of strings"),
    Mapping[str, Any] | None: ((dict,), "an object"),
}
# The types of a question's fields, as in the body of `POST /qa`. Messages give the option `timeout` in milliseconds.
QUESTION_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "question": _JSON_TYPES[str | None],
    **{name: _JSON_TYPES[kind] for name, kind in get_type_hints(AskArguments).items() if name != "timeout"},
    "timeout_ms": _JSON_TYPES[int | None],
}
_CORRELATION = "correlation_id"
_DOCUMENT_FIELDS = ("id", "text", "title", "metadata")
QuestionClient = AsyncClient | AsyncClusterClient


@dataclass(frozen=True, slots=True)
class HandledMessage:
    """The result of a message.

    `outcome` is the label of the message in the metrics. `outgoing` is the message to write; None: nothing is to be
    written.
    """

    outcome: str
    outgoing: OutgoingRecord | None = None


class MessageHandler(Protocol):
    """Processes the messages of a topic."""

    def order_key(self, record: KafkaRecord) -> bytes | None:
        """Return the order key of a message; None if the message may be handled at the same time as any other message.

        Messages with the same order key are handled one after the other.
        """

    def names_target(self, record: KafkaRecord) -> bool:
        """Return whether the message itself names a collection or a model. Then "not found" can be a fault of the
        message."""

    async def handle(self, record: KafkaRecord) -> HandledMessage:
        """Process a message and return the result. An exception means that the attempt has failed (`retries.py`)."""


class QuestionHandler:
    """Answers questions and writes the answers to `topic`. `usual` has the options that a message does not set."""

    def __init__(self, client: QuestionClient, topic: str, usual: Mapping[str, Any]) -> None:
        self._client = client
        self._topic = topic
        self._usual = dict(usual)

    def order_key(self, record: KafkaRecord) -> bytes | None:
        """Return None, because questions are independent. Answers are still written in the order of questions."""
        return None

    def names_target(self, record: KafkaRecord) -> bool:
        """Return whether the question names a collection or a reader."""
        try:
            value = decoded(record)
        except InvalidInput:
            return False
        return "collection" in value or "model" in value

    async def handle(self, record: KafkaRecord) -> HandledMessage:
        """Answer a question. The id of the result is derived from the message, so a repeated answer has the same id."""
        question, options, correlation = parse_question(record)
        result = await self._client.ask(question, **(self._usual | options))
        value = replace(result, id=f"kafka:{record.topic}:{record.partition}:{record.offset}").to_json()
        if correlation is not None:
            value = b"%b,%b}" % (value[:-1], orjson.dumps({_CORRELATION: correlation})[1:-1])
        outcome = "answer" if result.answerable else "no_answer"
        return HandledMessage(outcome, reply(record, self._topic, value, outcome))


def parse_question(record: KafkaRecord) -> tuple[str, dict[str, Any], Any]:
    """Return the question of a message, its options as arguments of `ask`, and its correlation id.

    The correlation id is any JSON value, which the answer repeats; None: the message has none. If a field is invalid,
    InvalidInput names the field.
    """
    value = dict(decoded(record))
    correlation = value.pop(_CORRELATION, None)
    if (size := len(orjson.dumps(correlation))) > MAX_CORRELATION_BYTES:
        raise InputTooLong(f"{_CORRELATION} has {size} bytes as JSON, the limit is {MAX_CORRELATION_BYTES}")
    for name, given in value.items():
        if name not in QUESTION_TYPES:
            raise InvalidInput(
                f"unknown field {name[:100]!r} of a question; the known fields are {', '.join(QUESTION_TYPES)}",
                place=name,
            )
        kinds, what = QUESTION_TYPES[name]
        right = isinstance(given, kinds) and (bool in kinds or not isinstance(given, bool))
        if isinstance(given, list):
            right = right and all(isinstance(item, str) for item in given)
        if given is not None and not right:
            raise InvalidInput(f"{name} must be {what}", place=name)
    question = value.pop("question", None)
    if question is None:
        raise InvalidInput("the field question is missing", place="question")
    options = {name: given for name, given in value.items() if given is not None}
    if "timeout_ms" in options:
        options["timeout"] = options.pop("timeout_ms") / 1000
    return question, options, correlation


class DocumentHandler:
    """Stores the documents of a topic. A message without a value (a tombstone) deletes the document of its key."""

    def __init__(self, client: QuestionClient, collection: str = DEFAULT_COLLECTION) -> None:
        self._client = client
        self._collection = check_collection(collection)

    def order_key(self, record: KafkaRecord) -> bytes | None:
        """Return the id of the document, so that messages for the same document are handled in order.

        Return None if the message has neither a key nor a valid field `id`.
        """
        if record.key is not None:
            return record.key
        try:
            found = decoded(record).get("id")
        except InvalidInput:
            return None
        return found.encode(errors="replace") if isinstance(found, str) else None

    def names_target(self, record: KafkaRecord) -> bool:
        """Return False: only the command line names the collection."""
        return False

    async def handle(self, record: KafkaRecord) -> HandledMessage:
        """Store or delete a document. Deleting a missing document is not an error."""
        key = _key_text(record)
        if record.value is None:
            if key is None:
                raise UndecodableMessage("the message has neither key nor value: it names no document")
            try:
                await self._client.delete_document(key, collection=self._collection)
            except NotFound as error:
                if not str(error).startswith("no such document"):
                    raise
            return HandledMessage("deleted")
        id, text, title, metadata = parse_document(record, key)
        written = await self._client.put_document(id, text, title, metadata, collection=self._collection, wait=True)
        return HandledMessage("stored" if written.changed else "unchanged")


def _key_text(record: KafkaRecord) -> str | None:
    if record.key is None:
        return None
    try:
        return record.key.decode()
    except UnicodeDecodeError as error:
        raise UndecodableMessage(f"the key is not UTF-8 text: {error}") from error


def parse_document(record: KafkaRecord, key: str | None) -> tuple[str, str, str, Mapping[str, Any]]:
    """Return the id, text, title and metadata of a document. If a field is invalid, InvalidInput names the field.

    The id is `key`, the key of the message. If the message has no key (None), the field `id` is required.
    """
    value = decoded(record)
    for name in value:
        if name not in _DOCUMENT_FIELDS:
            known = ", ".join(_DOCUMENT_FIELDS)
            raise InvalidInput(f"unknown field {name[:100]!r} of a document; the known fields are {known}", place=name)
    id = value.get("id", key)
    if not isinstance(id, str):
        raise InvalidInput("the document has no id: give the message a key, or the field id", place="id")
    if key is not None and id != key:
        raise InvalidInput(f"the field id is {id[:100]!r}, but the key is {key[:100]!r}", place="id")
    text, title, metadata = value.get("text"), value.get("title") or "", value.get("metadata") or {}
    if not isinstance(text, str):
        raise InvalidInput("the field text must be a string", place="text")
    if not isinstance(title, str):
        raise InvalidInput("the field title must be a string", place="title")
    if not isinstance(metadata, dict):
        raise InvalidInput("the field metadata must be an object", place="metadata")
    return id, text, title, metadata
