"""Rankings: the index commands, events between the two pipelines of commands, and errors after refusals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

from qa_cluster.asking.engine import Engine
from qa_cluster.errors import ClusterError, DeadlineExceeded, MissingRights, QAError, QueueFull, ReplyError
from qa_cluster.keys import epoch_key, layout_key, partition_of, partition_tags
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.topology import Address
from tests.client.engines import ask, opened, ranked, search, write
from tests.client.scripted_cluster import Node, ScriptedCluster
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async

QUERY = "wrote programs"
Pipelines = Mapping[Address, Sequence[tuple[Any, ...]]]


def answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, change: Callable[[int, list[list[Any]]], None]
) -> list[int]:
    """Let `change` alter the replies to each pipeline of rankings. Return a list of the pipelines' numbers, from 1."""
    ask_all = engine.shards.execute_pipelines
    numbers: list[int] = []

    async def asked(commands: Pipelines, **options: bool) -> list[list[Any]]:
        replies = await ask_all(commands, **options)
        numbers.append(len(numbers) + 1)
        change(numbers[-1], replies)
        return replies

    monkeypatch.setattr(engine.shards, "execute_pipelines", asked)
    return numbers


@contextmanager
def frozen(node: Node) -> Iterator[None]:
    os.kill(node.server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.server.pid, signal.SIGCONT)


async def test_the_best_of_the_whole_corpus_are_found_for_every_distribution(engine: Engine) -> None:
    """One shard has nearly all sentences with a term, so local term weights would give a wrong ranking."""
    tags = partition_tags(PARTITIONS)
    chance = random.Random(5)
    names = iter(range(10**6))

    async def put(word: str, shards: range, count: int) -> None:
        for _ in range(count):
            while tags.index(partition_of(name := f"n{next(names)}", PARTITIONS)) // 4 not in shards:
                pass
            filler = " ".join(f"filler{chance.randrange(30)}" for _ in range(chance.randrange(1, 9)))
            await engine.documents.put(name, f"{word} {filler}.", wait=False)

    await put("alpha", range(1), 40)
    await put("beta", range(1, 3), 40)
    await put("alpha beta", range(3), 6)
    await engine.documents.put("last", "Nothing.")
    every = (await ranked(engine, "alpha beta filler3", 500)).candidates
    assert len(every) >= 86
    for count in (1, 2, 5, 8, 20, 60):
        best = (await ranked(engine, "alpha beta filler3", count)).candidates
        assert best == every[:count], "sentences with equal scores are always in the same order"
    assert engine.rankings == 7


async def test_equal_scores_are_in_the_order_of_writing(engine: Engine) -> None:
    """The order of ids is irrelevant. A changed document counts as the last written one."""
    tag = partition_tags(PARTITIONS)[3]
    names = [name for name in (f"n{n}" for n in range(400)) if partition_of(name, PARTITIONS) == tag][:6]
    written = [*names[3:], *names[:3]]
    for name in written:
        await engine.documents.put(name, "Ada wrote programs. Bob wrote programs.")
    await engine.documents.put(written[0], "Ada wrote programs. Bob wrote programs. ")
    order = [f"{name}:{{{tag}}}:{number}" for name in (*written[1:], written[0]) for number in (0, 1)]
    for count in (1, 4, 7, 50):
        found = (await ranked(engine, QUERY, count)).candidates
        assert [item.sentence for item in found] == order[:count]


REFUSED: tuple[tuple[str, type[QAError], str], ...] = (
    ("ERR unknown command", ClusterError, "shard .* cannot rank, it refused {command} {key}: ERR unknown"),
    ("WRONGTYPE other", ClusterError, "shard .* cannot rank, it refused {command} {key}: WRONGTYPE other"),
    (
        "NOPERM this user has no permissions",
        MissingRights,
        "user may not rank: shard .* refused {command} {key}: NOPERM .*Grant it .*[+]qa.index.rank .*%R~index:",
    ),
    ("OVERLOADED queue is full", QueueFull, "queue is full"),
)


async def test_a_permanent_error_is_raised_with_the_refused_command(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for (text, error, said), (number, command) in product(REFUSED, ((1, "QA.INDEX.STATS"), (2, "QA.INDEX.RANK"))):

        def refuse(now: int, replies: list[list[Any]], number: int = number, text: str = text) -> None:
            if now == number:
                replies[1][1] = ReplyError(text)

        with monkeypatch.context() as patch:
            numbers = answered(engine, patch, refuse)
            with pytest.raises(error, match=said.format(command=command, key="index:.*")):
                await search(engine, QUERY)
        assert (numbers, engine.rankings) == (list(range(1, number + 1)), 0)


async def test_a_reply_in_another_form_is_an_error_of_the_cluster(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(engine, "Ada wrote programs.")
    for number, reply in ((1, None), (1, [1]), (2, None), (2, [1, 2, [3], [[b"x"]], [1, 2], [1]])):

        def alter(now: int, replies: list[list[Any]], number: int = number, reply: object = reply) -> None:
            if now == number:
                replies[0][1] = reply

        with monkeypatch.context() as patch:
            answered(engine, patch, alter)
            with pytest.raises(ClusterError, match="shard's replies to a ranking cannot be read"):
                await search(engine, QUERY)


@pytest.mark.parametrize("analyzer", ["of another version", None])
async def test_terms_of_another_analyzer_are_ranked_and_their_answers_are_not_cached(
    cluster: ScriptedCluster, engine: Engine, caplog: pytest.LogCaptureFixture, analyzer: str | None
) -> None:
    await write(engine, "Ada wrote programs.")
    here = partition_of("doc 0", PARTITIONS)
    empty = next(tag for tag in partition_tags(PARTITIONS) if tag != here)
    for tag, cached in ((empty, True), (here, False)):  # an empty partition has no terms
        await cluster.at(layout_key(tag), "DEL", layout_key(tag))
        if analyzer is not None:
            await cluster.at(layout_key(tag), "HSET", layout_key(tag), "analyzer", analyzer)
        for _ in range(2):
            result = await ask(engine, f"Who wrote {tag} programs?", cache="refresh")
            assert (result.answerable, result.cache.ttl_s > 0) == (True, cached)
    said = [record.message for record in caplog.records if "their answers are not cached" in record.message]
    assert len(said) == 1 and f"terms of 1 partitions have a different version ({here} has terms of " in said[0]
    await cluster.at(layout_key(here), "HSET", layout_key(here), "analyzer", ANALYZER_VERSION)
    assert (await ask(engine, "Who wrote programs?")).cache.ttl_s > 0


async def test_a_long_filter_reaches_every_partition(engine: Engine) -> None:
    await write(engine, "Ada wrote programs.", "Bob wrote programs.")
    for others in (3, 10, 99):
        result = await search(engine, QUERY, doc_id=("doc 1", *("x" * 500 + str(number) for number in range(others))))
        assert [hit.document_id for hit in result.hits] == ["doc 1"]


async def test_the_epochs_are_read_before_the_ranking(
    cluster: ScriptedCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search later compares these epochs, so that it detects a write between the two pipelines."""
    await write(engine, "Ada wrote programs.")
    before = (await ranked(engine, QUERY, 8)).epochs
    tag = partition_of("doc 0", PARTITIONS)
    ask_all = engine.shards.execute_pipelines

    async def asked(commands: Pipelines, **options: bool) -> list[list[Any]]:
        replies = await ask_all(commands, **options)
        await cluster.at(epoch_key(tag), "INCR", epoch_key(tag))
        return replies

    monkeypatch.setattr(engine.shards, "execute_pipelines", asked)
    assert (await ranked(engine, QUERY, 8)).epochs == before
    monkeypatch.undo()
    assert (await ranked(engine, QUERY, 8)).epochs == before | {tag: before[tag] + 2}


async def test_transient_errors_are_retried(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(engine, "Ada wrote programs.")
    owner = engine.shards.all[0].address
    texts = ("TRYAGAIN a slot moves", f"MOVED 5 {owner}", f"ASK 5 {owner}", "LOADING data", "lost")
    for text, number in product(texts, (1, 2)):

        def refuse(now: int, replies: list[list[Any]], number: int = number, text: str = text) -> None:
            if now == number:
                if text == "lost":
                    raise ConnectionLost("connection was lost")
                replies[2][-1] = ReplyError(text)

        before = engine.rankings
        with monkeypatch.context() as patch:
            numbers = answered(engine, patch, refuse)
            assert len((await search(engine, QUERY)).hits) == 1
        assert (numbers, engine.rankings) == (list(range(1, number + 3)), before + 1)


async def test_a_silent_server_costs_the_deadline_but_no_connection(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.")
    with frozen(cluster.nodes[1]):
        with pytest.raises(DeadlineExceeded):
            await search(engine, QUERY, timeout=0.3)
        assert all(engine.shards.pool(shard.address).in_use == 0 for shard in engine.shards.all)
    assert len((await search(engine, QUERY)).hits) == 1


async def test_rankings_at_a_shard_are_limited_and_pending_ones_complete(cluster: ScriptedCluster) -> None:
    async with opened(cluster, connections_per_shard=2, max_waiting_per_shard=2) as engine:
        await write(engine, "Ada wrote programs.")
        node = cluster.nodes[1]
        pools = map(engine.shards.pool, (shard.address for shard in engine.shards.all))
        pool = next(each for each in pools if each.address.port == node.port)
        with frozen(node):
            asked = [asyncio.create_task(ranked(engine, QUERY, count)) for count in range(1, 5)]
            await eventually_async(lambda: pool._waiting == 2)
            with pytest.raises(QueueFull, match="2 questions are running on shard"):
                await ranked(engine, QUERY, 8)
        assert [len(ranking.candidates) for ranking in await asyncio.gather(*asked)] == [1] * 4


async def test_a_pipeline_beyond_the_limit_of_a_connection_is_sent_in_parts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qa_cluster.routing.shards.MAX_PENDING", 5)
    await write(engine, *[f"Person{number} wrote programs." for number in range(20)])
    assert len((await search(engine, QUERY, top_k=20)).hits) == 20


async def test_a_question_waits_for_a_partition_without_owner(
    cluster: ScriptedCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(engine, "Ada wrote programs.")
    before = engine.shards.redirects.total()

    def refuse(number: int, replies: list[list[Any]]) -> None:
        replies[0][0] = ReplyError("CLUSTERDOWN Hash slot not served")

    answered(engine, monkeypatch, refuse)

    async def refused() -> bool:
        """Whether a question reached a shard before its timeout."""
        with pytest.raises(DeadlineExceeded):
            await ask(engine, "Who wrote programs?", timeout=0.3)
        return engine.shards.redirects.total() > before

    await eventually_async(refused)
    assert engine.rankings == 0
    with pytest.raises(ClusterError):
        await engine.shards.retrying(lambda: ranked(engine, QUERY, 8), 0.2)
