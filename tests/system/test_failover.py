"""Servers that stop, restart, resynchronize or die lose no data, and a promoted replica answers on its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import pytest

from qa_cluster import keys
from qa_cluster.keys import SentenceRef
from tests.functions.running_shards import PARTITIONS, tag
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .load import FACTS, Load
from .replicated import Replicated

SCRIPT = "def twice(tensors: List[Tensor], keys: List[str], args: List[str]):\n    return tensors[0] * 2\n"


@pytest.fixture(scope="module")
def shards(replicas: Replicated) -> Replicated:
    Load(replicas.url).store_facts()
    store_scripts(replicas)
    return replicas


def store_scripts(shards: Replicated) -> None:
    """Store a TorchScript on every shard if the workers' environment has torch."""
    if find_spec("torch") is not None:
        for partition in keys.partition_tags(PARTITIONS):
            node, _ = shards.pair_of_slot(keys.slot(partition))
            words = ("AI.SCRIPTSTORE", f"script:{{{partition}}}", "CPU", "ENTRY_POINTS", 1, "twice", "SOURCE", SCRIPT)
            shards.on(node, *words)
        shards.in_sync()


def kept(shards: Replicated, server: Server) -> dict[str, object]:
    """All data that the server must not lose, read from the server."""
    view: dict[str, object] = {}
    with server.client(decode_responses=False) as client:
        client.execute_command("READONLY")
        view["functions"] = sorted(row[5] for row in client.execute_command("RG.DUMPREGISTRATIONS"))
        view["models"] = [
            (name, client.execute_command("AI.MODELGET", name, "META", "BLOB"))
            for name in sorted(row[0] for row in client.execute_command("AI._MODELSCAN"))
        ]
        view["scripts"] = [
            (name, client.execute_command("AI.SCRIPTGET", name))
            for name in sorted(row[0] for row in client.execute_command("AI._SCRIPTSCAN"))
        ]
        names = sorted(name for name in client.scan_iter(count=1000) if not name.startswith(b"epoch:"))
        view["names"] = names
        view["places"] = [client.get(name) for name in names if name.startswith(b"places:")]
        view["answers"] = [client.getrange(name, 0, -1) for name in names if name.startswith(b"bertqa{")]
    assert view["functions"]
    assert view["models"]
    assert view["places"]
    return view


def cached_answer(shards: Replicated, document_id: str) -> None:
    """Cache an answer of a document's sentence on its shard."""
    assert shards.ask(document_id, 0, FACTS[document_id][1]) is not None


def answers(shards: Replicated) -> None:
    """Check that every question has the same answer as before, from the reader and not from a cache."""
    Load(shards.url).store_facts()


def rewrite(shards: Replicated, primary: Server, preamble: str) -> None:
    """Rewrite the append-only file with an RDB file (`preamble`) or with commands."""
    shards.on(primary, "CONFIG", "SET", "aof-use-rdb-preamble", preamble)
    done = primary.info("persistence")["aof_rewrites"]
    shards.on(primary, "BGREWRITEAOF")
    eventually(lambda: primary.info("persistence")["aof_rewrites"] > done)
    eventually(lambda: primary.info("persistence")["aof_rewrite_in_progress"] == 0)
    assert primary.info("persistence")["aof_last_bgrewrite_status"] == "ok"


@pytest.mark.parametrize(
    "how",
    [
        "reload",
        pytest.param("rewrite", marks=pytest.mark.cluster),
        pytest.param("rewrite as commands", marks=pytest.mark.cluster),
        pytest.param("restart", marks=pytest.mark.cluster),
    ],
)
def test_a_primary_loses_nothing(shards: Replicated, how: str) -> None:
    cached_answer(shards, "nile")
    primary, _ = shards.pair_of("nile")
    before = kept(shards, primary)
    if how == "reload":
        shards.on(primary, "DEBUG", "RELOAD")
    else:
        if how.startswith("rewrite"):
            rewrite(shards, primary, "no" if how == "rewrite as commands" else "yes")
        # the restart is faster than the detection of a dead server
        primary.stop()
        primary.start()
        shards.whole()
        primary, _ = shards.pair_of("nile")
    eventually(lambda: kept(shards, primary) == before)
    shards.whole()
    answers(shards)


@pytest.mark.cluster
def test_a_replica_that_was_down_gets_all_data_in_a_full_synchronization(shards: Replicated) -> None:
    primary, replica = shards.pair_of("gold")
    replica.stop(signal.SIGKILL)
    fulls = primary.info("stats")["sync_full"]
    with primary.client() as client:
        mine = next(t for t in keys.partition_tags(PARTITIONS) if shards.pair_of_slot(keys.slot(t))[0] is primary)
        for number in range(40):
            client.set(f"filler:{{{mine}}}:{number}", "x" * 1000)
    cached_answer(shards, "gold")
    replica.start()
    shards.whole()
    assert primary.info("stats")["sync_full"] > fulls
    with primary.client() as client:
        client.delete(*(f"filler:{{{mine}}}:{number}" for number in range(40)))
    shards.in_sync()
    assert kept(shards, replica) == kept(shards, primary)


def measured_failover(shards: Replicated, document_id: str, act: Callable[[Server, Server], object]) -> Load:
    """Ask and write while `act` makes the replica take over; check that the replica loads no model."""
    primary, replica = shards.pair_of(document_id)
    shards.in_sync()
    load = Load(shards.url)
    load.store_facts()
    warm = all_loaded(replica)
    with load.running(partial(load.ask, "off"), partial(load.ask, "off"), load.write):
        eventually(lambda: len(load.seen.right) > 30)
        begun = time.monotonic()
        act(primary, replica)
        eventually(lambda: shards.role(replica) == "master")
        promoted = time.monotonic()
        eventually(lambda: any(sent > promoted and of == document_id for sent, _, of in load.seen.right))
        answered = len(load.seen.right)
        eventually(lambda: len(load.seen.right) > answered + 30)
        ended = time.monotonic()
    on_shard = {name for name in FACTS if shards.pair_of(name)[0] is replica}
    gap = load.seen.longest_gap(on_shard, begun, ended)
    print(
        f"\npromoted after {promoted - begun:.2f} s, longest time without a right answer from that shard {gap:.2f} s,"
        f" errors {len(load.seen.errors)}, wrong {len(load.seen.wrong)}, writes acknowledged {len(load.seen.stored)}"
    )
    assert loaded(replica) == warm
    return load


def loaded(server: Server) -> int:
    """The number of models and scripts that the server's worker has loaded so far."""
    return server.log.read_text(errors="replace").count("is loaded")


def all_loaded(server: Server, seconds: float = 2) -> int:
    """Wait until the number of `loaded` is stable for `seconds`, and return the number.

    A restarted server also loads models that its primary sends after the sync.
    """
    count, since = loaded(server), time.monotonic()

    def unchanged() -> bool:
        nonlocal count, since
        if loaded(server) != count:
            count, since = loaded(server), time.monotonic()
        return time.monotonic() - since > seconds

    eventually(unchanged)
    return count


def test_a_killed_primary_is_replaced_by_a_warm_replica(shards: Replicated) -> None:
    primary, _ = shards.pair_of("moon")
    load = measured_failover(shards, "moon", lambda p, _: p.stop(signal.SIGKILL))
    lost = load.lost_writes()
    print(f"acknowledged writes lost: {len(lost)} of {len(load.seen.stored)}")
    assert not load.seen.wrong
    assert len(lost) <= 1 + len(load.seen.stored) // 20
    primary.start()
    shards.whole()
    assert shards.role(primary) == "slave"
    answers(shards)


@pytest.mark.cluster
def test_a_manual_failover_loses_nothing(shards: Replicated) -> None:
    load = measured_failover(shards, "honey", lambda _, r: shards.on(r, "CLUSTER", "FAILOVER"))
    assert not load.seen.wrong
    assert not load.seen.errors
    assert load.lost_writes() == []
    shards.whole()
    tagged = SentenceRef("honey", tag("honey"), 0)
    assert shards.client.get(keys.answer_key(tagged, "Who is it that makes honey?"))
