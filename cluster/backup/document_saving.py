"""Writes the documents of a cluster to a backup, as a consistent snapshot of each shard.

The shard continues to serve clients, and nothing is locked:

1. Read the epochs of all partitions of the shard, and then all documents.
2. Read the epochs again. If the epoch of a partition has changed, compare the partition with the written documents, and
read the differences.
3. Repeat step 2 until no epoch has changed.

An epoch changes with every write and never has the same value twice. So when step 3 ends, all partitions had, at one
moment, exactly the documents of the backup.

If clients write to the shard without a pause, step 3 does not end. After `patience` seconds, the backup keeps the
documents as they were read. Each document is then complete, and the backup says that the documents are from different
moments. With `hold_seconds`, the shard instead blocks writes (`CLIENT PAUSE .. WRITE`) for at most this time, so that
step 3 ends.

The memory holds the names and versions of the documents of one shard, and a few megabytes of texts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from qa_cluster.asking.collections import DELETING
from qa_cluster.asking.engine import Engine
from qa_cluster.documents.metadata_limits import canonical_metadata
from qa_cluster.documents.stored import check_document_id, check_length, document_version
from qa_cluster.errors import QAError, ReplyError, RequestError, from_reply
from qa_cluster.keys import (
    DEFAULT_COLLECTION,
    PARAGRAPHS_PREFIX,
    DocumentName,
    collection_prefix,
    collections_key,
    document_key,
    epoch_key,
    failures_key,
    flight_key,
    index_key,
    paragraphs_key,
    parse_tagged,
    pending_key,
)
from qa_cluster.topology import Shard

from .folder import BackupFolder
from .lines import LinesWriter
from .manifest import DOCUMENTS_FOLDER, ShardState

PATIENCE_SECONDS = 10.0
"""How long step 3 may take on each shard, before the backup gives up the consistent snapshot or blocks writes."""
READ_BYTES = 4 << 20
"""Maximum size of the texts that are read together; a longer text is read alone."""
_NAMES = 500
_PAGE = 1000
_SCAN_KEYS = 1000
_READ_ATTEMPTS = 20
_PAUSE_SECONDS = 0.02
_FIELDS = ("title", "metadata", "version", "source")

# The epoch of each collection in a partition, by the name of the collection. None: the partition has no epoch of this
# collection yet.
_Epochs = dict[str, bytes | None]
# The object that becomes the line of a document in the backup, and the size of the document's text in bytes.
_ReadDocument = tuple[dict[str, Any], int]


@dataclass(slots=True)
class SavedDocuments:
    """The result of saving the documents.

    Attributes:
        collections: the names of the saved collections, without the default collection.
        meanwhile: how often a document was written or deleted after it had been read.
        unreadable: the ids of documents that were not saved, as keys without values, in the order of reading. The text
            of such a document is not UTF-8 or is too long, or its id or metadata is invalid.
    """

    documents: int = 0
    text_bytes: int = 0
    collections: set[str] = field(default_factory=set)
    shards: list[ShardState] = field(default_factory=list)
    meanwhile: int = 0
    unreadable: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Partition:
    """The file of a partition in the backup, while it is written.

    Attributes:
        known: for each document in the file, its version, the number of its line (from 0), and the size of its text in
            bytes.
        dead: the numbers of the lines that will be removed from the file, because their documents were changed or
            deleted after the line had been written.
        epochs: the epochs of the partition for which the file is correct; None if the file must be compared with the
            partition again.
        writer: writes the file; None before the first document.
    """

    tag: str
    known: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    dead: set[int] = field(default_factory=set)
    epochs: _Epochs | None = None
    writer: LinesWriter | None = None

    @property
    def name(self) -> str:
        return f"{DOCUMENTS_FOLDER}/{self.tag}.jsonl.gz"

    def forget(self, name: str) -> None:
        found = self.known.pop(name, None)
        if found is not None:
            self.dead.add(found[1])


class DocumentSaving:
    """Saves the documents of a cluster: of all collections, or of the `chosen` collections.

    Args:
        patience, hold_seconds: see the docstring of the module. If `hold_seconds` is 0, writes are never blocked.
        on_progress: gets the number of documents that have been read, during the first pass over the partitions.
    """

    def __init__(
        self,
        engine: Engine,
        folder: BackupFolder,
        *,
        chosen: frozenset[str] | None = None,
        patience: float,
        hold_seconds: float = 0.0,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self._shards = engine.shards
        self._tags = engine.partitions.tags
        self._folder = folder
        self._chosen = chosen
        self._patience = patience
        self._hold_seconds = hold_seconds
        self._on_progress = on_progress
        self.saved = SavedDocuments()
        self._done = 0

    async def run(self) -> SavedDocuments:
        """Save the documents of one shard after the other."""
        by_shard: dict[Shard, list[str]] = {}
        for tag in self._tags:
            by_shard.setdefault(self._shards.shard_of_key(epoch_key(tag)), []).append(tag)
        for shard, tags in by_shard.items():
            await self._save_shard(shard, tags)
        return self.saved

    async def _save_shard(self, shard: Shard, tags: Sequence[str]) -> None:
        names = await self._scan(tags)
        partitions = [_Partition(tag) for tag in tags]
        for partition in partitions:
            await self._catch_up(partition, names.pop(partition.tag, set()))
        exact = await self._until_consistent(partitions)
        for partition in partitions:
            if partition.writer is not None:
                await asyncio.to_thread(self._folder.close, partition.name, partition.dead)
            self.saved.documents += len(partition.known)
            self.saved.text_bytes += sum(size for _, _, size in partition.known.values())
            for name in partition.epochs or {}:
                self.saved.collections.add(name)
        self.saved.collections.discard(DEFAULT_COLLECTION)
        documents = sum(len(partition.known) for partition in partitions)
        self.saved.shards.append(ShardState(str(shard.address), tuple(tags), documents, exact))

    async def _scan(self, tags: Sequence[str]) -> dict[str, set[str]]:
        """Return the names of the documents of a shard, by the tag of their partition. `tags` are the partitions of the
        shard.

        This scans all keys of the shard, because some documents are neither indexed nor pending.
        """
        wanted = frozenset(tags)

        async def attempt() -> dict[str, set[str]]:
            shard = self._shards.shard_of_key(epoch_key(tags[0]))
            found: dict[str, set[str]] = {}
            cursor: bytes | int = -1
            while int(cursor) != 0:
                cursor, keys = await self._shards.execute_on(
                    shard,
                    "SCAN",
                    max(int(cursor), 0),
                    "MATCH",
                    f"{PARAGRAPHS_PREFIX}*",
                    "COUNT",
                    _SCAN_KEYS,
                    "TYPE",
                    "string",
                )
                for key in keys:
                    with suppress(UnicodeDecodeError):
                        parsed = parse_tagged(key.decode(), PARAGRAPHS_PREFIX)
                        if parsed is not None and parsed[1] in wanted:
                            found.setdefault(parsed[1], set()).add(str(parsed[0]))
            return found

        result: dict[str, set[str]] = await self._shards.retrying(attempt)
        return result

    async def _until_consistent(self, partitions: Sequence[_Partition]) -> bool:
        """Read differences until the partitions are a consistent snapshot.

        After `patience` seconds, return False if `hold_seconds` is 0. With a larger `hold_seconds`, block the writes of
        the shard, continue for at most this time, and return False if the partitions are still not consistent.
        """
        until = monotonic() + self._patience
        held: Shard | None = None
        try:
            while True:
                now = await self._epochs([partition.tag for partition in partitions])
                changed = [partition for partition in partitions if partition.epochs != now[partition.tag]]
                if not changed:
                    return True
                if monotonic() > until:
                    if held is not None or not self._hold_seconds:
                        return False
                    held = await self._block_writes(partitions[0].tag)
                    until = monotonic() + self._hold_seconds
                for partition in changed:
                    await self._catch_up(partition)
        finally:
            if held is not None:
                with suppress(QAError, ReplyError):
                    await self._shards.execute_on(held, "CLIENT", "UNPAUSE")

    async def _block_writes(self, tag: str) -> Shard:
        shard = self._shards.shard_of_key(epoch_key(tag))
        try:
            await self._shards.execute_on(shard, "CLIENT", "PAUSE", int(self._hold_seconds * 1000), "WRITE")
        except ReplyError as error:
            raise from_reply(str(error)) from error
        return shard

    async def _epochs(self, tags: Sequence[str]) -> dict[str, _Epochs]:
        """Return the epochs of each partition, without collections that are being deleted.

        Each command also names `flight_key`, a key that never exists. So while the slot of the partition migrates, the
        server refuses the command, and the client retries it.
        """
        lists = await self._shards.execute_many(
            [(collections_key(tag), ("HGETALL", collections_key(tag))) for tag in tags]
        )
        wanted: list[tuple[str, str]] = []
        for tag, reply in zip(tags, lists, strict=True):
            flat = [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
            texts = [part.decode() for part in flat]
            named = [name for name, state in zip(texts[::2], texts[1::2], strict=True) if state != DELETING]
            wanted += [(tag, name) for name in [DEFAULT_COLLECTION, *sorted(named)] if self._is_chosen(name)]
        keys = [epoch_key(tag, name) for tag, name in wanted]
        replies = await self._shards.execute_many(
            [(key, ("MGET", key, flight_key(tag))) for key, (tag, _) in zip(keys, wanted, strict=True)]
        )
        found: dict[str, _Epochs] = {tag: {} for tag in tags}
        for (tag, name), reply in zip(wanted, replies, strict=True):
            found[tag][name] = reply[0]
        return found

    def _is_chosen(self, collection: str) -> bool:
        return self._chosen is None or collection in self._chosen

    async def _catch_up(self, partition: _Partition, names: Iterable[str] = ()) -> None:
        """Compare a partition with its file, and make the file equal to the partition.

        Add new and changed documents, and mark the lines of changed and deleted documents as dead. `names` are
        documents that may be in the partition, in addition to the documents that `_listed` finds. If a client wrote to
        the partition meanwhile, `partition.epochs` becomes None, and the caller must call this method again.
        """
        tag, first = partition.tag, partition.epochs is None and not partition.known
        before = (await self._epochs([tag]))[tag]
        candidates = set(names) | set(partition.known) | await self._listed(tag, before)
        wanted = sorted(name for name in candidates if DocumentName(name).collection in before)
        for name in candidates - set(wanted):
            partition.forget(name)
        async for batch in self._differing(partition, wanted):
            read = await self._read(tag, batch)
            await asyncio.to_thread(self._write, partition, batch, read)
            if first:
                self._done += len(read)
                self._on_progress(self._done)
            else:
                self.saved.meanwhile += len(batch)
        after = (await self._epochs([tag]))[tag]
        partition.epochs = before if after == before else None

    async def _listed(self, tag: str, epochs: _Epochs) -> set[str]:
        """Return the names of the pending and failed documents of a partition, and of the indexed documents of the
        collections in `epochs`.
        """
        pending = await self._shards.execute(pending_key(tag), "HKEYS", pending_key(tag))
        failed = await self._shards.execute(failures_key(tag), "HKEYS", failures_key(tag))
        found = {name.decode() for name in (*pending, *failed) if name}
        for collection in epochs:
            key, prefix, position = index_key(tag, collection), collection_prefix(collection), 0
            while True:
                following, rows = await self._shards.execute(key, "QA.INDEX.LIST", key, position, _PAGE)
                found |= {prefix + row[0].decode() for row in rows}
                position = int(following)
                if not position:
                    break
        return found

    async def _differing(self, partition: _Partition, names: Sequence[str]) -> AsyncIterator[list[str]]:
        """Yield the names of the documents that differ from the file: changed, new and deleted documents. Each batch is
        small enough to be read together (`READ_BYTES`).
        """
        batch: list[str] = []
        size = 0
        for at in range(0, len(names), _NAMES):
            compared = names[at : at + _NAMES]
            commands = []
            for named in map(DocumentName, compared):
                record, text = document_key(named, partition.tag), paragraphs_key(named, partition.tag)
                commands += [(record, ("HGET", record, "version")), (text, ("STRLEN", text))]
            replies = await self._shards.execute_many(commands)
            for name, version, length in zip(compared, replies[::2], replies[1::2], strict=True):
                known = partition.known.get(name)
                if known is not None and version is not None and known[0] == version.decode() and length == known[2]:
                    continue
                if known is None and version is None and not length:
                    continue
                if batch and (size + int(length) > READ_BYTES or len(batch) == _NAMES):
                    yield batch
                    batch, size = [], 0
                batch.append(name)
                size += int(length)
        if batch:
            yield batch

    async def _read(self, tag: str, names: Sequence[str]) -> dict[str, _ReadDocument]:
        """Return documents by name, each complete. Leave out documents that are deleted or unreadable. While the record
        of a document states a different version than its text has, read the document again, up to `_READ_ATTEMPTS`
        times. After that, return the document as it was read last.
        """
        found: dict[str, _ReadDocument] = {}
        left = list(names)
        for attempt in range(_READ_ATTEMPTS + 1):
            commands: list[tuple[str, tuple[Any, ...]]] = []
            for named in map(DocumentName, left):
                record, text = document_key(named, tag), paragraphs_key(named, tag)
                commands += [(record, ("HMGET", record, *_FIELDS)), (text, ("GET", text))]
            replies = await self._shards.execute_many(commands)
            mixed = []
            for name, values, raw in zip(left, replies[::2], replies[1::2], strict=True):
                if raw is None:
                    continue
                document = self._decode(name, values, raw)
                if document is None:
                    self.saved.unreadable[DocumentName(name).id] = None
                elif values[2] in (None, document[0]["version"].encode()) or attempt == _READ_ATTEMPTS:
                    # After the last attempt, the version in the record still differs from the version of the text. A
                    # plain SET has changed the text, and no worker has indexed the new text yet. The worker will write
                    # the version of the text to the record.
                    found[name] = document
                else:
                    mixed.append(name)
            left = mixed
            if not left:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        return found

    @staticmethod
    def _decode(name: str, record: Sequence[bytes | None], text: bytes) -> _ReadDocument | None:
        """Return a document from its record and its text; None if the document is unreadable.

        The version of the document is computed from its text and record, because the version that the record states can
        be outdated.
        """
        parsed = DocumentName(name)
        title, metadata, _, source = ((value or b"").decode("utf-8", "replace") for value in record)
        try:
            plain, about = text.decode(), json.loads(metadata or "{}")
            what = f"of document {parsed.id[:100]!r}"
            version = document_version(title, canonical_metadata(about, what), plain)
            if record[2] != version.encode():  # the text comes from a plain SET, so it has not been checked
                check_document_id(parsed.id)
                check_length(plain, what)
        except (ValueError, RequestError):
            return None
        line = {"id": parsed.id, "collection": parsed.collection, "title": title, "metadata": about, "text": plain}
        return {**line, "version": version, "source": source}, len(text)

    def _write(self, partition: _Partition, names: Iterable[str], read: dict[str, _ReadDocument]) -> None:
        if read and partition.writer is None:
            partition.writer = self._folder.lines(partition.name)
        for name in names:
            partition.forget(name)
            if name in read and partition.writer is not None:
                line, size = read[name]
                partition.known[name] = (line["version"], partition.writer.add(line), size)
