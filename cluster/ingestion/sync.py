"""Finds and deletes the stored documents whose files are no longer in a folder.

A document is *gone* if its id has the prefix of the folder, this run of `qa-cluster ingest` did not store it, and its
file is missing, is left out, or has no text. The following documents stay, although this run did not store them,
because the next run may read their files:

- the document of a file that could not be read or stored,
- all documents of a folder that could not be listed,
- if a JSON file could not be read completely or a folder could not be listed: all documents of JSON files, because
  their ids do not name the file. The run then selects only documents with one of the other formats. This selection does
  not find the documents of `--raw` and the failed documents, so they stay, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.documents.folder_reading import Skip
from qa_cluster.documents.source_map import FIELD
from qa_cluster.documents.stored import check_document, parse_record, read_record
from qa_cluster.documents.unicode import name_of
from qa_cluster.errors import NotFound, VersionConflict
from qa_cluster.sources.extracted import NoText
from qa_cluster.sources.formats import FORMATS
from qa_cluster.types import Document, DocumentEntry

from ..nodes.connect import cluster_client
from ..provision.storing import StoredDocuments, partitions_of, send_all
from ..terminal import console

_T = TypeVar("_T")
_BATCH = 500
# Deleting more than 1/LARGE_PART of a collection needs a confirmation.
LARGE_PART = 10


@dataclass(frozen=True)
class Gone:
    """The documents that a run with `--sync` deletes.

    Attributes:
        documents: the documents that are gone.
        moved: the adopted documents (--adopt): this run has stored their files again, under ids with the prefix.
        total: the number of documents in the collection.
    """

    documents: Sequence[DocumentEntry]
    moved: Sequence[DocumentEntry]
    total: int

    @property
    def is_large(self) -> bool:
        """Whether more than a tenth of the documents of the collection are gone.

        Moved documents do not count, because they are not lost.
        """
        return len(self.documents) * LARGE_PART > self.total


class Uncertain:
    """The documents that this run did not store, but that may still be in the folder.

    `skips` are the files, documents and folders that this run could not read or store, and `prefix` is the prefix of
    all ids.

    Attributes:
        incomplete: a JSON file that was not read completely, or a folder that was not listed. Empty if everything was
            read.
        everything: whether the folder itself could not be listed, or has no documents. In both cases, no document is
            deleted.
    """

    def __init__(self, skips: Iterable[Skip], prefix: str) -> None:
        self._ids: set[str] = set()
        self._folders: list[str] = []
        self.incomplete = ""
        for skip in skips:
            if isinstance(skip.error, NoText):
                continue
            if skip.folder is not None:
                self._folders.append(f"{prefix}{name_of(skip.folder)}/" if skip.folder else prefix)
            if skip.document_id:
                self._ids.add(skip.document_id)
            else:
                self.incomplete = skip.where
        self.everything = prefix in self._folders

    def has(self, document_id: str) -> bool:
        """Return whether a document that this run did not store may still be in the folder."""
        return document_id in self._ids or document_id.startswith(tuple(self._folders))


def find_gone(  # noqa: PLR0917 - one step of one command
    settings: Settings,
    prefix: str,
    collection: str,
    stored: Collection[str],
    uncertain: Uncertain,
    adopted_folder: Path | None = None,
) -> Gone:
    """Return the documents of the folder that are gone. `stored` has the ids that this run has stored.

    With `adopted_folder`, also return the documents that were stored from this folder without the prefix: as `moved` if
    this run has stored them again with the prefix, otherwise as `documents`. Documents in `uncertain` are left out.
    """
    formats = f"{FIELD}.format={','.join(FORMATS)}" if uncertain.incomplete else ()
    with ClusterClient(settings) as client:

        def listed(chosen: str) -> Iterator[DocumentEntry]:
            yield from client.list_documents(prefix=chosen, collection=collection, filter=formats)
            if not formats:  # failed documents are not in an index, so a filter cannot select them
                yield from client.list_documents(prefix=chosen, collection=collection, failed=True)

        gone = [entry for entry in listed(prefix) if entry.id not in stored and not uncertain.has(entry.id)]
        moved: list[DocumentEntry] = []
        if adopted_folder is not None:
            others = [entry for entry in listed("") if not entry.id.startswith(prefix)]
            for entry, new_id in _adopted(settings, collection, others, prefix, adopted_folder, stored):
                if new_id in stored:
                    moved.append(entry)
                elif not uncertain.has(new_id):
                    gone.append(entry)
        total = client.count_documents(collection=collection).documents
    return Gone(gone, moved, total)


def _adopted(  # noqa: PLR0917 - one step of one command
    settings: Settings,
    collection: str,
    entries: Sequence[DocumentEntry],
    prefix: str,
    folder: Path,
    stored: Collection[str],
) -> Iterator[tuple[DocumentEntry, str]]:
    """Yield the documents that were stored from the folder without a prefix, each with its new id, which has the
    prefix.

    The record of a document has its source: the folder, or a path in the folder. A document without a source is
    included if this run has stored a document under the new id.
    """
    root = name_of(folder.resolve())

    def read_source(entry: DocumentEntry, tag: str) -> tuple[str, ...]:
        return "HGET", keys.document_key(keys.DocumentName.of(entry.id, collection), tag), "source"

    for entry, reply in _replies(settings, entries, lambda entry: entry.id, read_source):
        source = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply or "")
        if not source:
            if prefix + entry.id in stored:
                yield entry, prefix + entry.id
        elif source == root:
            yield entry, prefix + entry.id
        elif source.startswith(f"{root}/"):
            within = os.path.relpath(source, root)
            below = f"{prefix}{within}/{entry.id}"
            yield entry, below if below in stored or Path(within).name != entry.id else prefix + within


def delete(settings: Settings, gone: Sequence[DocumentEntry], collection: str) -> int:
    """Delete the documents in `gone`, and return the number of deleted documents.

    If a client has changed or deleted a document since `find_gone` listed the document, this function skips
    the document and prints a note that names the document.
    """
    deleted = 0
    with ClusterClient(settings) as client, console.progress("deleting documents", len(gone)) as advance:
        for number, entry in enumerate(gone, start=1):
            try:
                client.delete_document(entry.id, collection=collection, if_version=entry.version)
                deleted += 1
            except (NotFound, VersionConflict) as error:
                console.notice(f"not deleted: {error}")
            advance(number)
    return deleted


def compare(settings: Settings, documents: Iterable[tuple[str, Document]], collection: str) -> StoredDocuments:
    """Compare documents with the stored documents, and return how many are new, changed and unchanged. The first text
    in each pair, the source of the document, is not used. Nothing is stored.
    """
    with ClusterClient(settings) as client:
        client.collection(collection)
    found = StoredDocuments()
    versions = (
        check_document(document.id, document.text, document.title, document.metadata) for _, document in documents
    )
    checked = [(document.document_id, document.version) for document in versions]

    def read(entry: tuple[str, str], tag: str) -> tuple[Any, ...]:
        return read_record(keys.DocumentName.of(entry[0], collection), tag)

    for (document_id, version), reply in _replies(settings, checked, lambda entry: entry[0], read):
        record = parse_record(reply)
        found.ids.append(document_id)
        found.new += record is None
        found.changed += record is not None and record.version != version
        found.unchanged += record is not None and record.version == version
    return found


def _replies(
    settings: Settings, items: Sequence[_T], id_of: Callable[[_T], str], command: Callable[[_T, str], tuple[Any, ...]]
) -> Iterator[tuple[_T, Any]]:
    """Send a command for each item to the partition of the item's document. Yield each item with the reply, in order.
    `id_of` returns the id of the item's document, and `command` returns the command for an item and the partition's
    tag.
    """
    with cluster_client(settings, settings.cluster_url) as client:
        partitions = partitions_of(client)
        for start in range(0, len(items), _BATCH):
            part = items[start : start + _BATCH]
            commands = (command(item, keys.partition_of(id_of(item), partitions)) for item in part)
            yield from zip(part, send_all(client, commands), strict=True)
