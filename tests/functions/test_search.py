"""Searches on shards with functions and index: positions of sentences, and partitions that change or migrate."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from qa_cluster import keys
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.documents.sentences import split_sentences
from qa_cluster.documents.source_map import FIELD, write_map
from qa_cluster.errors import InvalidInput
from qa_cluster.ranking.bm25 import Ranking
from qa_cluster.types import SearchResult, Source

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


async def test_sentences_and_their_neighbours_come_from_the_text(client: AsyncClusterClient) -> None:
    await client.put_document("quokka", TEXT, "Quokkas")
    result = await client.search("quokka cafe", context=1)
    # the last sentence matches only by its title
    assert [hit.passage_id for hit in result.hits] == ["quokka:2", "quokka:0", "quokka:1"]
    await assert_places(client, result)
    best = result.hits[0]
    assert [TEXT[span.start : span.end] for span in best.highlights] == ["Quokkas", "cafés", "quokka"]
    assert best.passage is not None
    assert best.passage.text.startswith("The island \U0001f600 is small. Quokkas\u2019")


async def test_any_client_can_see_the_sentences_of_a_document(shards: Shards, client: AsyncClusterClient) -> None:
    await client.put_document("seen", TEXT)
    here = f"seen:{{{tag('seen')}}}"
    node = shards.node_of(here)
    sentences = [TEXT[start:end] for start, end in split_sentences(TEXT)]
    for arguments, shown in (([], sentences), ([1], sentences[1:]), ([0, 1], sentences[:1]), ([3], [])):
        assert shards.on(node, "RG.TRIGGER", "qa.sentences", here, *arguments) == shown
    other = next(each for each in shards.nodes if each is not node)
    refused = [
        (other, [here], "ask its shard"),
        (node, [f"nobody:{{{tag('seen')}}}"], "no such document"),
        *((node, wrong, "qa.sentences takes") for wrong in ([], ["seen"], [here, 0, 1, 2])),
        *((node, [here, *wrong], "must be from") for wrong in ([-1], ["x"], [0, 0], [0, 101])),
    ]
    for asked, wrong, message in refused:
        with pytest.raises(redis.ResponseError, match=message):
            shards.on(asked, "RG.TRIGGER", "qa.sentences", *wrong)


async def test_title_file_and_section_find_a_sentence_and_are_returned_with_it(client: AsyncClusterClient) -> None:
    text = "Wombats dig.\n\nIt was described by George Shaw."
    source = write_map(
        "animals/wombat.1", "roff", 1, [(0, ["Habits"]), (14, ["History"])], unit="line", places=[(14, 9)]
    )
    await client.put_document("w", text, "vombatus(1) - a marsupial", metadata={FIELD: source, "lang": "en"})
    await client.put_document("x", "It was described by nobody.", "other")
    for words in ("vombatus described", "animals described", "history described George"):
        hit = (await client.search(words, top_k=1)).hits[0]
        assert (hit.document_id, hit.section, hit.source) == ("w", ("History",), Source("animals/wombat.1", line=9))
        assert hit.metadata == {"lang": "en"}
    answer = (await client.ask("Who described vombatus?", no_answer=False)).answers[0]
    assert text[answer.start : answer.end] == answer.answer
    assert (answer.section, answer.source) == (("History",), Source("animals/wombat.1", line=9))
    assert (await client.search("described", filter=["_source.format=roff"])).hits[0].document_id == "w"
    with pytest.raises(InvalidInput, match=r"no document .* has the field '_source.sections'"):
        await client.search("described", filter=["_source.sections=0"])


async def test_changes_of_other_documents_do_not_hide_results(
    client: AsyncClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change in its partition, a hit is shown only if the text has the index's 8-bit weights."""
    await client.put_document("numbat", "Numbats eat termites. A numbat sleeps. " * 3)
    other = next(name for name in map(str, range(10**6)) if tag(name) == tag("numbat"))
    ranker = client.engine._ranker
    rank = ranker.rank_each
    rankings = 0

    async def rank_and_change(*arguments: object, **options: object) -> Ranking:
        nonlocal rankings
        ranking: Ranking = await rank(*arguments, **options)  # type: ignore[arg-type]
        rankings += 1
        await client.put_document(other, f"Nothing number {rankings}.", wait=True)
        return ranking

    monkeypatch.setattr(ranker, "rank_each", rank_and_change)
    result = await client.search("Do numbats eat termites?")
    assert [hit.document_id for hit in result.hits].count("numbat") == 6
    assert rankings == 1
    await assert_places(client, result)


async def test_a_migrating_partition_is_searched_on_its_current_shard(
    shards: Shards, client: AsyncClusterClient
) -> None:
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
