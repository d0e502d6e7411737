"""Stores documents in the cluster and waits until they are indexed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.clients.async_cluster_client import OnRefused
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.documents.stored import parse_record, read_record
from qa_cluster.errors import CannotWrite, ClusterError, DeadlineExceeded
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.types import Document, WriteResult

from ..nodes.connect import cluster_client
from ..nodes.polling import HEAVY_POLL_SECONDS
from ..terminal import console
from .inspection import inspect_cluster
from .writability import WRITE_REFUSED

_BATCH = 500


@dataclass
class StoredDocuments:
    """The result of storing documents: their ids, and the numbers of new, changed and unchanged documents.

    The source of a document is the text that `store` gets with it: a --prefix or, without a prefix, a PATH.

    Attributes:
        replaced: for each document that replaced a document of another source, the source of the replaced document;
            empty if it is unknown.
        failed: for each document that is stored but cannot be indexed, the reason.
        sources: the source of each document that is not stored yet.
    """

    ids: list[str] = field(default_factory=list)
    new: int = 0
    changed: int = 0
    unchanged: int = 0
    replaced: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def add(self, written: WriteResult) -> None:
        """Count a document that was stored. `written` is the reply of the cluster."""
        self.ids.append(written.id)
        self.new += written.created
        self.changed += written.changed and not written.created
        self.unchanged += not written.changed
        source = self.sources.pop(written.id, "")
        if written.changed and not written.created and written.source_before != source:
            self.replaced[written.id] = written.source_before

    def source_of(self, document: Document) -> str:
        """Return the source of a document that is not stored yet."""
        return self.sources.get(document.id, "")


def check_storable(settings: Settings) -> None:
    """Raise CannotWrite or ClusterError if documents cannot be stored and indexed.

    The error names the shards and the reasons. A shard that is down but has a replica is no error, because the replica
    will soon be promoted.
    """
    report = inspect_cluster(settings, settings.cluster_url)
    found = [
        f"shard {shard.address}: {text}"
        for shard in report.shards
        if shard.reachable or not shard.replicas
        for text in shard.obstacles
    ]
    if found:
        full = any(WRITE_REFUSED in text for text in found)
        raise (CannotWrite if full else ClusterError)(
            f"nothing was stored; {'; '.join(text.rstrip('.') for text in found)}; see `qa-cluster status`"
        )


def store(
    settings: Settings,
    documents: Iterable[tuple[str, Document]],
    *,
    collection: str = DEFAULT_COLLECTION,
    wait: bool = True,
    on_refused: OnRefused | None = None,
    bar: AbstractContextManager[Callable[[int], None]] | None = None,
) -> StoredDocuments:
    """Store documents. `documents` has pairs: the source of a document, and the document. With `wait`, wait until each
    stored document is indexed or has failed.

    Raises NotFound if the collection does not exist. A document that the cluster refuses is passed to `on_refused`;
    without `on_refused`, its error is raised. `bar` shows the number of stored documents; by default, it is a plain
    progress bar. The message of a KeyboardInterrupt says how many documents are stored.
    """
    stored = StoredDocuments()

    def with_noted_sources() -> Iterator[Document]:
        for source, document in documents:
            stored.sources[document.id] = source
            yield document

    try:
        shown = bar if bar is not None else console.progress("storing documents", None)
        with shown as advance, ClusterClient(settings) as client:
            client.collection(collection)
            client.put_documents(
                with_noted_sources(),
                collection=collection,
                on_progress=advance,
                on_written=stored.add,
                on_refused=on_refused,
                source_of=stored.source_of,
            )
        if wait and stored.ids:
            with console.progress("indexing on the shards", len(stored.ids)) as advance:
                stored.failed = wait_tokenized(settings, settings.cluster_url, stored.ids, advance, collection)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(
            f"{console.counted(len(stored.ids), 'document')} stored, and the shards will index them; repeat the command"
            " to store the rest, if any"
        ) from interrupt
    return stored


def wait_tokenized(
    settings: Settings,
    url: str,
    document_ids: Iterable[str],
    on_progress: Callable[[int], None],
    collection: str = DEFAULT_COLLECTION,
) -> dict[str, str]:
    """Wait until all documents in `document_ids` are indexed or have failed. Return the reasons of the failures, by the
    id of the document.

    A document that is deleted in the meantime is treated as indexed. `on_progress` receives the number of documents
    that are no longer pending.

    Raises:
        DeadlineExceeded: for `start_timeout_ms`, no document was indexed and none has failed.
    """
    failed: dict[str, str] = {}
    ids = list(dict.fromkeys(document_ids))
    patience = settings.start_timeout_ms / 1000
    with cluster_client(settings, url) as client:
        partitions = partitions_of(client)
        pending = {document_id: keys.partition_of(document_id, partitions) for document_id in ids}
        progressed = time.monotonic()
        while pending:
            indexed = _indexed(client, dict(list(pending.items())[:_BATCH]), collection)
            for document_id, failure in indexed.items():
                del pending[document_id]
                if failure:
                    failed[document_id] = failure
            on_progress(len(ids) - len(pending))
            if indexed:
                progressed = time.monotonic()
                continue
            if time.monotonic() - progressed > patience:
                raise DeadlineExceeded(
                    f"{console.counted(len(pending), 'document')} still pending, without progress for {patience:g} s"
                    f" (start_timeout_ms); the first is {next(iter(pending))!r}: see `qa-cluster status` and the server"
                    " logs"
                )
            time.sleep(HEAVY_POLL_SECONDS)
    return failed


def partitions_of(client: redis.RedisCluster) -> int:
    """Return the number of partitions of the cluster. Raises ClusterError if this number is not set, because the
    cluster is not set up.
    """
    partitions = int(client.get(keys.PARTITIONS_KEY) or 0)
    if not partitions:
        raise ClusterError(f"the cluster is not set up (no key {keys.PARTITIONS_KEY!r}): run `qa-cluster up`")
    return partitions


def send_all(client: redis.RedisCluster, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Send commands in one pipeline. Return the replies in the order of the commands. An error in a reply is raised."""
    open_pipeline: Callable[[], Any] = client.pipeline
    with open_pipeline() as pipeline:
        for words in commands:
            pipeline.execute_command(*words)
        return list(pipeline.execute())


def _indexed(client: redis.RedisCluster, pending: dict[str, str], collection: str) -> dict[str, str]:
    """Return the documents in `pending` that are no longer pending, each with the reason why it could not be indexed.

    The reason is empty if the document is indexed or deleted.
    """
    replies = send_all(
        client,
        (read_record(keys.DocumentName.of(document_id, collection), tag) for document_id, tag in pending.items()),
    )
    records = zip(pending, map(parse_record, replies), strict=True)
    return {
        document_id: "" if record is None else record.failure
        for document_id, record in records
        if record is None or record.tokenized or record.failure
    }
