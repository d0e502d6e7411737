"""Writes the rows of a DataFrame as documents of a collection.

A write replaces the document with the same id, and does not change an equal document. So a retried or speculative task
creates no duplicates. An overwrite deletes documents only at the commit, after all tasks have succeeded. A failed job
deletes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from time import monotonic, sleep
from typing import Any

import orjson
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage

from qa_cluster.client import NotFound, VersionConflict
from qa_cluster.errors import DeadlineExceeded, InvalidInput, RequestError
from qa_cluster.types import DocumentEntry

from .options import SKIP, SparkOptions, concurrently

ID_BYTES = 16
POLL_SECONDS = 0.5
_REQUIRED = ("id", "text")
_TEXTS = ("id", "text", "title")
_COLUMNS = (*_TEXTS, "metadata", "vectors")
_METADATA_TYPES = ("string", "map", "struct", "void")

_log = logging.getLogger(__name__)


def check_columns(columns: Sequence[tuple[str, str]]) -> None:
    """Raise InvalidInput if the columns (names and type names) are not the columns of documents."""
    names = [name for name, _ in columns]
    for name in _REQUIRED:
        if name not in names:
            raise InvalidInput(f"the DataFrame has no column {name!r}: a document needs {' and '.join(_REQUIRED)}")
    for name, kind in columns:
        if name not in _COLUMNS:
            raise InvalidInput(
                f"column {name!r} is not a field of a document, which has {', '.join(_COLUMNS)}: drop it, or put it"
                " into the struct metadata"
            )
        allowed = _METADATA_TYPES if name == "metadata" else ("string", "void")
        if kind not in allowed:
            raise InvalidInput(f"column {name!r} has the type {kind}, must be {' or '.join(allowed[:-1])}")


@dataclass
class DocumentsWritten(WriterCommitMessage):
    """The counts of a task's documents.

    Attributes:
        changed: the number of new or changed documents.
        unchanged: the number of documents that were already stored with the same content.
        skipped: the number of documents that the service has refused.
        embedded: the number of documents whose prepared vectors the shards use.
        discarded: the number of documents whose prepared vectors the shards have discarded.
        ids: for an overwrite, the digests of the ids of all rows, which have `ID_BYTES` bytes each; empty otherwise.
    """

    changed: int = 0
    unchanged: int = 0
    skipped: int = 0
    embedded: int = 0
    discarded: int = 0
    ids: bytes = b""


class DocumentsWriter(DataSourceWriter):
    """Writes documents on the executors, and commits on the driver."""

    def __init__(self, options: SparkOptions, *, overwrite: bool) -> None:
        self._options = options
        self._overwrite = overwrite
        self._prepare()

    def _prepare(self) -> None:
        """Check on the driver that the collection exists. If it is missing and the option `create` is true, create
        it."""
        try:
            self._options.client().collection(self._options.collection)
        except NotFound:
            if not self._options.create:
                raise
            self._options.client().create_collection(self._options.collection)

    def write(self, iterator: Iterator[Any]) -> DocumentsWritten:
        """Write the rows of a partition as documents; return their counts.

        Each write waits until its document is indexed, up to the limit of the service.
        """
        done, ids = DocumentsWritten(), bytearray()
        for digest, outcomes in concurrently(self._put, iterator, self._options.connections):
            for outcome in outcomes:
                setattr(done, outcome, getattr(done, outcome) + 1)
            if self._overwrite:
                ids += digest
        done.ids = bytes(ids)
        return done

    def _put(self, row: Any) -> tuple[bytes, list[str]]:
        document = document_of(row.asDict(recursive=True))
        try:
            written = self._options.client().put_document(
                document["id"],
                document["text"],
                document["title"],
                document["metadata"],
                collection=self._options.collection,
                vectors=document["vectors"],
            )
        except RequestError as error:
            if self._options.on_error != SKIP or isinstance(error, NotFound):
                raise
            _log.warning("document %.100r is skipped: %s", document["id"], error)
            return _digest(document["id"]), ["skipped"]
        outcomes = ["changed" if written.changed else "unchanged"]
        if document["vectors"] is not None:
            outcomes.append("embedded" if written.vectors == "stored" else "discarded")
        return _digest(document["id"]), outcomes

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """After an overwrite, delete the documents of the collection whose ids are in no row, and log the counts.

        Documents of skipped rows remain. Without an overwrite, nothing is deleted.
        """
        done = [message for message in messages if isinstance(message, DocumentsWritten)]
        names = ("changed", "unchanged", "skipped", "embedded", "discarded")
        counts = {name: sum(getattr(each, name) for each in done) for name in names}
        deleted = self._delete_others(done) if self._overwrite else 0
        _log.info(
            "collection %s: %d documents stored, %d unchanged, %d skipped; vectors of %d documents used, of %d"
            " discarded; %d documents deleted",
            self._options.collection,
            *counts.values(),
            deleted,
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete nothing. The documents that the tasks have stored remain."""
        stored = sum(message.changed for message in messages if isinstance(message, DocumentsWritten))
        _log.warning(
            "the write to collection %s has failed; %d documents of finished tasks remain stored, and no"
            " document was deleted: run the job again",
            self._options.collection,
            stored,
        )

    def _delete_others(self, done: Sequence[DocumentsWritten]) -> int:
        written = {each.ids[at : at + ID_BYTES] for each in done for at in range(0, len(each.ids), ID_BYTES)}
        if not written and not self._options.allow_empty:
            raise InvalidInput(
                f"the DataFrame has no rows, and an overwrite would delete all documents of collection"
                f" {self._options.collection!r}: set the option allow_empty to true to allow this"
            )
        self._wait_for_pending()
        client, collection = self._options.client(), self._options.collection
        others = [
            entry
            for failed in (False, True)
            for entry in client.list_documents(collection=collection, failed=failed)
            if _digest(entry.id) not in written
        ]
        return sum(concurrently(self._delete, others, self._options.connections))

    def _wait_for_pending(self) -> None:
        """Wait until all documents of the collection are indexed, because lists do not contain pending documents.

        Raises DeadlineExceeded after the option `timeout`.
        """
        deadline = monotonic() + self._options.timeout
        while (
            waiting := self._options.client().count_documents(collection=self._options.collection, waiting=True).waiting
        ):
            if monotonic() > deadline:
                raise DeadlineExceeded(
                    f"collection {self._options.collection!r} has {waiting} pending documents after"
                    f" {self._options.timeout:g} s (timeout): the overwrite has stored its documents and deleted none;"
                    " run the job again"
                )
            sleep(POLL_SECONDS)

    def _delete(self, entry: DocumentEntry) -> bool:
        """Delete a document if it has not changed since the listing; return whether the document was deleted."""
        try:
            self._options.client().delete_document(
                entry.id, collection=self._options.collection, if_version=entry.version
            )
        except NotFound:
            return False
        except VersionConflict:
            _log.warning("document %.100r is not deleted, because another client has just written it", entry.id)
            return False
        return True


def document_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the document in a row: id, text, title, metadata and vectors. `vectors` may be None.

    If a value is missing or invalid, InvalidInput names the value.
    """
    id = row["id"]
    if not id:
        raise InvalidInput("a row has no id: every document needs one")
    if row["text"] is None:
        raise InvalidInput(f"the row with the id {id[:100]!r} has no text")
    return {
        "id": id,
        "text": row["text"],
        "title": row.get("title") or "",
        "metadata": _object(id, row.get("metadata"), "metadata") or {},
        "vectors": _object(id, row.get("vectors"), "vectors"),
    }


def _object(id: str, value: Any, what: str) -> Mapping[str, Any] | None:
    if value is None:
        return None
    try:
        found = orjson.loads(value) if isinstance(value, str) else value
        orjson.dumps(found)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
        raise InvalidInput(f"the {what} of document {id[:100]!r} cannot be converted to JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise InvalidInput(f"the {what} of document {id[:100]!r} must be an object")
    return found


def _digest(id: str) -> bytes:
    return blake2b(id.encode(errors="surrogatepass"), digest_size=ID_BYTES).digest()
