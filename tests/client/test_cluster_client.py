"""The clients that ask the cluster directly."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from qa_cluster import client as public
from qa_cluster.asking.document_store import MAX_PENDING_BYTES
from qa_cluster.client import (
    AsyncClusterClient,
    ClusterClient,
    Document,
    DocumentCounts,
    InvalidInput,
    NotFound,
    VersionConflict,
)
from qa_cluster.clients import client_thread
from qa_cluster.errors import ClusterError, ConfigError, DeadlineExceeded
from qa_cluster.keys import partition_of, pending_key
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async


def test_public_names_are_sorted_and_exist() -> None:
    assert list(public.__all__) == sorted(public.__all__)
    assert all(hasattr(public, name) for name in public.__all__)


async def test_the_synchronous_client_has_all_calls(cluster: ScriptedCluster) -> None:
    def work() -> None:
        with ClusterClient(cluster.url) as client:
            written = client.put_document("a", "Ada wrote it.", "Title", {"year": 1})
            assert written.created and written.tokenized
            assert client.ask("Who wrote it?").answers[0].answer == "Ada"
            assert [hit.text for hit in client.search("wrote", doc_id="a").hits] == ["Ada wrote it."]
            with pytest.raises(InvalidInput, match="colour"):
                client.search("wrote", colour=1)
            assert client.get_document("a") == Document(
                "a", "Ada wrote it.", "Title", {"year": 1}, written.version, 1, True
            )
            with pytest.raises(VersionConflict):
                client.put_document("a", "x", if_version="0" * 16)
            with pytest.raises(InvalidInput):
                client.ask("")
            assert client.delete_document("a", if_version=written.version) == written.version
            with pytest.raises(NotFound):
                client.delete_document("a")
            status = client.status()
            assert (len(status.shards), status.partitions, status.model_id) == (3, 12, "scripted")
        with pytest.raises(ClusterError, match="not open"):
            client.ask("Who?")

    await asyncio.to_thread(work)


async def test_many_documents_with_progress_until_a_bad_document(cluster: ScriptedCluster) -> None:
    seen: list[int] = []

    def documents() -> Iterator[Document]:
        for number in range(40):
            yield Document(f"doc {number}", f"Person{number} wrote book{number}.")

    async with AsyncClusterClient(cluster.url) as client:
        assert await client.put_documents(documents(), concurrency=4, on_progress=seen.append, wait=True) == 40
        assert seen == list(range(1, 41))
        assert (await client.ask("Who wrote book17?")).answers[0].answer == "Person17"
        assert sorted([entry.id async for entry in client.list_documents()]) == sorted(f"doc {n}" for n in range(40))
        assert await client.count_documents(waiting=True) == DocumentCounts(40, 40, 0)
        with pytest.raises(InvalidInput, match="document id"):
            await client.put_documents([Document("a", "x."), Document("", "y.")], concurrency=1)
        assert (await client.get_document("a")).text == "x."
        with pytest.raises(InvalidInput, match="concurrency"):
            await client.put_documents([], concurrency=0)


async def test_a_bulk_write_waits_for_slow_shards(cluster: ScriptedCluster) -> None:
    """The writer waits while a partition has a large backlog, and fails if the backlog does not shrink."""
    tag = partition_of("doc 0", PARTITIONS)
    documents = [Document("doc 0", "One."), Document("doc 1", "Two.")]
    async with AsyncClusterClient(cluster.url) as client:
        shards = client.engine.documents._shards
        key = pending_key(tag)
        await shards.execute(key, "HSET", key, "", MAX_PENDING_BYTES + 100)
        seen: list[int] = []
        writing = asyncio.create_task(
            client.put_documents(documents, concurrency=1, on_progress=seen.append, timeout=60)
        )
        await eventually_async(lambda: seen == [1])
        await asyncio.sleep(0.2)
        assert (seen, writing.done()) == ([1], False)
        await shards.execute(key, "DEL", key)
        assert await writing == 2
        await shards.execute(key, "HSET", key, "", 10**6)
        with pytest.raises(DeadlineExceeded, match="bytes of pending texts"):
            await client.put_documents([Document("doc 0", "Three")], timeout=2)


async def test_opening_and_closing_leaks_no_thread(cluster: ScriptedCluster) -> None:
    def work() -> None:
        before = threading.active_count()
        for _ in range(2):
            with ClusterClient(cluster.url):
                assert threading.active_count() > before
        assert threading.active_count() == before

    await asyncio.to_thread(work)


@pytest.mark.parametrize("url", ["", "http://x", "redis://", "redis://h:x", "127.0.0.1:7000"])
def test_a_wrong_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="cluster_url"):
        ClusterClient(url)


async def test_an_unreachable_cluster_is_a_cluster_error() -> None:
    def work() -> None:
        with pytest.raises(ClusterError, match="cannot connect"):
            ClusterClient("redis://127.0.0.1:1").open()

    await asyncio.to_thread(work)


async def test_closing_ends_every_task_and_waits_for_it(cluster: ScriptedCluster) -> None:
    ended: list[str] = []

    async def forever(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.append(name)

    async def left_behind() -> None:
        tasks = [asyncio.create_task(forever("cancelled by its caller")), asyncio.create_task(forever("forgotten"))]
        await asyncio.sleep(0)
        tasks[0].cancel()
        background.update(tasks)

    background: set[asyncio.Task[None]] = set()

    def work() -> None:
        with ClusterClient(cluster.url) as client:
            assert client._loop is not None
            asyncio.run_coroutine_threadsafe(left_behind(), client._loop).result(60)

    await asyncio.to_thread(work)
    assert ended == ["cancelled by its caller", "forgotten"]


async def test_closing_does_not_wait_for_a_task_whose_time_limit_passes(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task has a time limit that repeatedly cancels the task's own work."""
    monkeypatch.setattr(client_thread, "CLOSE_SECONDS", 60.0)

    async def ticking() -> None:
        while True:
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                continue

    async def begin() -> None:
        background.update(asyncio.create_task(ticking()) for _ in range(20))

    background: set[asyncio.Task[None]] = set()

    def work() -> None:
        with ClusterClient(cluster.url) as client:
            assert client._loop is not None
            asyncio.run_coroutine_threadsafe(begin(), client._loop).result(60)

    await asyncio.to_thread(work)
    assert all(task.cancelled() for task in background)


def test_an_interrupted_open_prints_no_errors() -> None:
    code = (
        "import sys; from qa_cluster.client import ClusterClient\n"
        "print('opening', flush=True)\n"
        "try: ClusterClient(sys.argv[1]).open()\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-c", code, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
