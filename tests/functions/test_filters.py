"""Filters inside the ranking are exact, use the current metadata, and are part of the key of a cached answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.config import Settings
from tests.harness.polling import eventually_async

from .running_shards import Shards, tag


@pytest.fixture
async def client(shards: Shards) -> AsyncIterator[AsyncClusterClient]:
    async with AsyncClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as made:
        yield made


def at_least(year: int) -> dict[str, Any]:
    return {"field": "meta.year", "operator": ">=", "value": year}


async def found(client: AsyncClusterClient, query: str, **options: Any) -> list[str]:
    result = await client.search(query, **options)
    return sorted(hit.document_id for hit in result.hits)


async def wait_near(client: AsyncClusterClient, question: str, **options: Any) -> None:
    """Wait until the near cache has the answer, because earlier changes may still arrive and invalidate it."""

    async def near() -> bool:
        return (await client.ask(question, **options)).cache.tier == "near"

    await eventually_async(near)


async def test_rare_matches_of_a_filter_are_all_found(client: AsyncClusterClient) -> None:
    """The matches rank after 300 other documents, so a search without the filter does not find them."""
    for number in range(300):
        await client.put_document(f"pelican {number}", "Pelicans fish.", metadata={"year": 2000}, wait=False)
    names = [f"late {number}" for number in range(12)]
    for name in names:
        text = "Among the many birds that were seen on that long day some pelicans did fish a little."
        await client.put_document(name, text, metadata={"year": 2024, "tags": ["bird", "long"]})
    assert await found(client, "pelicans fish", top_k=12, filters=at_least(2020)) == sorted(names)
    assert await found(client, "pelicans fish", top_k=100, filter="tags=long", doc_id=["late 3", "pelican 7"]) == [
        "late 3"
    ]
    assert await found(client, "pelicans fish", top_k=100, filter=["year<2000"]) == []
    assert len(await found(client, "pelicans fish", top_k=12, filter="year!=2000")) == 12
    assert set(await found(client, "pelicans fish", top_k=12)).isdisjoint(names)


async def test_filters_use_the_current_metadata(client: AsyncClusterClient) -> None:
    text = "Gannets dive for mackerel."
    await client.put_document("gannet", text, metadata={"status": "draft", "when": "2024-02-03"})
    assert await found(client, "gannets", filter="status=draft") == ["gannet"]
    assert await found(client, "gannets", filter=["when>=2024-02-03", "when<2024-02-04"]) == ["gannet"]
    await client.put_document("gannet", text, metadata={"status": "final"})
    assert await found(client, "gannets", filter="status=draft") == []
    assert await found(client, "gannets", filter="status=final") == ["gannet"]


async def test_answers_are_cached_by_filter_and_invalidated_by_metadata(client: AsyncClusterClient) -> None:
    text = "Cormorants dry their wings on rocks."
    await client.put_document("cormorant", text, metadata={"reviewed": True})
    question = "Where do cormorants dry their wings?"
    assert (await client.ask(question, filter="reviewed=true")).best is not None
    await wait_near(client, question, filters={"field": "reviewed", "operator": "==", "value": True})
    assert (await client.ask(question, filter="reviewed=false")).best is None
    await wait_near(client, question, filter="reviewed=false")
    await client.put_document("cormorant", text, metadata={"reviewed": False})
    assert (await client.ask(question, filter="reviewed=true")).best is None
    assert (await client.ask(question, filter="reviewed=false")).best is not None


async def test_a_document_outside_the_filter_invalidates_no_answer(shards: Shards) -> None:
    settings = Settings(cluster_url=f"redis://127.0.0.1:{shards.nodes[0].port}", answer_drift=1.0)
    async with AsyncClusterClient(settings) as client:
        for number in range(40):
            metadata = {"lang": "en" if number % 2 else "de"}
            await client.put_document(f"turnstone {number}", f"Turnstones flip stone {number}.", metadata=metadata)
        question = "Which stone do turnstones flip?"
        assert (await client.ask(question, filter="lang=en")).best is not None
        await wait_near(client, question, filter="lang=en")
        await client.put_document("turnstone de", "Turnstones flip stones.", metadata={"lang": "fr"})
        assert (await client.ask(question, filter="lang=en")).cache.status == "hit"
        await client.put_document("turnstone en", "Turnstones flip stones.", metadata={"lang": "en"})
        assert (await client.ask(question, filter="lang=en")).cache.status == "miss"


async def test_a_document_without_indexed_metadata_is_reindexed(shards: Shards, client: AsyncClusterClient) -> None:
    await client.put_document("dunlin", "Dunlins probe the mud.", metadata={"year": 1999})
    key = f"document:dunlin:{{{tag('dunlin')}}}"
    for name in (key, f"layout:{{{tag('dunlin')}}}"):
        shards.client.hset(name, "analyzer", "of another version")
    shards.on(
        shards.node_of(key), "QA.INDEX.PUT", f"index:{{{tag('dunlin')}}}", "dunlin", "", b"\x01\x01\x01\x06dunlin"
    )
    assert await found(client, "dunlins", filter="year=1999") == []
    shards.register("UPGRADE")

    async def is_reindexed() -> bool:
        return await found(client, "dunlins", filter="year=1999") == ["dunlin"]

    await eventually_async(is_reindexed)


@pytest.mark.parametrize("packed", ["00", "2d", "26ffff"])
def test_a_damaged_filter_is_refused(shards: Shards, packed: str) -> None:
    with pytest.raises(redis.ResponseError, match="filter"):
        shards.rank("dunlins", 3, bytes.fromhex(packed))
