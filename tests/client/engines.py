"""Engines on the scripted cluster, and steps that many tests of questions share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from qa_cluster.asking.answers.caching import CacheMiss
from qa_cluster.asking.asker import Outcome
from qa_cluster.asking.engine import Engine
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.options.questions import AskOptions, SearchOptions
from qa_cluster.ranking.bm25 import Ranking
from qa_cluster.types import AskResult, SearchResult
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.polling import eventually_async


@asynccontextmanager
async def opened(cluster: ScriptedCluster, **options: Any) -> AsyncIterator[Engine]:
    engine = await cluster.target(**options).open()
    try:
        yield engine
    finally:
        await engine.aclose()


async def write(engine: Engine, *texts: str) -> None:
    """Write the documents `doc 0`, `doc 1`, .. with the titles `T0`, `T1`, .."""
    for number, text in enumerate(texts):
        await engine.documents.put(f"doc {number}", text, title=f"T{number}")


async def ask(engine: Engine, question: str, **options: Any) -> AskResult:
    outcome: Outcome = await engine.ask(question, AskOptions(**options))
    return outcome.result("id")


async def search(engine: Engine, query: str, **options: Any) -> SearchResult:
    return (await engine.search(query, SearchOptions(**options))).result("id")


async def ranked(engine: Engine, query: str, count: int) -> Ranking:
    (ranking,) = await engine._ranker.rank_each(query, count, None, (DEFAULT_COLLECTION,))
    return ranking


async def kept(engine: Engine, question: str, **options: Any) -> AskResult | None:
    """The cached result of a question, or None."""
    try:
        return await ask(engine, question, cache="only", **options)
    except CacheMiss:
        return None


@asynccontextmanager
async def noticed(engine: Engine) -> AsyncIterator[None]:
    """After the block, wait until the engine has noticed the block's changes of models or partitions."""
    before = engine.freshness.manifest_changes
    yield
    await eventually_async(lambda: engine.freshness.manifest_changes > before)
    for link in list(engine.freshness._links.values()):
        await link.connection.execute("PING")  # the shard sends its pending reports before this reply
