"""A question with partial coverage does not wait for shards that cannot answer but are not detected as down."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.routing.readiness import HUNG_WORKER_MS, ReadyShards, ShardNotReady
from tests.client.engines import ask, opened, search
from tests.client.scripted_cluster import Node, ScriptedCluster, never, refusal
from tests.client.test_down import LONG_SECONDS, QUESTION, write_on
from tests.harness.polling import eventually_async

pytestmark = pytest.mark.hostile

PATIENCE_SECONDS = 0.3
WRITERS = ("Ada", "Bob", "Cyd")


@pytest.fixture
async def engine(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """An engine that never detects a shard as down, on a cluster with an answer on each shard."""
    for name in ("GRACE_SECONDS", "SILENCE_SECONDS"):
        monkeypatch.setattr(f"qa_cluster.asking.freshness.{name}", 600.0)
    async with opened(cluster, shard_patience_seconds=PATIENCE_SECONDS) as made:
        for node, writer in zip(cluster.nodes, WRITERS, strict=True):
            await write_on(made, node, f"{writer} wrote programs.")
        yield made


async def asked(engine: Engine, lost: Node, **options: Any) -> None:
    """Ask with partial coverage; check that the other shards answer and that the result names the lost shard."""
    others = {writer for writer, node in zip(WRITERS, nodes_of(lost), strict=True) if node is not lost}
    result = await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS, **options)
    assert {answer.answer for answer in result.answers} == others
    assert (result.index.partial, result.index.missing) == (True, (f"127.0.0.1:{lost.port}",))
    assert result.cache.ttl_s == 0


def nodes_of(node: Node) -> list[Node]:
    return node.cluster.nodes


@contextmanager
def worker(node: Node, state: list[str], **times_ms: Sequence[int]) -> Iterator[None]:
    """Make a node report this worker state, and these times since events of the worker."""
    usual = node.own_reply

    def reply(command: list[bytes]) -> Any:
        async def info() -> bytes:
            lines = ["# qa_worker", f"qa_worker_state:{state[0]}"]
            lines += [f"qa_worker_{name}_ms:{ms[0]}" for name, ms in times_ms.items()]
            return "\r\n".join([*lines, ""]).encode()

        return info if command[:2] == [b"INFO", b"qa_worker"] else usual(command)

    node.own_reply = reply  # type: ignore[method-assign]
    try:
        yield
    finally:
        del node.own_reply  # type: ignore[attr-defined]


async def test_a_killed_server_is_left_out_at_once(cluster: ScriptedCluster, engine: Engine) -> None:
    lost = cluster.nodes[1]
    lost.cut()
    try:
        begun = time.monotonic()
        await asked(engine, lost)
        assert (await search(engine, "wrote programs", coverage="partial", timeout=LONG_SECONDS)).index.partial
        assert time.monotonic() - begun < LONG_SECONDS
        assert not engine.shards.down
    finally:
        await lost.listen()
    await eventually_async(lambda: not engine.shards.not_ready)
    await eventually_async(engine.freshness.drained)
    assert not (await ask(engine, QUESTION, coverage="partial")).index.partial


async def test_a_question_waits_for_a_server_that_replies_late(cluster: ScriptedCluster, engine: Engine) -> None:
    """On a busy host all servers reply late. Late replies must not change the answer."""
    late, usual = cluster.nodes[1], cluster.nodes[1].own_reply

    def later(command: list[bytes]) -> Any:
        found = usual(command)

        async def reply() -> Any:
            await asyncio.sleep(2 * PATIENCE_SECONDS)
            return await found()

        return found and reply

    late.own_reply = later  # type: ignore[method-assign]
    try:
        result = await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS)
        assert ({answer.answer for answer in result.answers}, result.index.partial) == (set(WRITERS), False)
    finally:
        del late.own_reply  # type: ignore[attr-defined]


async def test_a_request_never_leaves_out_all_shards(cluster: ScriptedCluster, engine: Engine) -> None:
    """If all shards fail one after the other, the engine retries: an answer from no shard would be wrong."""
    failed: set[Node] = set()

    async def read(node: Node, arguments: list[str]) -> Any:
        if len(failed) < len(cluster.nodes) and node not in failed:
            failed.add(node)
            return await refusal("NOWORKER no worker is ready")(node, arguments)
        return await cluster.read(node, arguments)

    cluster.triggers["qa.read"] = read
    result = await ask(engine, QUESTION, coverage="partial", cache="off", timeout=LONG_SECONDS)
    assert result.answers
    assert result.index.shards_answered > 0


async def test_a_shard_with_a_starting_worker_is_left_out_only_of_readings(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    lost, state = cluster.nodes[1], ["ready"]

    async def read(node: Node, arguments: list[str]) -> Any:
        if node is lost and state[0] != "ready":
            return await never(node, arguments)
        return await cluster.read(node, arguments)

    cluster.triggers["qa.read"] = read
    with worker(lost, state):
        state[0] = "starting"
        for _ in range(2):
            await asyncio.wait_for(asked(engine, lost, cache="off"), LONG_SECONDS / 2)
        # the engine knows the shard's state now, so it ranks once, and reads once on each other shard
        rankings, readings = engine.rankings, cluster.count("qa.read")
        await asked(engine, lost, cache="off")
        assert (engine.rankings - rankings, cluster.count("qa.read") - readings) == (1, 2)
        await write_on(engine, cluster.nodes[0], "Owls hunt mice.")
        result = await ask(engine, "What hunts mice?", coverage="partial", timeout=LONG_SECONDS)
        assert ([answer.answer for answer in result.answers], result.index.partial) == (["Owls"], False)
        # a search needs no worker
        assert not (await search(engine, "wrote programs", coverage="partial", timeout=LONG_SECONDS)).index.partial
        # a question with full coverage waits for the worker
        whole = asyncio.create_task(ask(engine, QUESTION, cache="off", timeout=LONG_SECONDS))
        await asyncio.sleep(3 * PATIENCE_SECONDS)
        assert not whole.done()
        whole.cancel()
        state[0] = "ready"
        await eventually_async(lambda: not engine.shards.readiness.workers)
        assert not (await ask(engine, QUESTION, coverage="partial", cache="off")).index.partial


@pytest.mark.parametrize("text", ["NOWORKER no worker is ready", "WORKERLOST worker died twice on this job"])
async def test_the_errors_of_a_shard_without_a_worker_do_not_reach_the_client(
    cluster: ScriptedCluster, engine: Engine, text: str
) -> None:
    lost = cluster.nodes[1]

    async def read(node: Node, arguments: list[str]) -> Any:
        return await (refusal(text) if node is lost else cluster.read)(node, arguments)

    cluster.triggers["qa.read"] = read
    await asked(engine, lost)


async def test_a_question_waits_for_a_slow_worker(cluster: ScriptedCluster, engine: Engine) -> None:
    """The server reports a ready worker, so the question waits for its slow job."""

    async def read(node: Node, arguments: list[str]) -> Any:
        await asyncio.sleep(4 * PATIENCE_SECONDS)
        return await cluster.read(node, arguments)

    cluster.triggers["qa.read"] = read
    result = await ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS)
    assert ({answer.answer for answer in result.answers}, result.index.partial) == (set(WRITERS), False)


@pytest.mark.parametrize(
    ("name", "limit_ms"),
    [("silence", HUNG_WORKER_MS), ("inactive", int(PATIENCE_SECONDS * 1000 * 2 / 3)), ("loop_silence", HUNG_WORKER_MS)],
)
async def test_a_hung_worker_is_left_out_until_it_works(
    cluster: ScriptedCluster, engine: Engine, name: str, limit_ms: int
) -> None:
    lost, times_ms = cluster.nodes[1], [limit_ms - 1]

    async def read(node: Node, arguments: list[str]) -> Any:
        return await (never if node is lost and times_ms[0] else cluster.read)(node, arguments)

    cluster.triggers["qa.read"] = read
    silence_ms = [limit_ms] if name == "inactive" else [0]
    with worker(lost, ["ready"], **{"silence": silence_ms, name: times_ms}):
        question = asyncio.create_task(asked(engine, lost, cache="off"))
        await asyncio.sleep(4 * PATIENCE_SECONDS)
        assert not question.done()  # a busy worker may be this late
        times_ms[0] += 1
        await asyncio.wait_for(question, LONG_SECONDS / 2)
        times_ms[0] = 0
        await eventually_async(lambda: not engine.shards.readiness.workers)
        assert not (await ask(engine, QUESTION, coverage="partial", cache="off")).index.partial


async def test_a_server_that_was_ready_a_moment_ago_is_left_out_at_once(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    """The question does not retry with the shard, although the shard replied to a probe just before."""
    lost = cluster.nodes[1]
    arrived = asyncio.Event()

    async def rank(node: Node, arguments: list[str]) -> Any:
        if node is lost:
            arrived.set()
            return await never(node, arguments)
        return await cluster.rank(node, arguments)

    cluster.triggers["rank"] = rank
    question = asyncio.create_task(asked(engine, lost))
    await arrived.wait()
    await engine.shards.readiness.probe([shard.address for shard in engine.shards.all])
    before = engine.shards.redirects["ConnectionLost"]
    lost.cut()
    try:
        await asyncio.wait_for(question, LONG_SECONDS / 2)
        assert engine.shards.redirects["ConnectionLost"] == before
    finally:
        await lost.listen()


async def test_a_question_that_waits_learns_at_once_that_a_shard_cannot_answer(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    """The question does not wait for its own next probe."""
    lost, readiness = cluster.nodes[1], ReadyShards(engine.shards._shared, patience_seconds=3 * LONG_SECONDS)
    address = next(shard.address for shard in engine.shards.all if shard.address.port == lost.port)
    work = asyncio.Event()
    waiting = asyncio.create_task(readiness.patiently(work.wait(), [address]))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    readiness.mark_hung(address, "its process is stopped", loop.time())
    with pytest.raises(ShardNotReady, match="its process is stopped"):
        await asyncio.wait_for(waiting, LONG_SECONDS / 2)
    await readiness.aclose()


async def test_a_hung_server_is_left_out_until_it_replies(cluster: ScriptedCluster, engine: Engine) -> None:
    lost = cluster.nodes[1]
    os.kill(lost.server.pid, signal.SIGSTOP)
    try:
        await asyncio.wait_for(asked(engine, lost, cache="off"), LONG_SECONDS / 2)
        assert (await search(engine, "wrote programs", coverage="partial", timeout=LONG_SECONDS)).index.partial
        assert not engine.shards.down
    finally:
        os.kill(lost.server.pid, signal.SIGCONT)
    await eventually_async(lambda: not engine.shards.not_ready)
    assert not (await ask(engine, QUESTION, coverage="partial", cache="off")).index.partial


async def test_a_service_with_a_blocked_event_loop_leaves_out_no_server(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    """The service does not count its own blocked event loop as a delay of the servers."""
    marked: list[Any] = []
    usual = engine.shards.readiness.mark_hung
    engine.shards.readiness.mark_hung = lambda *about: (marked.append(about), usual(*about))[1]  # type: ignore[method-assign]
    for node in cluster.nodes:
        os.kill(node.server.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(0.3)  # the probes are in flight
        time.sleep(2.0)  # the event loop is blocked
    finally:
        for node in cluster.nodes:
            os.kill(node.server.pid, signal.SIGCONT)
    await eventually_async(engine.freshness.drained)
    assert not marked
    assert not (await ask(engine, QUESTION, coverage="partial", cache="off")).index.partial


async def test_a_question_waits_if_no_worker_is_ready(cluster: ScriptedCluster, engine: Engine) -> None:
    states = [["starting"], ["starting"], ["starting"]]

    async def read(node: Node, arguments: list[str]) -> Any:
        if states[cluster.nodes.index(node)][0] != "ready":
            return await never(node, arguments)
        return await cluster.read(node, arguments)

    cluster.triggers["qa.read"] = read
    with worker(cluster.nodes[0], states[0]), worker(cluster.nodes[1], states[1]), worker(cluster.nodes[2], states[2]):
        question = asyncio.create_task(ask(engine, QUESTION, coverage="partial", timeout=LONG_SECONDS))
        await asyncio.sleep(4 * PATIENCE_SECONDS)
        assert not question.done()
        for state in states:
            state[0] = "ready"
        assert (await asyncio.wait_for(question, LONG_SECONDS / 2)).answers
