"""A text ends each worker that indexes it. After two workers the document fails, and all other documents are indexed.

Before the fix, each new worker tried the text again: six workers ended in 80 seconds. Questions without a cached answer
got 504 until an administrator deleted the document.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qa_cluster import keys
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.provision.inspection import inspect_cluster
from qa_cluster.cluster.provision.preparing import prepare
from qa_cluster.cluster.provision.storing import wait_tokenized
from qa_cluster.config import Settings
from qa_cluster.documents.stored import DocumentFailed
from qa_cluster.errors import InvalidInput
from tests.harness.clusters import Cluster
from tests.harness.ending_worker import DIES, HOLDS
from tests.harness.figures import Figures
from tests.harness.polling import eventually
from tests.harness.programs import ROOT

from .running_shards import Shards, tag

pytestmark = pytest.mark.hostile

WORKER = f'"{sys.executable}" "{ROOT / "tests/harness/ending_worker.py"}"'
SECONDS = 60.0
# The module kills a worker whose interpreter is blocked for this time.
SILENCE_MS = 1500
MOST_ENDS = 2


@pytest.fixture(scope="module")
def trapped(shared_binary: Path) -> Iterator[Shards]:
    """One shard without a reader, whose worker ends at texts with the words of `ending_worker`."""
    settings = {"qa.worker-silence-ms": SILENCE_MS, "appendonly": "yes"}
    with Cluster(shared_binary, settings, worker=WORKER, size=1) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        shards = Shards(cluster)
        shards.set_up()
        yield shards


def failure(shards: Shards, name: str) -> str:
    record = shards.record(name)
    return "" if record is None else record.failure


def restarts(shards: Shards) -> int:
    (node,) = shards.nodes
    return node.field("worker_restarts")


def client_of(shards: Shards) -> ClusterClient:
    return ClusterClient(Settings(cluster_url=f"redis://127.0.0.1:{shards.nodes[0].port}"))


def test_a_document_fails_after_two_workers_while_questions_are_answered(trapped: Shards, figures: Figures) -> None:
    """A question waits at most for the next worker. All other documents are found."""
    trapped.load_reader()
    trapped.put("whales", "Herman Melville wrote Moby-Dick in 1851.")
    trapped.wait_tokenized("whales")
    name, waits, before = "while asked", [], restarts(trapped)
    others = [f"innocent {i}" for i in range(40)]
    with client_of(trapped) as client:
        assert client.ask("Who wrote Moby-Dick?", cache="refresh").answerable
        for other in others[:20]:
            trapped.put(other, f"The bird {other} sings at dawn.")
        trapped.put(name, f"A text with {HOLDS} in it.")
        for other in others[20:]:
            trapped.put(other, f"The bird {other} sings at dawn.")
        begun = time.monotonic()
        while failure(trapped, name) == "":
            assert time.monotonic() - begun < SECONDS
            asked = time.monotonic()
            found = client.ask("Who wrote Moby-Dick?", cache="refresh", timeout=SECONDS)
            waits.append(time.monotonic() - asked)
            assert found.best is not None and found.best.answer == "Herman Melville"
    figures.record_wait("time until the document fails", time.monotonic() - begun, 30)
    figures.record_wait("longest wait of a question meanwhile", max(waits), 20)
    trapped.wait_tokenized(*others)
    assert "silent for more than" in failure(trapped, name)
    figures.record("workers that a text ends", restarts(trapped) - before, "workers", MOST_ENDS)
    (node,) = trapped.nodes
    eventually(lambda: node.field("failed_documents") >= 1, SECONDS)
    eventually(lambda: f"document '{name}' is stored, but not indexed" in node.output(), SECONDS)


def test_a_failed_document_is_named_everywhere_until_it_is_written_again(trapped: Shards) -> None:
    name, text = "named", f"Another text with {DIES} in it."
    settings = Settings(cluster_url=f"redis://127.0.0.1:{trapped.nodes[0].port}")
    (node,) = trapped.nodes
    trapped.load_reader()
    with client_of(trapped) as client:
        with pytest.raises(DocumentFailed, match=r"'named' is stored, but not indexed: 2 workers ended.*it was killed"):
            client.put_document(name, text, timeout=SECONDS)
        listed = {entry.id: entry.failure for entry in client.list_documents(failed=True)}
        assert "2 workers ended" in listed[name]
        assert name not in {entry.id for entry in client.list_documents()}
        assert [entry.id for entry in client.list_documents(failed=True, prefix="nam")] == [name]
        assert client.count_documents(failed=True).documents == len(listed)
        pages, cursor = [], ""
        while cursor is not None:
            page = client.document_page(cursor, limit=1, failed=True)
            pages += [entry.id for entry in page.documents]
            cursor = page.next_cursor
        assert sorted(pages) == sorted(listed)
        with pytest.raises(InvalidInput, match="filters cannot select them"):
            client.count_documents(failed=True, filter="a=1")
        assert "2 workers ended" in client.get_document(name).failure
        assert client.count_documents(waiting=True).waiting == 0
        (shard,) = inspect_cluster(Settings(), settings.cluster_url).shards
        assert any(failed.startswith(f"{name}: 2 workers ended") for failed in shard.failed)
        made = prepare(settings, force=False, on_progress=lambda done, total: None)
        assert made.counts["failed"] == len(made.failures) == len(listed)
        assert [failed for failed in made.failures if failed.startswith(f"{name}: ") and "2 workers ended" in failed]

        before = restarts(trapped)
        node.signal_worker(9)
        eventually(lambda: restarts(trapped) == before + 1, SECONDS)
        node.wait_ready(SECONDS)
        trapped.put("after", "A text that is written later.")
        trapped.wait_tokenized("after")
        assert restarts(trapped) == before + 1
        assert list(wait_tokenized(Settings(), settings.cluster_url, [name, "after"], lambda done: None)) == [name]

        trapped.put(name, text)  # a write of the same text causes new attempts
        assert failure(trapped, name) == ""
        eventually(lambda: failure(trapped, name) != "", SECONDS)
        assert restarts(trapped) == before + 1 + MOST_ENDS
        client.put_document(name, "A harmless text.", timeout=SECONDS)
        assert name not in {entry.id for entry in client.list_documents(failed=True)}
        # the worker deletes the entry after it stored the tokens
        entry = keys.failures_key(tag(name)), keys.document_name(name)
        eventually(lambda: trapped.client.hget(*entry) is None, SECONDS)


def test_a_text_that_takes_too_long_to_be_split_fails_at_once(trapped: Shards) -> None:
    before = restarts(trapped)
    with client_of(trapped) as client:
        # the write succeeds, because the text is too short for the check of sentences; the worker refuses the text
        with pytest.raises(DocumentFailed, match=r"takes more than .* s of processor time to be split into sentences"):
            client.put_document("marks", "a!" * 5 + "!" * 90_000, timeout=SECONDS)
        client.delete_document("marks")
        assert "marks" not in {entry.id for entry in client.list_documents(failed=True)}
    assert restarts(trapped) == before
