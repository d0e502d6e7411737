"""A start looks at every document only if something may have been left undone, and then it always does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from qa_cluster import keys
from qa_cluster.hashtags import hashtag_for_slot
from qa_cluster.shard_functions import TEXT_KEYS, missing_functions
from tests.harness.clusters import Cluster
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import WORKER

from .running_shards import SECONDS, Shards, tag

MARK = keys.checked_key(hashtag_for_slot(0))
DOCUMENTS = 60


@pytest.fixture(scope="module")
def lone(shared_binary: Path) -> Iterator[Shards]:
    """One shard, whose data outlive a kill; with documents, and no reader."""
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with Cluster(shared_binary, settings, worker=WORKER, size=1) as cluster:
        cluster.nodes[0].wait_ready(60)
        shards = Shards(cluster)
        shards.set_up()
        for number in range(DOCUMENTS):
            shards.put(f"d{number}", f"Person{number} wrote book {number}.")
        yield shards


def mark(shards: Shards) -> str | None:
    found = shards.on(shards.nodes[0], "QA.MARK.GET", MARK)
    return None if found is None else str(found)


def wait_checked(shards: Shards) -> None:
    eventually(lambda: (mark(shards) or "checking") != "checking", SECONDS, ignore=redis.RedisError)


def looked_at(server: Server) -> int:
    """Documents that were looked at since the server started: each costs one of these commands."""
    return int(server.info("commandstats").get("cmdstat_strlen", {"calls": 0})["calls"])


def set_text(shards: Shards, name: str, text: str | bytes) -> None:
    shards.client.set(keys.paragraphs_key(name, tag(name)), text)


def crash(shards: Shards, *, stopped_worker: int = 0) -> None:
    """Ends the server at once, and starts it again on its data."""
    server = shards.nodes[0]
    server.stop(signal.SIGKILL)
    if stopped_worker:
        os.kill(stopped_worker, signal.SIGKILL)
    server.start()
    server.wait_ready(60)
    shards.client = server.client()
    eventually(lambda: shards.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", SECONDS)


@pytest.mark.parametrize("whole", [False, True], ids=["the worker", "the server"])
def test_a_start_with_the_mark_looks_at_no_document(lone: Shards, whole: bool) -> None:
    server = lone.nodes[0]
    wait_checked(lone)
    before = looked_at(server)
    if whole:
        crash(lone)
        before = 0
    else:
        server.signal_worker(signal.SIGKILL)
        server.wait_ready(60)
    assert mark(lone) not in (None, "checking")
    set_text(lone, "after the start", "Quaggas were striped.")
    lone.wait_tokenized("after the start")
    wait_checked(lone)  # so nothing is under way any more
    assert looked_at(server) - before < DOCUMENTS // 2


def test_a_change_just_before_a_crash_is_found(lone: Shards) -> None:
    """Its event is lost with the server; that there was one is not."""
    set_text(lone, "removed", "Moas could not fly.")
    lone.wait_tokenized("removed")
    wait_checked(lone)
    stopped = lone.nodes[0].signal_worker(signal.SIGSTOP)
    set_text(lone, "d1", "Thylacines had pouches.")
    lone.client.delete(keys.paragraphs_key("removed", tag("removed")))
    assert mark(lone) is None
    crash(lone, stopped_worker=stopped)
    eventually(lambda: "d1" in lone.ranked_documents("thylacines"), SECONDS, ignore=redis.RedisError)
    eventually(lambda: lone.record("removed") is None, SECONDS)
    wait_checked(lone)
    assert looked_at(lone.nodes[0]) >= DOCUMENTS


def test_a_change_while_nobody_listens_is_found(lone: Shards) -> None:
    """No mark is set while the function is gone; its return looks at all documents."""
    wait_checked(lone)
    node = lone.nodes[0]
    [own] = [row[1] for row in lone.on(node, "RG.DUMPREGISTRATIONS") if not missing_functions([row], [TEXT_KEYS])]
    assert lone.on(node, "RG.UNREGISTER", own) == "OK"
    set_text(lone, "d2", "Dugongs graze.")
    assert mark(lone) is None
    assert lone.register("UPGRADE") == "OK"
    eventually(lambda: "d2" in lone.ranked_documents("dugongs"), SECONDS)
    wait_checked(lone)


def test_a_text_that_cannot_be_read_does_not_keep_the_mark_away(lone: Shards) -> None:
    wait_checked(lone)
    set_text(lone, "broken", b"\xff\xfe broken")
    assert mark(lone) is None
    wait_checked(lone)
    crash(lone)
    set_text(lone, "broken", b"\xff\xfe broken again")
    lone.nodes[0].signal_worker(signal.SIGKILL)
    lone.nodes[0].wait_ready(60)
    wait_checked(lone)
    lone.client.delete(keys.paragraphs_key("broken", tag("broken")))


def test_other_partitions_are_another_mark(lone: Shards) -> None:
    wait_checked(lone)
    before = mark(lone)
    lone.client.set(keys.PARTITIONS_KEY, 8)
    try:
        eventually(lambda: mark(lone) not in (None, "checking", before), SECONDS)
    finally:
        lone.client.set(keys.PARTITIONS_KEY, 12)
    eventually(lambda: mark(lone) == before, SECONDS)
