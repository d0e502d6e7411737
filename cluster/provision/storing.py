"""Stores documents in the cluster, waits until the shards have indexed them, and removes those gone from a source."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.asking.document_store import VersionConflict
from qa_cluster.cluster_client import ClusterClient, OnRefused
from qa_cluster.config import Settings
from qa_cluster.documents import parse_record, read_record
from qa_cluster.errors import ClusterError, DeadlineExceeded, NotFound
from qa_cluster.types import Document, WriteResult

from ..nodes.connect import cluster_client
from ..nodes.polling import HEAVY_POLL_SECONDS
from ..terminal import console

_BATCH = 500


@dataclass
class Stored:
    """The ids of stored documents, and how many of them were new, changed or unchanged."""

    ids: list[str] = field(default_factory=list)
    new: int = 0
    changed: int = 0
    unchanged: int = 0

    def add(self, written: WriteResult) -> None:
        """Add one stored document."""
        self.ids.append(written.id)
        self.new += written.created
        self.changed += written.changed and not written.created
        self.unchanged += not written.changed


def store(
    settings: Settings, documents: Iterable[Document], *, wait: bool = True, on_refused: OnRefused | None = None
) -> Stored:
    """Store documents and, with `wait`, wait until questions find them.

    A document that the cluster refuses is passed to `on_refused`; without that, the first one ends it. The message of a
    KeyboardInterrupt says how much is stored by then.
    """
    stored = Stored()
    try:
        with console.progress("storing documents", None) as advance, ClusterClient(settings) as client:
            client.put_documents(documents, on_progress=advance, on_written=stored.add, on_refused=on_refused)
        if wait and stored.ids:
            with console.progress("indexing on the shards", len(stored.ids)) as advance:
                wait_tokenized(settings, settings.cluster_url, stored.ids, advance)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(
            f"{console.counted(len(stored.ids), 'document')} stored; they stay, and the shards index them;"
            " repeat the command to store the rest, if any"
        ) from interrupt
    return stored


def remove_gone(settings: Settings, prefix: str, present: Collection[str]) -> int:
    """Remove the documents whose ids begin with `prefix` and are not in `present`; return how many.

    It lists all documents before it removes any, and does not remove those written since.
    """
    removed = 0
    with ClusterClient(settings) as client:
        listed = client.list_documents(prefix=prefix)
        gone = [entry for entry in listed if entry.id not in present]
        with console.progress("removing documents", len(gone)) as advance:
            for number, entry in enumerate(gone, start=1):
                try:
                    client.delete_document(entry.id, if_version=entry.version)
                    removed += 1
                except (NotFound, VersionConflict) as error:
                    console.notice(f"not removed: {error}")
                advance(number)
    return removed


def wait_tokenized(
    settings: Settings, url: str, document_ids: Iterable[str], on_progress: Callable[[int], None]
) -> None:
    """Wait until answers can come from each document; DeadlineExceeded if there is no progress for a while.

    A document that is deleted meanwhile counts as done. `on_progress` gets the number that are done.
    """
    ids = list(dict.fromkeys(document_ids))
    patience = settings.start_timeout_ms / 1000
    with cluster_client(settings, url) as client:
        partitions = int(client.get(keys.PARTITIONS_KEY) or 0)
        if not partitions:
            raise ClusterError(f"the cluster is not set up (no key {keys.PARTITIONS_KEY!r}): run `qa-cluster up`")
        waiting = {document_id: keys.partition_of(document_id, partitions) for document_id in ids}
        moved = time.monotonic()
        while waiting:
            done = _done(client, dict(list(waiting.items())[:_BATCH]))
            for document_id in done:
                del waiting[document_id]
            on_progress(len(ids) - len(waiting))
            if done:
                moved = time.monotonic()
                continue
            if time.monotonic() - moved > patience:
                raise DeadlineExceeded(
                    f"{len(waiting)} documents are not indexed and nothing has moved for {patience:g} s, the first is"
                    f" {next(iter(waiting))!r}: see `qa-cluster status` and the servers' logs"
                )
            time.sleep(HEAVY_POLL_SECONDS)


def _done(client: redis.RedisCluster, waiting: dict[str, str]) -> list[str]:
    open_pipeline: Callable[[], Any] = client.pipeline
    with open_pipeline() as pipeline:
        for document_id, tag in waiting.items():
            pipeline.execute_command(*read_record(document_id, tag))
        replies = pipeline.execute()
    records = zip(waiting, map(parse_record, replies), strict=True)
    return [document_id for document_id, record in records if record is None or record.tokenized]
