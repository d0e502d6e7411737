"""The options with which the driver and the executors access a service, and the clients of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

import orjson

from qa_cluster.client import Client
from qa_cluster.errors import InvalidInput
from qa_cluster.integrations.service.connection import DEFAULT_URL, KEY_VARIABLE, ServiceConnection
from qa_cluster.keys import DEFAULT_COLLECTION, check_collection

TIMEOUT_SECONDS = 120.0
CONNECTIONS = 4
MAX_CONNECTIONS = 64
DOCUMENTS_PER_PARTITION = 1000
FAIL, SKIP = "fail", "skip"
_BOOLEANS = {"true": True, "false": False}
_NUMBERS: Mapping[str, tuple[Callable[[str], float], str]] = {
    "connections": (int, "an integer"),
    "documents_per_partition": (int, "an integer"),
    "timeout": (float, "a number of seconds"),
}

_In = TypeVar("_In")
_Out = TypeVar("_Out")

# The clients of this process, which many tasks of a Spark Python worker share.
_connections: dict[tuple[Any, ...], ServiceConnection] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """The options of the data source and of `ask_questions`.

    Attributes:
        url: the address of the service, which every executor must reach.
        collection: the collection of the documents or questions.
        token: the API key; empty: the key in `token_file`, or else in the environment variable `KEY_VARIABLE`. Spark
            redacts options with this name in plans, logs and its web page.
        token_file: a file with the API key, which the driver and every executor read; empty: no file.
        tls_ca: the PEM file of the certificate authority of an ``https`` service; empty: the authorities that the
            system trusts.
        timeout: the time limit for a call with all its retries, in seconds.
        connections: the maximum number of concurrent calls of one Python worker. An executor has one worker per task
            slot.
        prefix: the start of the ids of the documents to read; empty: all ids.
        filter: conditions on the metadata of the documents to read, in the short form (`year>=2020`); empty: no
            conditions.
        documents_per_partition: the maximum number of documents in one partition of a read.
        on_error: the reaction to a document that the service refuses: ``fail`` or ``skip``.
        create: whether a write creates a missing collection. Without this option, the write fails.
        allow_empty: whether an overwrite without rows may delete all documents.
    """

    url: str = DEFAULT_URL
    collection: str = DEFAULT_COLLECTION
    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_ca: str = ""
    timeout: float = TIMEOUT_SECONDS
    connections: int = CONNECTIONS
    prefix: str = ""
    filter: tuple[str, ...] = ()
    documents_per_partition: int = DOCUMENTS_PER_PARTITION
    on_error: str = FAIL
    create: bool = False
    allow_empty: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Convert the options of Spark, which are strings. If an option is invalid, InvalidInput names the option."""
        known = {entry.name for entry in fields(cls)}
        options = {name.lower(): value for name, value in given.items()}
        for name in options:
            if name not in known:
                raise InvalidInput(
                    f"unknown option {name[:100]!r} of qacluster, the known options are {', '.join(sorted(known))}"
                )
        values: dict[str, Any] = dict(options)
        for name in _NUMBERS.keys() & options:
            kind, what = _NUMBERS[name]
            try:
                values[name] = kind(options[name])
            except ValueError as error:
                raise InvalidInput(f"{name} is {options[name][:100]!r}, must be {what}") from error
        for name in {"create", "allow_empty"} & options.keys():
            if options[name].lower() not in _BOOLEANS:
                raise InvalidInput(f"{name} is {options[name][:100]!r}, must be true or false")
            values[name] = _BOOLEANS[options[name].lower()]
        if "filter" in options:
            values["filter"] = _conditions(options["filter"])
        return cls(**values).checked()

    def checked(self) -> Self:
        """Check and return the options. If options are invalid, InvalidInput names the first of them."""
        check_collection(self.collection)
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise InvalidInput(f"connections is {self.connections}, must be from 1 to {MAX_CONNECTIONS}")
        if self.documents_per_partition < 1:
            raise InvalidInput(f"documents_per_partition is {self.documents_per_partition}, must be at least 1")
        if self.on_error not in (FAIL, SKIP):
            raise InvalidInput(f"on_error is {self.on_error!r}, must be {FAIL} or {SKIP}")
        if self.token and self.token_file:
            raise InvalidInput("token and token_file are both set: set one of them")
        return self

    def client(self) -> Client:
        """Return the client of this process for these options. All threads of the process share the client."""
        return self._connection().client

    def close(self) -> None:
        """Close the connections of this process for these options."""
        self._connection().close()

    def _connection(self) -> ServiceConnection:
        key = self._key()
        name = (self.url, key, self.tls_ca, self.timeout)
        with _lock:
            if name not in _connections:
                _connections[name] = ServiceConnection(self.url, api_key=key, tls_ca=self.tls_ca, timeout=self.timeout)
            return _connections[name]

    def _key(self) -> str:
        if self.token_file:
            try:
                return Path(self.token_file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(f"token_file {self.token_file!r} cannot be read on this host: {error}") from error
        return self.token or os.environ.get(KEY_VARIABLE, "")


def concurrently(work: Callable[[_In], _Out], items: Iterable[_In], connections: int) -> Iterator[_Out]:
    """Yield the results of `work` in the order of the items.

    At most `connections` items are processed concurrently, and up to twice this number are read in advance. After an
    error, no more items are started.
    """
    source = iter(items)
    with ThreadPoolExecutor(connections, "qa-cluster") as pool:
        running: list[Future[_Out]] = [pool.submit(work, item) for item in islice(source, 2 * connections)]
        try:
            while running:
                found = running.pop(0).result()
                running += [pool.submit(work, item) for item in islice(source, 1)]
                yield found
        finally:
            for future in running:
                future.cancel()


def _conditions(value: str) -> tuple[str, ...]:
    """Return the conditions in the option `filter`: one condition in the short form, or several as a JSON array.

    Raises InvalidInput if a JSON array is malformed, or has elements that are not strings.
    """
    if not value.lstrip().startswith("["):
        return (value,)
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"filter is not a JSON array: {error}") from error
    if not all(isinstance(condition, str) for condition in found):
        raise InvalidInput("filter must be a condition or a JSON array of conditions")
    return tuple(found)
