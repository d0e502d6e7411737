"""Stores documents in the cluster and waits until the shards have split, tokenized and indexed them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.cluster_client import ClusterClient
from qa_cluster.config import Settings
from qa_cluster.documents import parse_record, read_record
from qa_cluster.errors import ClusterError, DeadlineExceeded
from qa_cluster.types import Document

from ..nodes.connect import cluster_client
from ..nodes.polling import HEAVY_POLL_SECONDS
from ..terminal import console

_BATCH = 500


def store(settings: Settings, documents: Iterable[Document], *, wait: bool = True) -> int:
    """Store documents and, with `wait`, wait until they are tokenized; returns how many.

    A KeyboardInterrupt says what is stored by then.
    """
    ids: list[str] = []
    stored = 0

    def noted() -> Iterator[Document]:
        for document in documents:
            ids.append(document.id)
            yield document

    try:
        with console.progress("storing documents", None) as advance, ClusterClient(settings) as client:

            def count(done: int) -> None:
                nonlocal stored
                stored = done
                advance(done)

            client.put_documents(noted(), on_progress=count)
        if wait and ids:
            with console.progress("tokenizing on the shards", len(ids)) as advance:
                wait_tokenized(settings, settings.cluster_url, ids, advance)
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(
            f"{console.counted(stored, 'document')} stored, which stay and are tokenized by the shards;"
            " repeat the command to store the rest, if any"
        ) from interrupt
    return len(ids)


def wait_tokenized(
    settings: Settings, url: str, document_ids: Iterable[str], on_progress: Callable[[int], None]
) -> None:
    """Wait until answers can come from each document; DeadlineExceeded when nothing has moved for a while.

    A document that is deleted meanwhile is done. `on_progress` gets how many are.
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
                    f"{len(waiting)} documents are not tokenized and nothing has moved for {patience:g} s, the first is"
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
