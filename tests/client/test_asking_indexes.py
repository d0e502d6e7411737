"""Rankings for which a process asks the indexes itself, and what makes it leave them to the shards' workers."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from qa_cluster.asking import searcher
from qa_cluster.asking.engine import Engine
from qa_cluster.errors import ClusterError, DeadlineExceeded, QueueFull, ReplyError
from qa_cluster.keys import PARTITIONS_KEY, epoch_key, layout_key, partition_of, partition_tags
from qa_cluster.ranking.bm25 import Candidate
from qa_cluster.routing.connection import ConnectionLost
from qa_cluster.topology import Address
from tests.client.engines import ask, noticed, opened, search, write
from tests.client.scripted_cluster import Node, ScriptedCluster
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async

QUERY = "wrote programs"
Pipelines = Mapping[Address, Sequence[tuple[Any, ...]]]


def answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, change: Callable[[int, list[list[Any]]], None]
) -> list[int]:
    """Lets `change` alter the replies to the pipelines of rankings, by their number from 1; the numbers so far."""
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


async def test_the_best_of_the_whole_corpus_are_found_whatever_a_shard_holds(engine: Engine) -> None:
    """One shard has nearly all sentences with a term, so that by its own numbers another term would be the rare one."""
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
    every = (await engine._ranker.rank("alpha beta filler3", 500)).candidates
    assert len(every) >= 86
    for count in (1, 2, 5, 8, 20, 60):
        best = (await engine._ranker.rank("alpha beta filler3", count)).candidates
        assert best == every[:count], "equal scores have one order"
    assert engine.rankings == {"indexes": 7, "triggers": 0}


async def test_the_workers_of_all_shards_would_have_found_the_same(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, *[f"Person{n} wrote {'many ' * (n % 5)}programs." for n in range(40)])
    own = await engine._ranker.rank(QUERY, 100)
    engine._ranker._use_triggers("to compare")
    assert own == await engine._ranker.rank(QUERY, 100)
    assert (engine.rankings["triggers"], cluster.count("qa.rank"), len(own.candidates)) == (1, 3, 40)


async def test_equal_scores_are_in_the_order_of_writing_by_both_ways(engine: Engine) -> None:
    """Whatever the ids are; a document that is changed is written last."""
    tag = partition_tags(PARTITIONS)[3]
    names = [name for name in (f"n{n}" for n in range(400)) if partition_of(name, PARTITIONS) == tag][:6]
    written = [*names[3:], *names[:3]]
    for name in written:
        await engine.documents.put(name, "Ada wrote programs. Bob wrote programs.")
    await engine.documents.put(written[0], "Ada wrote programs. Bob wrote programs. ")
    order = [f"{name}:{{{tag}}}:{number}" for name in (*written[1:], written[0]) for number in (0, 1)]
    for _ in range(2):
        for count in (1, 4, 7, 50):
            found = (await engine._ranker.rank(QUERY, count)).candidates
            assert [item.sentence for item in found] == order[:count]
        engine._ranker._use_triggers("to compare")
    assert engine.rankings == {"indexes": 4, "triggers": 4}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "text", ["ERR unknown command", "NOPERM this user has no permissions", "WRONGTYPE other", "ERR index is incomplete"]
)
async def test_an_error_that_no_new_try_cures_leaves_the_ranking_to_the_workers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, number: int
) -> None:
    await write(engine, "Ada wrote programs.")

    def refuse(now: int, replies: list[list[Any]]) -> None:
        if now == number:
            replies[1][1] = ReplyError(text)

    numbers = answered(engine, monkeypatch, refuse)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert len((await search(engine, QUERY)).hits) == 1
    assert engine.rankings == {"indexes": 0, "triggers": 3}
    assert numbers == list(range(1, number + 1))  # nobody asks again for a while
    assert sum(text in record.message for record in caplog.records) == 1


async def test_the_indexes_are_asked_again_later(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await write(engine, "Ada wrote programs.")
    monkeypatch.setattr(searcher, "ASK_INDEXES_AGAIN_SECONDS", 0.0)

    def refuse(number: int, replies: list[list[Any]]) -> None:
        if number == 1:
            replies[0][0] = ReplyError("NOPERM not yet")

    answered(engine, monkeypatch, refuse)
    for _ in range(2):
        assert len((await search(engine, QUERY)).hits) == 1
    assert engine.rankings == {"indexes": 1, "triggers": 1}


async def test_a_shard_that_does_not_know_the_commands_ranks_as_it_can(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    async def rank(node: Node, arguments: list[str]) -> list[bytes]:
        return await cluster.rank(node, arguments)

    cluster.triggers["qa.rank"] = rank  # its shards refuse QA.INDEX.STATS
    await write(engine, "Ada wrote programs.")
    assert len((await search(engine, QUERY)).hits) == 1
    assert engine.rankings == {"indexes": 0, "triggers": 1}


@pytest.mark.parametrize(
    ("number", "reply"),
    [(1, None), (1, []), (1, [1]), (2, None), (2, [1, 2, [3, 4]]), (2, [1, 2, [3], [[b"x"]], [1, 2], [1]])],
)
async def test_a_reply_in_another_form_leaves_the_ranking_to_the_workers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, number: int, reply: object
) -> None:
    await write(engine, "Ada wrote programs.")

    def alter(now: int, replies: list[list[Any]]) -> None:
        if now == number:
            replies[0][1] = reply

    answered(engine, monkeypatch, alter)
    assert len((await search(engine, QUERY)).hits) == 1
    assert engine.rankings == {"indexes": 0, "triggers": 1}


@pytest.mark.parametrize("analyzer", ["of another version", None])
async def test_terms_of_another_analyzer_are_asked_for_by_the_workers(
    cluster: ScriptedCluster, engine: Engine, analyzer: str | None
) -> None:
    await write(engine, "Ada wrote programs.")
    here = partition_of("doc 0", PARTITIONS)
    empty = next(tag for tag in partition_tags(PARTITIONS) if tag != here)
    for tag in (empty, here):
        await cluster.at(layout_key(tag), "DEL", layout_key(tag))
        if analyzer is not None:
            await cluster.at(layout_key(tag), "HSET", layout_key(tag), "analyzer", analyzer)
        assert len((await search(engine, QUERY)).hits) == 1
    assert engine.rankings == {"indexes": 1, "triggers": 1}  # the terms of an empty partition do not matter


async def test_a_long_filter_goes_once_to_each_shard(engine: Engine) -> None:
    await write(engine, "Ada wrote programs.", "Bob wrote programs.")
    for others, by in ((3, "indexes"), (10, "triggers")):
        before = engine.rankings[by]
        result = await search(engine, QUERY, doc_id=("doc 1", *("x" * 500 + str(number) for number in range(others))))
        assert [hit.document_id for hit in result.hits] == ["doc 1"]
        assert engine.rankings[by] == before + 1


async def test_another_number_of_partitions_is_followed(cluster: ScriptedCluster, engine: Engine) -> None:
    async with noticed(engine):
        await cluster.set(PARTITIONS_KEY, 24)
    await search(engine, QUERY)
    ranking = await engine._ranker.rank(QUERY, 8)
    assert ranking.epochs.keys() == ranking.parts.keys() == set(partition_tags(24))


async def test_the_epochs_are_those_from_before_the_ranking(
    cluster: ScriptedCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search compares them later: it must see a write that came between the two questions to the indexes."""
    await write(engine, "Ada wrote programs.")
    before = (await engine._ranker.rank(QUERY, 8)).epochs
    tag = partition_of("doc 0", PARTITIONS)
    ask_all = engine.shards.execute_pipelines

    async def asked(commands: Pipelines, **options: bool) -> list[list[Any]]:
        replies = await ask_all(commands, **options)
        await cluster.at(epoch_key(tag), "INCR", epoch_key(tag))
        return replies

    monkeypatch.setattr(engine.shards, "execute_pipelines", asked)
    assert (await engine._ranker.rank(QUERY, 8)).epochs == before
    monkeypatch.undo()
    assert (await engine._ranker.rank(QUERY, 8)).epochs == before | {tag: before[tag] + 2}


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("text", ["TRYAGAIN a slot moves", "MOVED 5 {owner}", "ASK 5 {owner}", "LOADING data", "lost"])
async def test_what_passes_is_tried_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, text: str, number: int
) -> None:
    await write(engine, "Ada wrote programs.")

    def refuse(now: int, replies: list[list[Any]]) -> None:
        if now == number:
            if text == "lost":
                raise ConnectionLost("connection was lost")
            replies[2][-1] = ReplyError(text.format(owner=engine.shards.all[0].address))

    numbers = answered(engine, monkeypatch, refuse)
    assert len((await search(engine, QUERY)).hits) == 1
    assert numbers == list(range(1, number + 3))
    assert engine.rankings == {"indexes": 1, "triggers": 0}


async def test_a_server_that_does_not_answer_costs_the_deadline_and_no_connection(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    await write(engine, "Ada wrote programs.")
    with frozen(cluster.nodes[1]):
        with pytest.raises(DeadlineExceeded):
            await search(engine, QUERY, timeout_ms=300)
        assert all(engine.shards.pool(shard.address).in_use == 0 for shard in engine.shards.all)
    assert len((await search(engine, QUERY)).hits) == 1
    assert engine.rankings["triggers"] == 0


async def test_rankings_at_a_shard_are_bounded_and_those_that_wait_are_finished(cluster: ScriptedCluster) -> None:
    async with opened(cluster, connections_per_shard=2, max_waiting_per_shard=2) as engine:
        await write(engine, "Ada wrote programs.")
        node = cluster.nodes[1]
        pools = map(engine.shards.pool, (shard.address for shard in engine.shards.all))
        pool = next(each for each in pools if each.address.port == node.port)
        with frozen(node):
            asked = [asyncio.create_task(engine._ranker.rank(QUERY, count)) for count in range(1, 5)]
            await eventually_async(lambda: pool._waiting == 2)
            with pytest.raises(QueueFull, match="2 questions are at shard"):
                await engine._ranker.rank(QUERY, 8)
        assert [len(ranking.candidates) for ranking in await asyncio.gather(*asked)] == [1] * 4


async def test_more_commands_than_a_connection_takes_at_once_go_in_turns(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qa_cluster.routing.shards.MAX_PENDING", 5)
    await write(engine, *[f"Person{number} wrote programs." for number in range(20)])
    assert len((await search(engine, QUERY, top_k=20)).hits) == 20


async def test_candidates_name_their_documents_as_keys_do(engine: Engine) -> None:
    name = "a {b}:\U0001f600 % c"
    await engine.documents.put(name, "Ada wrote programs.")
    (found,) = (await engine._ranker.rank(QUERY, 8)).candidates
    assert isinstance(found, Candidate)
    assert [hit.document_id for hit in (await search(engine, QUERY)).hits] == [name]


async def test_a_partition_that_nobody_serves_is_waited_for(
    cluster: ScriptedCluster, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(engine, "Ada wrote programs.")
    before = engine.shards.redirects.total()

    def refuse(number: int, replies: list[list[Any]]) -> None:
        replies[0][0] = ReplyError("CLUSTERDOWN Hash slot not served")

    answered(engine, monkeypatch, refuse)

    async def refused() -> bool:
        """Whether a question came to a shard before its time was up."""
        with pytest.raises(DeadlineExceeded):
            await ask(engine, "Who wrote programs?", timeout_ms=300)
        return engine.shards.redirects.total() > before

    await eventually_async(refused)
    assert engine.rankings == {"indexes": 0, "triggers": 0}
    with pytest.raises(ClusterError):
        await engine.shards.retrying(lambda: engine._ranker.rank(QUERY, 8), 0.2)
