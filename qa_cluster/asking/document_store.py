"""Writes, reads and deletes documents on the shards, and waits until they are indexed.

A write is one command on the shard that holds the document. The store reports success only after one more reply from
that shard. By then the shard has sent every process the notification that invalidates cached answers (see `freshness`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from math import inf
from time import monotonic
from typing import Any

from qa_cluster.deadline import deadline
from qa_cluster.documents import stored
from qa_cluster.documents.metadata_change import MetadataChange
from qa_cluster.documents.metadata_limits import canonical_metadata, readable_metadata
from qa_cluster.documents.source_map import filter_metadata
from qa_cluster.documents.stored import ANY_VERSION, DocumentInput, DocumentRecord, Embedding, check_document_id
from qa_cluster.errors import DeadlineExceeded, InvalidInput, NotFound, ReplyError, VersionConflict
from qa_cluster.keys import (
    DEFAULT_COLLECTION,
    DocumentName,
    Partitioning,
    check_collection,
    document_key,
    epoch_key,
    paragraphs_key,
    pending_key,
)
from qa_cluster.off_loop import off_loop
from qa_cluster.ranking.filters import pack_fields
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.routing.shards import Shards
from qa_cluster.scripts.calls import Call
from qa_cluster.types import Document, WriteResult
from qa_cluster.vectors.prepared import (
    OTHER_DOCUMENT,
    OTHER_ENCODER,
    OTHER_SENTENCES,
    REFUSED,
    STALE,
    STORED,
    PreparedVectors,
)

from .collections import Collections, missing
from .document_fields import newer_commands
from .remote_encoder import RemoteEncoder

READ_ATTEMPTS = 20
MAX_PENDING_BYTES = 128 * 1024
"""If the pending texts of a partition have more bytes (about 1,000 sentences), `DocumentStore.caught_up` waits."""
FIRST_POLL_SECONDS = 0.002
LAST_POLL_SECONDS = 0.05
# The number of passages whose vectors are stored by one command, about 25 kB.
VECTORS_PER_STEP = 64
_log = logging.getLogger(__name__)
_WAITED_FOR = ("version", "tokenized", "failed", "failure")


class DocumentStore:
    """Writes, reads and deletes the documents of a cluster.

    >>> written = await store.put("a", "Ada Lovelace wrote it.", wait=True, timeout=10)
    >>> (await store.get("a")).text
    'Ada Lovelace wrote it.'
    """

    def __init__(
        self, shards: Shards, partitions: Partitioning, collections: Collections, encoder: RemoteEncoder | None = None
    ) -> None:
        self._shards = shards
        self._encoder = encoder
        self._partitions = partitions
        self._collections = collections
        # The bytes of each partition's pending texts, as its shard last reported them.
        self._pending: dict[str, int] = {}

    def tag_of(self, document_id: str) -> str:
        """Return the tag of a document's partition."""
        return self._partitions.tag_of(document_id)

    async def put(
        self,
        document_id: str,
        text: str,
        *,
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        collection: str = DEFAULT_COLLECTION,
        source: str = "",
        if_version: str | None = None,
        wait: bool = True,
        timeout: float = 30.0,
        vectors: PreparedVectors | None = None,
    ) -> WriteResult:
        """Store a document in a collection. With `wait`, return when the document is indexed.

        Args:
            vectors: the vectors of the document's passages; they require `wait`. Vectors that do not belong to this
                version of the document and to the shards' encoder are discarded, and the result says why.
            source: where the document comes from, for example a folder.
            if_version: the version that the document must have; ``""``: it must not exist; None: any version.
            timeout: the time limit in seconds.

        Raises:
            VersionConflict: the document does not have the version `if_version`.
            NotFound: the collection does not exist.
            InvalidInput, InputTooLong: an argument is invalid or exceeds its limit.
            DocumentFailed: the document is stored, but its text cannot be indexed.
            DeadlineExceeded: the time limit was reached; the document may still be stored.
        """
        if vectors is not None and not wait:
            raise InvalidInput("vectors need wait: they are attached when the document is indexed", place="vectors")
        size = len(text) if isinstance(text, str) else 0
        document = await off_loop(size, stored.check_document, document_id, text, title, metadata, collection)
        await self._collections.check(collection)
        tag = self.tag_of(document_id)
        condition = ANY_VERSION if if_version is None else if_version
        call = stored.put_document(document, tag, condition, stored.check_source(source))
        begun = monotonic()
        late = f"document {document_id[:100]!r} was not stored in {timeout:g} s: it may still be stored later"
        async with deadline(timeout, late):
            reply, _ = await self._run(call, timeout)
        done = stored.parse_put(reply)
        if done.status == "no_collection":
            raise missing(collection)
        self._pending[tag] = done.pending_bytes
        # If the reply is lost, the write is sent again. If the stored version is then the version of `document`, the
        # first write succeeded.
        if done.status == "conflict" and done.version != document.version:
            raise _conflict(document_id, done.version, if_version)
        tokenized = done.tokenized
        if wait and not tokenized:
            tokenized = await self.wait_tokenized(document.name, document.version, timeout - (monotonic() - begun))
        status = ""
        if vectors is not None:
            status = await self._attach(document, tag, vectors, timeout - (monotonic() - begun)) if tokenized else STALE
        return WriteResult(
            document_id, document.version, done.status == "stored", done.created, tokenized, done.source, status
        )

    async def _attach(self, document: DocumentInput, tag: str, vectors: PreparedVectors, timeout: float) -> str:
        """Attach vectors to an indexed document; return the result, a constant of `qa_cluster.vectors.prepared`.

        `tag` is the tag of the document's partition, and `timeout` is the time limit in seconds. After the time limit,
        the result is `REFUSED`.
        """
        encoder = None if self._encoder is None else self._encoder.encoder
        if encoder is None or (encoder.digest, encoder.dims) != (vectors.encoder, vectors.dims):
            return OTHER_ENCODER
        if vectors.version != document.version:
            return OTHER_DOCUMENT
        key = document_key(document.name, tag)
        try:
            async with asyncio.timeout(timeout):
                splitter, sentences = await self._shards.execute(key, "HMGET", key, "splitter", "sentences")
                if (splitter, sentences) != (vectors.splitter.encode(), b"%d" % vectors.sentences):
                    return OTHER_SENTENCES
                for first in range(0, vectors.count, VECTORS_PER_STEP):
                    passages = vectors.part(first, VECTORS_PER_STEP)
                    made = Embedding(vectors.encoder, vectors.dims, first, vectors.count, passages)
                    call = stored.attach_vectors(document.name, tag, document.version, vectors.splitter, made)
                    if (await self._shards.execute(call.keys[0], *call.command()))[0] != b"stored":
                        return STALE
        except (ReplyError, TimeoutError) as error:
            # The document is indexed, and the worker will compute its vectors.
            _log.warning("the vectors of document %.100r are not attached: %s", document.document_id, error)
            return REFUSED
        return STORED

    async def delete(
        self,
        document_id: str,
        *,
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        timeout: float = 30.0,
    ) -> str:
        """Delete a document and return its last version.

        `if_version` and `timeout` are as in `put`. If a reply is lost, the deletion is sent again. If the document is
        then missing, the first deletion may have succeeded, so no error is raised, and the returned version is empty.

        Raises:
            VersionConflict: the document does not have the version `if_version`.
            NotFound: the document or the collection does not exist.
            DeadlineExceeded: the time limit was reached.
        """
        name, tag = await self._place(document_id, collection)
        call = stored.delete_document(name, tag, ANY_VERSION if if_version is None else if_version)
        async with deadline(timeout, f"document {document_id[:100]!r} was not deleted in {timeout:g} s"):
            reply, attempts = await self._run(call, timeout)
        done = stored.parse_delete(reply)
        if done.status == "conflict":
            raise _conflict(document_id, done.version, if_version)
        if done.status == "missing" and attempts == 1:
            raise _missing_document(document_id, collection)
        return done.version

    async def change_metadata(
        self,
        document_id: str,
        change: MetadataChange,
        *,
        collection: str = DEFAULT_COLLECTION,
        if_version: str | None = None,
        timeout: float = 30.0,
    ) -> WriteResult:
        """Change only the metadata of a document. Its text is not indexed again.

        The document gets a new version, because the version covers the metadata. Filters and answers use the new
        metadata at once. The metadata of a pending document is indexed together with its text. `if_version` and
        `timeout` are as in `put`.

        Raises:
            VersionConflict: the document does not have the version `if_version`.
            NotFound: the document or the collection does not exist.
            InvalidInput, InputTooLong: the changed metadata is invalid or too large.
            DeadlineExceeded: the time limit was reached.
        """
        name, tag = await self._place(document_id, collection)
        late = (
            f"the metadata of document {document_id[:100]!r} was not changed in {timeout:g} s: its text is being"
            " changed, or its shard's worker is busy or down"
        )
        async with deadline(timeout, late):
            return await self._change(name, tag, change, if_version, timeout)

    async def _change(
        self, name: DocumentName, tag: str, change: MetadataChange, if_version: str | None, timeout: float
    ) -> WriteResult:
        key, pause, was_sent = document_key(name, tag), FIRST_POLL_SECONDS, False
        while True:
            record = stored.parse_record(await self._shards.execute(key, *stored.read_record(name, tag)))
            version, metadata, wanted, fields = "", "{}", "{}", b""
            if record is not None:
                version, metadata = record.version, record.metadata
                wanted, fields = await off_loop(len(metadata), _changed, name.id, metadata, change)
                if wanted == metadata and (was_sent or if_version in (None, version)):
                    return WriteResult(name.id, version, was_sent, False, record.tokenized)
                if if_version not in (None, version):
                    raise _conflict(name.id, version, if_version)
            with newer_commands():
                reply, attempts = await self._run(stored.set_metadata(name, tag, version, wanted, fields), timeout)
            done = stored.parse_metadata(reply)
            if done.status == "no_collection":
                raise missing(name.collection)
            if done.status == "missing":
                raise _missing_document(name.id, name.collection)
            if done.status in ("stored", "unchanged"):
                is_indexed = record is not None and record.tokenized
                return WriteResult(name.id, done.version, done.status == "stored", False, is_indexed)
            # If a reply was lost, the record may already contain the change.
            was_sent = was_sent or attempts > 1
            if done.status == "busy":
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, LAST_POLL_SECONDS)

    async def remove(self, document: DocumentName, tag: str) -> bool:
        """Delete all keys of a document, even while its collection is being deleted.

        Return whether the document existed. `tag` is the tag of the document's partition. This call has no time limit,
        so the caller must set one.
        """
        reply, _ = await self._run(stored.delete_document(document, tag), inf)
        return stored.parse_delete(reply).status == "deleted"

    async def get(self, document_id: str, collection: str = DEFAULT_COLLECTION) -> Document:
        """Return the stored document.

        Raises:
            NotFound: the document or the collection does not exist.
            DeadlineExceeded: the document changed during each of `READ_ATTEMPTS` reads.
        """
        name, tag = await self._place(document_id, collection)
        key, text_key = document_key(name, tag), paragraphs_key(name, tag)
        for _ in range(READ_ATTEMPTS):
            record_reply, text, after = await self._shards.execute_many(
                [
                    (key, stored.read_record(name, tag)),
                    (text_key, ("GET", text_key)),
                    (key, ("HGET", key, "version")),
                ]
            )
            record = stored.parse_record(record_reply)
            if not isinstance(text, bytes):
                if record is None:
                    raise _missing_document(document_id, collection)
                continue  # the document was deleted after its record was read
            if record is None and after is None:
                return Document(document_id, text.decode("utf-8", "replace"))
            if record is not None and isinstance(after, bytes) and after.decode() == record.version:
                return await off_loop(len(text), _document, document_id, text, record)
        raise DeadlineExceeded(f"document {document_id[:100]!r} changed during each of {READ_ATTEMPTS} reads")

    async def caught_up(self, document_id: str, timeout: float) -> None:
        """Wait while the partition of this document has more than `MAX_PENDING_BYTES` of pending texts.

        A writer of many documents calls this method after each document to keep the backlog short. DeadlineExceeded if
        the worker indexes nothing for `timeout` seconds.
        """
        tag = self.tag_of(document_id)
        key, pause = pending_key(tag), FIRST_POLL_SECONDS
        waiting, until = self._pending.get(tag, 0), monotonic() + timeout
        while waiting > MAX_PENDING_BYTES:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LAST_POLL_SECONDS)
            before, waiting = waiting, int(await self._shards.execute(key, "HGET", key, "") or 0)
            self._pending[tag] = waiting
            if waiting < before:
                until = monotonic() + timeout
            elif monotonic() > until:
                raise DeadlineExceeded(
                    f"document {document_id[:100]!r} is stored, but its partition has {waiting} bytes of pending texts,"
                    f" of which none were indexed within {timeout:g} s: its shard's worker is busy or down"
                )

    async def wait_tokenized(self, document: DocumentName, version: str, timeout: float) -> bool:
        """Wait until this version is indexed; return False if the document has a different version or was deleted.

        If the version is indexed, return True.

        Raises:
            DocumentFailed: the worker has given up indexing this version.
            DeadlineExceeded: the version was not indexed within `timeout` seconds.
        """
        key = document_key(document, self.tag_of(document.id))
        pause = FIRST_POLL_SECONDS
        late = (
            f"document {document.id[:100]!r} is stored, but was not indexed within {max(timeout, 0):.3g} s: "
            "its shard's worker is busy or down"
        )
        async with deadline(timeout, late):
            while True:
                current, tokenized, failed, failure = await self._shards.execute(key, "HMGET", key, *_WAITED_FOR)
                if current is None or current.decode() != version:
                    return False
                if failed == current:
                    raise stored.failed_error(document, (failure or b"").decode())
                if tokenized is not None and tokenized.decode() == version:
                    return True
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, LAST_POLL_SECONDS)

    async def _place(self, document_id: str, collection: str) -> tuple[DocumentName, str]:
        """Return the name of a document and the tag of its partition; NotFound if its collection does not exist."""
        check_document_id(document_id)
        await self._collections.check(check_collection(collection))
        return DocumentName.of(document_id, collection), self.tag_of(document_id)

    async def _run(self, call: Call, seconds: float) -> tuple[Any, int]:
        """Run a call, and then wait for one more reply of the shard.

        Return the reply to the call, and the number of times that the call was sent. Redirections are not counted. The
        call is tried again for at most `seconds`, as in `Shards.retrying`.
        """
        attempts = 0

        async def attempt() -> Any:
            nonlocal attempts
            attempts += 1
            try:
                return await self._shards.run_once(call)
            except ReplyError as error:
                attempts -= error.code in ("MOVED", "ASK")
                raise

        reply = await self._shards.retrying(attempt, seconds)
        epoch = epoch_key(call.keys[0].rpartition("{")[2].removesuffix("}"))
        try:
            await self._shards.execute_once(epoch, "GET", epoch)
        except (ReplyError, ConnectionLost):
            # If the shard is down, all subscriptions to it are lost. No process then serves cached answers that show
            # documents of this shard.
            await asyncio.sleep(0)
        return reply, attempts


def _changed(document_id: str, metadata: str, change: MetadataChange) -> tuple[str, bytes]:
    """Return the changed metadata of a document: as canonical JSON, and as fields of the index."""
    found = change.applied(readable_metadata(metadata))
    canonical = canonical_metadata(found, f"of document {document_id[:100]!r}")
    return canonical, pack_fields(filter_metadata(found))


def _document(document_id: str, text: bytes, record: DocumentRecord) -> Document:
    return Document(
        id=document_id,
        text=text.decode("utf-8", "replace"),
        title=record.title,
        metadata=readable_metadata(record.metadata),
        version=record.version,
        sentences=record.sentences or 0,
        tokenized=record.tokenized,
        failure=record.failure,
    )


def _missing_document(document_id: str, collection: str) -> NotFound:
    where = "" if collection == DEFAULT_COLLECTION else f" in collection {collection!r}"
    return NotFound(f"no such document: {document_id[:100]!r}{where}")


def _conflict(document_id: str, stands: str, wanted: str | None) -> VersionConflict:
    has = f"has version {stands}" if stands else "does not exist"
    asked = f"version {wanted} was asked for" if wanted else "it must not exist"
    return VersionConflict(f"document {document_id[:100]!r} {has}, {asked}")
