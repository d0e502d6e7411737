"""Searches on shards with functions and index: places from stored tokens, and partitions that change or move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from qa_cluster import keys
from qa_cluster.cluster_client import AsyncClusterClient
from qa_cluster.ranking.bm25 import Ranking
from qa_cluster.types import SearchResult

from .running_shards import Shards, tag
from .test_moved_partition import moved

TEXT = "Quokkas smile at tourists.\n\nThe island \U0001f600 is small. Quokkas\u2019 fur is brown; cafés feed a quokka."


@pytest.fixture
async def client(shards: Shards) -> AsyncIterator[AsyncClusterClient]:
    async with AsyncClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as made:
        yield made


async def assert_places(client: AsyncClusterClient, result: SearchResult) -> None:
    for hit in result.hits:
        document = await client.get_document(hit.document_id)
        assert document.text[hit.start : hit.end] == hit.text
        if hit.passage is not None:
            stored = document.text[hit.passage.start : hit.passage.end]
            assert len(stored) == len(hit.passage.text) and stored.split() == hit.passage.text.split()


async def test_places_come_from_the_stored_tokens_and_without_them_from_the_spans(
    shards: Shards, client: AsyncClusterClient
) -> None:
    await client.put_document("quokka", TEXT, "Quokkas")
    for _ in range(2):
        result = await client.search("quokka cafe", context=1)
        assert [hit.passage_id for hit in result.hits] == ["quokka:2", "quokka:0"]
        await assert_places(client, result)
        best = result.hits[0]
        assert [TEXT[span.start : span.end] for span in best.highlights] == ["Quokkas", "cafés", "quokka"]
        assert best.passage is not None
        assert best.passage.text.startswith("The island \U0001f600 is small. Quokkas\u2019")
        for number in range(3):
            shards.client.delete(f"{keys.tokens_prefix('quokka', tag('quokka'))}{number}")


async def test_other_documents_of_the_partition_that_change_meanwhile_hide_nothing(
    client: AsyncClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 8-bit weights of the real index match those of the text."""
    await client.put_document("numbat", "Numbats eat termites. A numbat sleeps. " * 3)
    other = next(name for name in map(str, range(10**6)) if tag(name) == tag("numbat"))
    ranker = client.engine._ranker
    rank = ranker.rank
    rankings = 0

    async def rank_and_change(*arguments: object) -> Ranking:
        nonlocal rankings
        ranking: Ranking = await rank(*arguments)  # type: ignore[arg-type]
        rankings += 1
        await client.put_document(other, f"Nothing number {rankings}.", wait=True)
        return ranking

    monkeypatch.setattr(ranker, "rank", rank_and_change)
    result = await client.search("Do numbats eat termites?")
    assert [hit.document_id for hit in result.hits].count("numbat") == 6
    assert rankings == 1
    await assert_places(client, result)


async def test_a_partition_that_moves_is_searched_where_it_is(shards: Shards, client: AsyncClusterClient) -> None:
    await client.put_document("bilby", "Bilbies dig burrows. They eat bulbs.")
    slot = keys.slot(tag("bilby"))
    source = shards.node_of(keys.document_key("bilby", tag("bilby")))
    target = next(node for node in shards.nodes if node is not source)

    async def found() -> list[str]:
        result = await client.search("burrows of bilbies", context=2)
        await assert_places(client, result)
        return [hit.text for hit in result.hits]

    assert await found() == ["Bilbies dig burrows."]
    with moved(shards, slot, source, target):
        assert await found() == ["Bilbies dig burrows."]
        await client.put_document("bilby", "Nobody here. Bilbies live in burrows.")
        assert await found() == ["Bilbies live in burrows."]
    assert await found() == ["Bilbies live in burrows."]
