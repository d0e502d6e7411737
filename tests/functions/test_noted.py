"""Stock clients change texts while no worker gets the events. The worker indexes them later, without a full scan.

Redis 7.0 cannot write change notes. There, the worker scans all documents after every sweep.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import redis

from qa_cluster import keys
from tests.harness.clusters import Cluster, meet
from tests.harness.polling import eventually
from tests.harness.processes import resume
from tests.harness.programs import chosen_servers, find_binary
from tests.harness.servers import Server
from tests.harness.workers import FEW_TOKENS, WORKER

from .running_shards import PARTITIONS, SECONDS, Shards, tag
from .test_moved_partition import begun_move, move

DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "qa.max-batch-tokens": FEW_TOKENS,
    "qa.max-events": 200,
    "qa.worker-silence-ms": 600_000,  # the module must not replace a stopped worker
    # the server counts the accesses of each key: a new key has UNREAD, the first access adds 1, counts do not decay
    "maxmemory-policy": "allkeys-lfu",
    "lfu-decay-time": 0,
}
UNREAD = 5
KNOWN = [f"known {number}" for number in range(300)]


class Corpus(Shards):
    """Shards with documents that do not change. Audit scans have covered all of them."""

    noting: bool

    def of(self, node: Server, prefix: str) -> str:
        """The id of a document whose partition this node has."""
        names = (f"{prefix} {number}" for number in range(1000))
        return next(name for name in names if self.node_of(keys.paragraphs_key(name, tag(name))) is node)

    def tag_of(self, name: str) -> str:
        """The tag of a document, from its id or its name."""
        return tag(keys.document_name(name).id)

    def write(self, name: str, text: str) -> None:
        """A plain SET, as stock clients do it."""
        self.client.set(keys.paragraphs_key(name, self.tag_of(name)), text)

    def accesses(self, node: Server) -> dict[str, int]:
        """The number of times that a server has read the text of each unchanged document."""
        found = {}
        with node.client() as client:
            for name in KNOWN:
                with suppress(redis.ResponseError):  # a document of another shard
                    found[name] = client.object("FREQ", keys.paragraphs_key(name, tag(name)))
        return {name: int(count) for name, count in found.items() if count is not None}

    def scanned(self, node: Server, before: dict[str, int]) -> bool:
        """Whether the worker has scanned the documents since `before`. A scan also reads the unchanged documents.

        It counts documents instead of reads, because the worker may read a partition with a change several times.
        """
        read = [count > before.get(name, UNREAD) for name, count in self.accesses(node).items()]
        return sum(read) > len(read) / 2

    def checks(self, node: Server) -> int:
        """The number of partitions that audit scans have completed, from the log."""
        return node.log.read_text(errors="replace").count("from now on, their changes are noted")

    def wait_idle(self, node: Server) -> None:
        """Wait until no document is pending and, if the server notes changes, all partitions are marked."""

        def is_idle() -> bool:
            with node.client() as client:
                waiting = [name for name in client.keys("pending:*") if name]
                marked = [" " in (client.hget(name, "layout") or "") for name in client.keys("layout:*")]
            return not waiting and len(marked) == PARTITIONS // len(self.nodes) and all(marked) == self.noting

        eventually(is_idle, SECONDS)


@pytest.fixture(scope="module", params=chosen_servers())
def corpus(request: pytest.FixtureRequest) -> Iterator[Corpus]:
    binary = find_binary(request.param)
    if binary is None:
        pytest.skip(f"no {request.param} server on this machine")
    with Cluster(binary, DURABLE, worker=WORKER, size=2) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        made = Corpus(cluster)
        made.noting = made.nodes[0].field("text_notes") == "on"
        made.set_up()
        for name in KNOWN:
            made.put(name, f"The {name} is a bird.")
        made.wait_tokenized(*KNOWN)
        yield made


@contextmanager
def stopped_worker(node: Server) -> Iterator[None]:
    """Stop the worker, so that it gets no event."""
    pid = node.signal_worker(signal.SIGSTOP)
    try:
        yield
    finally:
        resume(pid)


def kill(node: Server) -> None:
    node.stop(signal.SIGKILL)


def assert_scanned(corpus: Corpus, node: Server, before: dict[str, int], checks: int) -> None:
    """Check that only a server without change notes has scanned; `before` and `checks` are earlier counts."""
    if corpus.noting:
        assert not corpus.scanned(node, before)
        assert corpus.checks(node) == checks
    else:
        eventually(lambda: corpus.scanned(node, before), SECONDS)


def test_changes_that_died_with_server_and_worker_are_found(corpus: Corpus) -> None:
    node = corpus.nodes[0]
    new, gone, changed = corpus.of(node, "new"), corpus.of(node, "known"), corpus.of(node, "changed")
    never = corpus.of(node, "never")
    untagged, older = (
        next(n for n in names if corpus.node_of(f"paragraphs:{n}") is node)
        for names in ([f"stock {n}" for n in range(100)], [f"older {n}" for n in range(100)])
    )
    corpus.put(older, "Newer words.")
    corpus.put(changed, "Old words.")
    corpus.wait_tokenized(changed)
    corpus.wait_idle(node)
    checks = corpus.checks(node)
    with stopped_worker(node):
        corpus.write(new, "Narwhals have tusks.")
        corpus.write(changed, "Quokkas smile.")
        corpus.write(never, "Nobody sees this.")
        corpus.client.delete(keys.paragraphs_key(never, tag(never)))
        corpus.client.delete(keys.paragraphs_key(gone, tag(gone)))
        corpus.client.set(f"paragraphs:{older}", "Aardvarks dig.")
        corpus.client.set(f"paragraphs:{untagged}", "Belugas are white.")
        assert not [name for name in corpus.on(node, "KEYS", "pending:*") if "{}" in str(name) or "paragraphs" in name]
        kill(node)
    node.start()
    node.wait_ready()
    eventually(lambda: corpus.ranked_documents("narwhals") == [new], SECONDS, ignore=redis.RedisError)
    eventually(lambda: corpus.ranked_documents("quokkas") == [changed], SECONDS)
    eventually(lambda: corpus.record(gone) is None, SECONDS)
    eventually(lambda: corpus.ranked_documents("belugas") == [untagged], SECONDS)
    corpus.wait_idle(node)
    # the worker cannot know which text is newer, so the document stays
    assert corpus.client.get(keys.paragraphs_key(older, tag(older))) == "Newer words."
    assert_scanned(corpus, node, {}, checks)
    corpus.put(gone, f"The {gone} is a bird.")


def test_a_text_that_cannot_be_indexed_is_not_pending(corpus: Corpus) -> None:
    """Otherwise a restore would wait for the document, and each sweep would retry it. The text is not changed."""
    node = corpus.nodes[0]
    names = [corpus.of(node, prefix) for prefix in ("raw", "long" * 130, "list", "homeless", "book")]
    raw, long, listed, homeless, book = names
    corpus.put(listed, "Old words.")
    corpus.wait_tokenized(listed)
    corpus.wait_idle(node)

    def write() -> None:
        corpus.client.set(keys.paragraphs_key(raw, tag(raw)), b"\xff")
        corpus.write(long, "Nobody has so long a name.")
        corpus.client.delete(keys.paragraphs_key(listed, tag(listed)))
        corpus.client.rpush(keys.paragraphs_key(listed, tag(listed)), "x")
        corpus.write(keys.DocumentName.of(homeless, "nowhere"), "No collection has this.")
        # a long document is stored in parts
        words = " ".join(f"word{number}." for number in range(40_000))
        corpus.write(keys.DocumentName.of(book, "nowhere"), words)

    write()
    corpus.wait_idle(node)
    assert corpus.record(listed) is None
    with stopped_worker(node):
        write()
        kill(node)
    node.start()
    node.wait_ready()
    eventually(lambda: bool(corpus.client.exists(keys.layout_key(tag(raw)))), SECONDS, ignore=redis.RedisError)
    corpus.wait_idle(node)
    for name in (raw, long, listed, keys.DocumentName.of(homeless, "nowhere"), keys.DocumentName.of(book, "nowhere")):
        assert corpus.client.unlink(keys.paragraphs_key(name, corpus.tag_of(name))) == 1


def test_a_full_queue_of_events_loses_nothing(corpus: Corpus) -> None:
    node = corpus.nodes[0]
    names = [name for name in (f"burst {n}" for n in range(900)) if keys.slot(tag(name)) < keys.SLOTS // 2]
    corpus.wait_idle(node)
    dropped, checks, before = node.field("events_dropped"), corpus.checks(node), corpus.accesses(node)
    with stopped_worker(node):
        pipeline = corpus.client.pipeline()
        for name in names:
            pipeline.set(keys.paragraphs_key(name, tag(name)), f"Zebra {name} grazes.")
        pipeline.execute()
        assert node.field("events_dropped") > dropped
    corpus.wait_tokenized(*names)
    corpus.wait_idle(node)
    if corpus.noting:
        assert corpus.checks(node) == checks
        assert not corpus.scanned(node, before)
    for name in names:
        corpus.delete(name)


def test_a_corpus_without_marks_is_scanned_once(corpus: Corpus) -> None:
    node = corpus.nodes[1]
    new = corpus.of(node, "earlier")
    corpus.wait_idle(node)
    with stopped_worker(node):
        corpus.write(new, "Okapis have striped legs.")
        # the state after a server and a worker without change notes
        corpus.client.delete(keys.pending_key(tag(new)))
        corpus.client.hset(keys.layout_key(tag(new)), "layout", "2")
        checks = corpus.checks(node)
        kill(node)
    node.start()
    node.wait_ready()
    eventually(lambda: corpus.ranked_documents("okapis") == [new], SECONDS, ignore=redis.RedisError)
    corpus.wait_idle(node)
    if corpus.noting:
        assert corpus.checks(node) == checks + 1
    node.restart()
    node.wait_ready()
    # once this change is found, the sweep of the new worker has ended
    other = corpus.of(node, "later")
    with stopped_worker(node):
        corpus.write(other, "Tapirs swim.")
        kill(node)
    node.start()
    node.wait_ready()
    eventually(lambda: corpus.ranked_documents("tapirs") == [other], SECONDS, ignore=redis.RedisError)
    corpus.wait_idle(node)
    assert_scanned(corpus, node, {}, checks + corpus.noting)


def test_a_failed_audit_scan_leaves_its_partition_without_a_mark(corpus: Corpus) -> None:
    if not corpus.noting:
        pytest.skip("no partition has a mark")
    node = corpus.nodes[1]
    name = corpus.of(node, "blocked")
    index = keys.index_key(tag(name), "blocked")
    corpus.wait_idle(node)
    corpus.client.hset(keys.collections_key(tag(name)), "blocked", "ready")
    corpus.client.set(index, "no index")
    with stopped_worker(node):
        key = keys.paragraphs_key(keys.DocumentName.of(name, "blocked"), tag(name))
        corpus.client.set(key, "Olms live in caves.")
        corpus.client.delete(keys.pending_key(tag(name)))
        others = [key for key in corpus.on(node, "KEYS", "layout:*") if key != keys.layout_key(tag(name))]
        for layout in (*others, keys.layout_key(tag(name))):
            corpus.client.hset(layout, "layout", "2")
        # a key of the wrong type, which does not prevent the mark of its partition
        listed = keys.paragraphs_key("listed", others[0][len("layout:{") : -1])
        corpus.client.rpush(listed, "x")
        kill(node)
    node.start()
    node.wait_ready()
    eventually(
        lambda: all(" " in corpus.client.hget(key, "layout") for key in others), SECONDS, ignore=redis.RedisError
    )
    assert "WRONGTYPE" in node.log.read_text(errors="replace")
    assert corpus.client.hget(keys.layout_key(tag(name)), "layout") == "2"
    corpus.client.delete(listed)
    corpus.client.delete(index)
    corpus.register("UPGRADE")
    corpus.wait_idle(node)
    assert corpus.client.hget(keys.document_key(keys.DocumentName.of(name, "blocked"), tag(name)), "tokenized")
    corpus.client.delete(key)
    corpus.client.hdel(keys.collections_key(tag(name)), "blocked")


def test_a_change_during_a_cancelled_migration_is_found(corpus: Corpus) -> None:
    """The module cannot note a change in a migrating slot. After the migration, a scan covers the whole partition."""
    source, target = corpus.nodes
    name = corpus.of(source, "halfway")
    slot = keys.slot(tag(name))
    corpus.put(name, "Old words.")
    corpus.wait_tokenized(name)
    corpus.wait_idle(source)
    for node, state, other in ((target, "IMPORTING", source), (source, "MIGRATING", target)):
        corpus.on(node, "CLUSTER", "SETSLOT", slot, state, corpus.on(other, "CLUSTER", "MYID"))
    layout = keys.layout_key(tag(name))
    eventually(lambda: corpus.client.hget(layout, "layout") == "2", SECONDS)  # no text has changed
    corpus.write(name, "Axolotls regrow their legs.")
    eventually(lambda: corpus.on(source, "RG.DUMPREGISTRATIONS") and source.field("queued_events") == 0, SECONDS)
    for node in (source, target):
        corpus.on(node, "CLUSTER", "SETSLOT", slot, "STABLE")
    eventually(lambda: corpus.ranked_documents("axolotls") == [name], SECONDS, ignore=redis.RedisError)
    corpus.wait_idle(source)


def ranked_anywhere(corpus: Corpus, question: str) -> list[str]:
    """The documents that a question finds, after slots have moved to other nodes."""
    corpus.client.nodes_manager.initialize()
    return corpus.ranked_documents(question)


def test_notes_move_with_their_slot(corpus: Corpus) -> None:
    source, target = corpus.nodes
    name = corpus.of(source, "nomad")
    slot = keys.slot(tag(name))
    corpus.wait_idle(source)
    with stopped_worker(source), stopped_worker(target):
        corpus.write(name, "Wombats dig burrows.")
        begun_move(corpus, slot, source, target)
        kill(target)
    target.start()
    target.wait_ready()
    corpus.on(target, "CLUSTER", "SETSLOT", slot, "NODE", corpus.on(target, "CLUSTER", "MYID"))
    corpus.on(source, "CLUSTER", "SETSLOT", slot, "NODE", corpus.on(target, "CLUSTER", "MYID"))
    eventually(lambda: ranked_anywhere(corpus, "wombats") == [name], SECONDS, ignore=redis.RedisError)
    shard = corpus.on(target, "CLUSTER", "MYSHARDID") if corpus.noting else ""
    eventually(lambda: corpus.client.hget(keys.layout_key(tag(name)), "layout") == f"2 {shard}".strip(), SECONDS)
    move(corpus, slot, target, source)
    corpus.wait_idle(source)


def test_a_promoted_replica_indexes_changes_that_the_primary_missed(corpus: Corpus) -> None:
    primary = corpus.nodes[0]
    new, gone = corpus.of(primary, "promoted"), corpus.of(primary, "known")
    settings = {**DURABLE, "cluster-enabled": "yes", "cluster-node-timeout": 5000}
    with Server(primary.binary, settings, worker=WORKER) as replica:
        meet(replica, primary)
        words = ("CLUSTER", "REPLICATE", corpus.on(primary, "CLUSTER", "MYID"))
        eventually(lambda: corpus.on(replica, *words), SECONDS, ignore=redis.ResponseError)
        eventually(lambda: replica.info("replication").get("master_link_status") == "up")
        # Only the primary can announce its replica to the other node, which ignores unknown nodes.
        eventually(lambda: corpus.on(corpus.nodes[1], "CLUSTER", "REPLICAS", words[2]))
        replica.wait_ready()
        corpus.wait_idle(primary)
        with stopped_worker(primary):
            corpus.write(new, "Numbats eat termites.")
            corpus.client.delete(keys.paragraphs_key(gone, tag(gone)))
            eventually(lambda: corpus.on(primary, "DEBUG", "DIGEST") == corpus.on(replica, "DEBUG", "DIGEST"), SECONDS)
            kill(primary)
        before = corpus.accesses(replica)
        eventually(lambda: corpus.on(replica, "CLUSTER", "FAILOVER", "TAKEOVER"), SECONDS, ignore=redis.ResponseError)
        corpus.nodes = [replica, *corpus.nodes[1:]]  # the fixture still stops the old primary
        eventually(lambda: ranked_anywhere(corpus, "numbats") == [new], SECONDS, ignore=redis.RedisError)
        eventually(lambda: corpus.record(gone) is None, SECONDS, ignore=redis.RedisError)
        corpus.wait_idle(replica)
        assert_scanned(corpus, replica, before, 0)
