"""The hits of a search, their offsets, and documents that change during the search."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qa_cluster.asking.answers.answering import MAX_VERSION_TRIES
from qa_cluster.asking.engine import Engine
from qa_cluster.asking.questions import AskLimits, check_search
from qa_cluster.errors import DeadlineExceeded, InputTooLong, InvalidInput
from qa_cluster.options.questions import SearchOptions
from qa_cluster.types import SearchResult
from tests.client.engines import search, write
from tests.client.scripted_cluster import Node, ScriptedCluster, never
from tests.harness.polling import eventually_async

QUERY = "wrote programs"
SPACE = re.compile(r"\s")


async def assert_places(engine: Engine, result: SearchResult) -> None:
    """Check all offsets of a result."""
    assert [hit.rank for hit in result.hits] == list(range(1, len(result.hits) + 1))
    assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)
    for hit in result.hits:
        document = await engine.documents.get(hit.document_id)
        assert document.version == hit.document_version
        assert document.text[hit.start : hit.end] == hit.text
        assert (hit.title, hit.metadata) == (document.title, document.metadata)
        assert all(hit.start <= span.start < span.end <= hit.end for span in hit.highlights)
        if hit.passage is not None:
            stored = document.text[hit.passage.start : hit.passage.end]
            assert SPACE.sub(" ", stored) == SPACE.sub(" ", hit.passage.text)
            assert hit.text in hit.passage.text


async def test_hits_have_their_offsets_and_the_matched_words(engine: Engine) -> None:
    name = "a {b}:\U0001f600 % c"
    text = "Nothing here. \U0001f600 Zoë wrote programs in Köln.\nThe end."
    await engine.documents.put(name, text, title="Zoë", metadata={"year": 1843})
    await write(engine, "Bob sang.", "Programs run.")
    result = await search(engine, "  Who WROTE programs\nin Koln? ")
    assert [hit.document_id for hit in result.hits] == [name, "doc 1"]
    await assert_places(engine, result)
    best = result.hits[0]
    assert [text[span.start : span.end] for span in best.highlights] == ["wrote", "programs", "Köln"]
    assert best.passage is None
    assert best.passage_id == f"{name}:1"
    assert (result.query, result.terms) == ("Who WROTE programs in Koln?", ("wrote", "program", "koln"))
    assert (result.sentences >= 5, result.index.shards_answered) == (True, 3)
    assert result.timings_ms.total >= result.timings_ms.rank > 0 < result.timings_ms.fetch
    assert SearchResult.from_json(result.to_json()) == result


async def test_context_adds_sentences_on_each_side(engine: Engine) -> None:
    await write(engine, "One. Two.\n\nAda wrote programs. \tFour.  Five.")
    [hit] = (await search(engine, QUERY, context=1)).hits
    assert hit.passage is not None
    assert hit.passage.text.split() == ["Two.", "Ada", "wrote", "programs.", "Four."]
    [all_of_it] = (result := await search(engine, QUERY, context=16)).hits
    assert all_of_it.passage is not None
    assert all_of_it.passage.text.split() == ["One.", "Two.", "Ada", "wrote", "programs.", "Four.", "Five."]
    await assert_places(engine, result)


async def test_hits_are_the_best_of_the_selected_documents(engine: Engine) -> None:
    result = await search(engine, QUERY)
    assert (result.hits, result.terms) == ((), ("wrote", "program"))
    await write(engine, *[f"Person{number} wrote programs." for number in range(12)])
    assert len((await search(engine, QUERY)).hits) == 10
    assert len((await search(engine, QUERY, top_k=12)).hits) == 12
    result = await search(engine, QUERY, doc_id=("doc 3", "doc 5", "none"))
    assert {hit.document_id for hit in result.hits} == {"doc 3", "doc 5"}


async def test_many_sentences_of_one_document(engine: Engine) -> None:
    await write(engine, " ".join(f"Person{number} wrote programs." for number in range(150)))
    result = await search(engine, QUERY, top_k=150, context=2)
    assert len({hit.passage_id for hit in result.hits}) == 150
    await assert_places(engine, result)


async def test_without_a_model_sentences_are_found(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.")
    for node in cluster.nodes:
        for key in await node.commands.execute("KEYS", "bert-qa*"):
            await node.commands.execute("DEL", key)
    assert len((await search(engine, QUERY)).hits) == 1


@pytest.mark.parametrize(
    ("query", "options", "error", "words"),
    [
        ("", {}, InvalidInput, "query must contain a letter or a digit"),
        (5, {}, InvalidInput, "query must be a string, got int"),
        ("?!", {}, InvalidInput, "letter or a digit"),
        ("Ada\x00", {}, InvalidInput, "query contains a control character"),
        ("Ada\ud800", {}, InvalidInput, "surrogate"),
        ("x" * 1001, {}, InputTooLong, "query has 1001 characters"),
        ("Ada", {"top_k": 0}, InvalidInput, "top_k must be from 1 to 1000"),
        ("Ada", {"top_k": 1001}, InvalidInput, "top_k must be from 1 to 1000"),
        ("Ada", {"context": -1}, InvalidInput, "context must be from 0 to 16"),
        ("Ada", {"context": 17}, InvalidInput, "context must be from 0 to 16"),
        ("Ada", {"doc_id": ("",)}, InvalidInput, "doc_id"),
        ("Ada", {"timeout": 0}, InvalidInput, "timeout"),
    ],
)
def test_the_error_names_the_wrong_option(
    query: object, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        check_search(query, SearchOptions(**options), AskLimits())


def after_ranking(cluster: ScriptedCluster, change: Callable[[], Awaitable[object]], times: int) -> None:
    """Call `change` after all shards have ranked, for the first `times` rankings."""
    ranked = 0

    async def rank(node: Node, arguments: list[str]) -> Any:
        nonlocal ranked
        reply = await cluster.rank(node, arguments)
        ranked += 1
        if ranked % len(cluster.nodes) == 0 and ranked <= times * len(cluster.nodes):
            await change()
        return reply

    cluster.triggers["rank"] = rank


async def test_a_document_that_changes_between_rank_and_fetch_is_ranked_again(
    cluster: ScriptedCluster, engine: Engine
) -> None:
    await write(engine, "Ada wrote programs.", "Eve wrote.")
    after_ranking(cluster, lambda: engine.documents.put("doc 0", "Nobody. Bob wrote many programs."), 1)
    result = await search(engine, QUERY)
    assert [hit.text.strip() for hit in result.hits] == ["Bob wrote many programs.", "Eve wrote."]
    assert cluster.count("rank") == 2 * 3
    await assert_places(engine, result)
    after_ranking(cluster, lambda: engine.documents.delete("doc 0"), 1)
    assert [hit.text for hit in (await search(engine, QUERY)).hits] == ["Eve wrote."]


async def test_a_document_that_changes_every_time_is_left_out(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada wrote programs.", "Eve wrote.")
    versions = iter(range(100))
    after_ranking(cluster, lambda: engine.documents.put("doc 0", f"Programs wrote it{' again' * next(versions)}."), 100)
    result = await search(engine, QUERY)
    assert [hit.text for hit in result.hits] == ["Eve wrote."]
    assert cluster.count("rank") == MAX_VERSION_TRIES * 3


async def test_the_deadline_ends_the_search_and_its_work(cluster: ScriptedCluster, engine: Engine) -> None:
    cluster.triggers["rank"] = never
    # even on a busy machine, the longest timeout lets the request reach all shards
    for timeout_ms in (1000, 5000, 60_000):
        before = cluster.count("rank")
        with pytest.raises(DeadlineExceeded, match=f" {timeout_ms} ms"):
            await search(engine, "Ada", timeout=timeout_ms / 1000)
        if cluster.count("rank") == before + 3:
            break
    await eventually_async(lambda: cluster.cancelled == cluster.count("rank") == before + 3)
