"""Searches while a person types, and searches of several collections."""

from __future__ import annotations

import pytest

from qa_cluster.asking import document_fields
from qa_cluster.asking.engine import Engine
from qa_cluster.errors import InvalidInput, NotFound
from qa_cluster.options.questions import MAX_SEARCHED_COLLECTIONS
from qa_cluster.types import SearchedCollection
from tests.client.engines import search, write
from tests.client.scripted_cluster import ScriptedCluster


async def texts(engine: Engine, query: str, **options: object) -> list[str]:
    return [hit.text for hit in (await search(engine, query, **options)).hits]


async def test_the_last_word_may_be_incomplete(cluster: ScriptedCluster, engine: Engine) -> None:
    await write(engine, "Ada was running programs.", "Eve likes runes.", "Programs of Bob.", "Zürich runs.")
    assert await texts(engine, "program ru", prefix=True) == [
        "Ada was running programs.",
        "Programs of Bob.",
        "Zürich runs.",
        "Eve likes runes.",
    ]
    for typed in ("runn", "runni", "running"):
        assert "Ada was running programs." in await texts(engine, typed, prefix=True)
    assert await texts(engine, "zur", prefix=True) == ["Zürich runs."]
    assert await texts(engine, "zur") == []
    assert await texts(engine, "ru ", prefix=True) == []
    result = await search(engine, "Ada was ru", prefix=True)
    assert set(result.terms) == {"ada", "run", "rune"}
    best = result.hits[0]
    assert [best.text[span.start : span.end] for span in best.highlights] == ["Ada", "running"]
    assert cluster.count("qa.embed") == 0
    with pytest.raises(InvalidInput, match="prefix searches by words, got retriever=both"):
        await search(engine, "ru", prefix=True, retriever="both")


async def test_frequent_completions_are_not_displaced_by_rare_ones(engine: Engine) -> None:
    await write(engine, *[f"Term{number:03} term." for number in range(60)], "A terminal ends here.")
    found = await search(engine, "ter", prefix=True, top_k=100)
    assert len(found.terms) == 8 and "term" in found.terms
    assert len(found.hits) >= 60


async def test_several_collections_are_one_ranking(engine: Engine) -> None:
    for name in ("books", "news"):
        await engine.collections.create(name)
    await engine.documents.put("a", "Ada wrote programs. Ada wrote.", collection="books")
    await engine.documents.put("a", "Eve wrote many long programs about rather different things.", collection="news")
    await engine.documents.put("b", "Bob wrote programs.")
    found = await search(engine, "wrote programs", collection=("books", "news"))
    assert [hit.collection for hit in found.hits] == ["books", "news", "books"]
    assert [hit.rank for hit in found.hits] == [1, 2, 3]
    assert found.collections == (SearchedCollection("books", 2), SearchedCollection("news", 1))
    assert found.sentences == 3
    every = await search(engine, "wrote programs", collection="*")
    assert {hit.collection for hit in every.hits} == {"default", "books", "news"}
    assert [each.name for each in every.collections] == ["default", "books", "news"]
    # the scores equal those of one collection with all documents
    await engine.collections.create("one")
    await engine.documents.put("1", "Ada wrote programs. Ada wrote.", collection="one")
    await engine.documents.put("2", "Eve wrote many long programs about rather different things.", collection="one")
    alone = await search(engine, "wrote programs", collection="one")
    assert [hit.score for hit in alone.hits] == [hit.score for hit in found.hits]
    typed = await search(engine, "wrote prog", collection=("books", "news"), prefix=True)
    assert [hit.collection for hit in typed.hits] == ["books", "news", "books"]
    assert len((await search(engine, "wrote", collection=("books", "news"), top_k=1)).hits) == 1


async def test_a_filter_needs_one_collection_with_its_field(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_fields, "CHECK_SECONDS", 60.0)
    await engine.collections.create("books")
    await engine.documents.put("a", "Ada wrote programs.", metadata={"year": 1843}, collection="books")
    await engine.documents.put("b", "Bob wrote programs.", metadata={"lang": "en"})
    found = await search(engine, "programs", collection="*", filter=("year>1800",))
    assert [hit.document_id for hit in found.hits] == ["a"]
    with pytest.raises(InvalidInput, match="has the field 'yeer'"):
        await search(engine, "programs", collection="*", filter=("yeer>1800",))


async def test_collections_are_bounded_and_must_exist(engine: Engine) -> None:
    with pytest.raises(NotFound, match="no such collection: 'none'"):
        await search(engine, "programs", collection=("default", "none"))
    with pytest.raises(InvalidInput, match="leave out the others"):
        await search(engine, "programs", collection=("*", "default"))
    many = tuple(f"c{number}" for number in range(MAX_SEARCHED_COLLECTIONS + 1))
    with pytest.raises(InvalidInput, match="1 to 20 collections, got 21"):
        await search(engine, "programs", collection=many)
    for name in many:
        await engine.collections.create(name)
    with pytest.raises(InvalidInput, match="there are 22 collections, and a search may use at most 20: name"):
        await search(engine, "programs", collection="*")
    assert (await search(engine, "programs", collection=many[:20])).hits == ()
