"""Collections: their separation, their creation and removal, and the completion of interrupted work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from qa_cluster import keys
from qa_cluster.asking.collections import DELETING, READY
from qa_cluster.asking.engine import Engine
from qa_cluster.client import AsyncClusterClient, CollectionEntry, DocumentCounts
from qa_cluster.errors import CollectionBusy, InvalidInput, NotFound
from qa_cluster.options.documents import DocumentChoice
from qa_cluster.options.questions import AskOptions
from qa_cluster.types import AskResult, Removal
from tests.client.engines import ask, kept, opened, search
from tests.client.scripted_cluster import ScriptedCluster
from tests.client.scripted_functions import PARTITIONS
from tests.harness.polling import eventually_async

QUESTION = "Who wrote programs?"
TAGS = keys.partition_tags(PARTITIONS)


@pytest.fixture
async def books(engine: Engine) -> AsyncIterator[str]:
    """A collection without documents."""
    assert await engine.collections.create("books")
    yield "books"


async def put(engine: Engine, name: str, text: str, collection: str = "default") -> None:
    await engine.documents.put(name, text, collection=collection)


def answers(result: AskResult) -> list[tuple[str, str, float]]:
    return [(answer.document_id, answer.answer, answer.logit) for answer in result.answers]


async def all_keys(cluster: ScriptedCluster) -> set[str]:
    return {key.decode() for node in cluster.nodes for key in await node.commands.execute("KEYS", "*")}


async def test_a_collection_shows_nothing_of_another_collection(
    cluster: ScriptedCluster, engine: Engine, books: str
) -> None:
    await put(engine, "ada", "Ada wrote programs. It is good.")
    assert (await ask(engine, QUESTION, collection=books)).answers == ()
    await put(engine, "ada", "Bob wrote programs.", books)
    await put(engine, "eve", "Eve wrote programs.", books)
    assert {found[:2] for found in answers(await ask(engine, QUESTION))} == {("ada", "Ada")}
    assert {found[:2] for found in answers(await ask(engine, QUESTION, collection=books))} == {
        ("ada", "Bob"),
        ("eve", "Eve"),
    }
    hits = (await search(engine, "programs", collection=books)).hits
    assert {(hit.document_id, hit.text) for hit in hits} == {
        ("ada", "Bob wrote programs."),
        ("eve", "Eve wrote programs."),
    }
    assert (await search(engine, "programs")).sentences == 2
    assert await engine.listing.count(waiting=True) == DocumentCounts(1, 2, 0)
    assert await engine.listing.count(waiting=True, choice=DocumentChoice(collection=books)) == DocumentCounts(2, 2, 0)
    assert [entry.id async for entry in engine.listing.all()] == ["ada"]
    assert sorted([entry.id async for entry in engine.listing.all(DocumentChoice(collection=books))]) == ["ada", "eve"]
    assert (await engine.documents.get("ada")).text == "Ada wrote programs. It is good."
    assert (await engine.documents.get("ada", books)).text == "Bob wrote programs."
    with pytest.raises(NotFound, match=r"no such document: 'eve'$"):
        await engine.documents.get("eve")
    cluster.tokenizing = False
    await engine.documents.put("late", "Not ready.", collection=books, wait=False)
    assert (await engine.listing.count(waiting=True)).waiting == 0
    assert (await engine.listing.count(waiting=True, choice=DocumentChoice(collection=books))).waiting == 1
    await engine.documents.delete("ada", collection=books)
    with pytest.raises(NotFound, match="no such document: 'ada' in collection 'books'"):
        await engine.documents.get("ada", books)
    assert (await engine.documents.get("ada")).id == "ada"


async def test_options_choose_among_documents_of_the_collection(engine: Engine, books: str) -> None:
    await engine.documents.put("a{%}", "Ada wrote programs.", metadata={"year": 1})
    await engine.documents.put("a{%}", "Bob wrote programs.", metadata={"year": 2}, collection=books)
    await engine.documents.put("b", "Eve wrote programs.", metadata={"year": 3}, collection=books)
    assert answers(await ask(engine, QUESTION, collection=books, doc_id=("a{%}",)))[0][:2] == ("a{%}", "Bob")
    assert answers(await ask(engine, QUESTION, collection=books, filter=("year>=3",)))[0][:2] == ("b", "Eve")
    assert answers(await ask(engine, QUESTION, doc_id=("a{%}",)))[0][:2] == ("a{%}", "Ada")
    assert (await ask(engine, QUESTION, doc_id=("b",))).answers == ()


async def test_other_collections_do_not_change_scores(engine: Engine, books: str) -> None:
    texts = {f"d{number}": f"Ada wrote {number} programs. Programs are long." for number in range(12)}
    for name, text in texts.items():
        await put(engine, name, text, books)
    for number in range(30):
        await put(engine, f"other {number}", "Ada wrote letters, and letters. Nobody knows programs.")
    query = "who wrote long programs in 3 letters"
    among_others = [(hit.document_id, hit.score) for hit in (await search(engine, query, collection=books)).hits]
    sentences = (await search(engine, query, collection=books)).sentences
    for number in range(30):
        await engine.documents.delete(f"other {number}")
    await engine.collection_removal.run(books, seconds=60)
    for name, text in texts.items():
        await put(engine, name, text)
    alone = await search(engine, query)
    assert ([(hit.document_id, hit.score) for hit in alone.hits], alone.sentences) == (among_others, sentences)


async def test_cached_answers_survive_writes_to_another_collection(
    engine: Engine, second_engine: Engine, books: str
) -> None:
    await put(engine, "ada", "Ada wrote programs.")
    await put(engine, "bob", "Bob wrote programs.", books)
    for of in ("default", books):
        assert (await ask(engine, QUESTION, collection=of)).cache.status == "miss"
    version = (await ask(engine, QUESTION)).index.version
    await put(engine, "eve", "Eve wrote programs, who wrote programs.", books)
    near = await kept(engine, QUESTION)
    assert near is not None and near.cache.tier == "near"
    assert (await ask(engine, QUESTION, cache="off")).index.version == version
    assert await kept(engine, QUESTION, collection=books) is None
    await ask(engine, QUESTION, collection=books)

    async def stored() -> bool:
        found = await kept(second_engine, QUESTION, collection=books)
        return found is not None and found.cache.tier == "shard"

    await eventually_async(stored)
    await put(engine, "ada", "Zoë wrote programs.")
    assert answers(await ask(engine, QUESTION))[0][1] == "Zoë"
    assert (await ask(engine, QUESTION, collection=books)).cache.tier == "near"
    assert (await ask(second_engine, QUESTION, collection=books)).cache.tier == "near"


async def test_a_missing_collection_is_an_error_with_advice(engine: Engine) -> None:
    said = r"no such collection: 'papers'; create it with POST /collections or `qa-cluster collections create papers`"
    works: list[Any] = [
        engine.documents.put("a", "Text.", collection="papers"),
        engine.documents.get("a", "papers"),
        engine.documents.delete("a", collection="papers"),
        ask(engine, QUESTION, collection="papers"),
        ask(engine, QUESTION, collection="papers", cache="only"),
        search(engine, "programs", collection="papers"),
        engine.listing.page(choice=DocumentChoice(collection="papers")),
        engine.listing.count(choice=DocumentChoice(collection="papers")),
        engine.collections.entry("papers"),
    ]
    for work in works:
        with pytest.raises(NotFound, match=said):
            await work
    with pytest.raises(NotFound, match=r"no such collection: 'papers'; GET /collections and .* show all collections"):
        await engine.collection_removal.run("papers", seconds=1)


async def test_every_call_checks_the_name(engine: Engine) -> None:
    name = "default%/x"
    works: list[Any] = [
        engine.documents.put("a", "Text.", collection=name),
        engine.documents.get("a", name),
        engine.documents.delete("a", collection=name),
        ask(engine, QUESTION, collection=name),
        search(engine, "programs", collection=name),
        engine.collections.create(name),
        engine.collections.entry(name),
        engine.collection_removal.run(name, seconds=1),
    ]
    for work in works:
        with pytest.raises(InvalidInput, match="collection must be 1 to 64 characters of a-z"):
            await work
    with pytest.raises(InvalidInput, match="collection must be 1 to 64 characters"):
        DocumentChoice.of(collection=name)


async def test_collections_are_created_once_listed_counted_and_limited(
    engine: Engine, second_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await engine.collections.create("books") and not await second_engine.collections.create("books")
    assert not await engine.collections.create("default")
    await put(second_engine, "ada", "Ada wrote it. It is good.", "books")
    assert await engine.collections.entries() == (
        CollectionEntry("default", READY, 0, 0),
        CollectionEntry("books", READY, 1, 2),
    )
    assert await engine.collections.entry("books") == CollectionEntry("books", READY, 1, 2)
    with pytest.raises(InvalidInput, match="collection 'default' always exists: delete its documents instead"):
        await engine.collection_removal.run("default", seconds=1)
    monkeypatch.setattr("qa_cluster.asking.collections.MAX_COLLECTIONS", 1)
    with pytest.raises(InvalidInput, match="there are 1 collections, the limit is 1: delete one before 'c'"):
        await engine.collections.create("c")


async def test_a_partly_created_collection_is_listed_usable_and_completed(
    cluster: ScriptedCluster, engine: Engine, books: str
) -> None:
    await put(engine, "ada", "Ada wrote programs.", books)
    lost = keys.collections_key(keys.partition_of("eve", PARTITIONS))
    await engine.shards.execute(lost, "DEL", lost)  # like a failover that loses the last writes
    assert (await engine.collections.entry(books)).state == "incomplete"
    assert answers(await ask(engine, QUESTION, collection=books))[0][1] == "Ada"
    with pytest.raises(NotFound, match="no such collection"):
        await put(engine, "eve", "Eve wrote programs.", books)
    assert not await engine.collections.create(books)
    assert (await engine.collections.entry(books)).state == READY
    await put(engine, "eve", "Eve wrote programs.", books)


async def test_a_removed_collection_leaves_nothing(cluster: ScriptedCluster, engine: Engine, books: str) -> None:
    await put(engine, "ada", "Ada wrote programs.")
    await engine.collections.create("book")
    await put(engine, "ada", "Cyd wrote programs.", "book")
    before = await all_keys(cluster)
    for number in range(40):
        await engine.documents.put(f"b {number}", "Bob wrote programs.", collection=books, wait=False)
    cluster.tokenizing = False
    await engine.documents.put("waiting", "Not ready. Not yet.", collection=books, wait=False)
    cluster.tokenizing = True
    text = keys.DocumentName.of("set by a client", books)
    key = keys.paragraphs_key(text, TAGS[0])
    await engine.shards.execute(key, "SET", key, "Text without a record.")
    digest = (await engine.ask(QUESTION, AskOptions(collection=books))).digest
    whole = keys.whole_answer_key(keys.partition_of(digest, PARTITIONS), digest, books)

    async def stored() -> bool:
        return bool(await engine.shards.execute(whole, "EXISTS", whole))

    await eventually_async(stored)
    assert await engine.collection_removal.run(books, seconds=60) == Removal(42, True)
    after = await all_keys(cluster)
    left = {key for key in after - before if not key.startswith("epoch:{")}
    assert left == set()
    assert await engine.collections.names() == ("default", "book")
    assert answers(await ask(engine, QUESTION))[0][1] == "Ada"
    assert answers(await ask(engine, QUESTION, collection="book"))[0][1] == "Cyd"
    with pytest.raises(NotFound, match="no such collection"):
        await ask(engine, QUESTION, collection=books)


async def test_a_removed_collection_has_no_answer_in_the_near_cache(
    engine: Engine, second_engine: Engine, books: str
) -> None:
    await put(engine, "ada", "Ada wrote programs.", books)
    await ask(engine, QUESTION, collection=books)
    await second_engine.collection_removal.run(books, seconds=60)
    with pytest.raises(NotFound, match="no such collection"):
        await ask(engine, QUESTION, collection=books, cache="only")
    await second_engine.collections.create(books)
    assert await kept(engine, QUESTION, collection=books) is None
    assert (await ask(engine, QUESTION, collection=books)).answers == ()


async def test_an_interrupted_removal_refuses_writes_and_continues(engine: Engine, books: str) -> None:
    for number in range(20):
        await engine.documents.put(f"b {number}", "Bob wrote programs.", collection=books)
    assert await engine.collection_removal.run(books, seconds=0) == Removal(0, False)
    entry = await engine.collections.entry(books)
    assert (entry.state, entry.documents) == (DELETING, 20)
    with pytest.raises(NotFound, match="'books' is being deleted: delete it again if the deletion was interrupted"):
        await ask(engine, QUESTION, collection=books)
    with pytest.raises(NotFound, match="being deleted"):
        await put(engine, "late", "Late.", books)
    with pytest.raises(CollectionBusy, match="being deleted"):
        await engine.collections.create(books)
    assert await engine.collection_removal.run(books, seconds=60) == Removal(20, True)
    assert await engine.collections.create(books)


async def test_no_document_outlives_its_collection_in_any_race(cluster: ScriptedCluster, engine: Engine) -> None:
    """Writes that a service has already checked reach the shards before, during and after the removal."""
    before = await all_keys(cluster)
    async with opened(cluster) as writer:
        writer.collections.check = _nothing  # type: ignore[method-assign]
        for turn in range(3):
            await engine.collections.create("books")

            async def write(number: int) -> bool:
                try:
                    await writer.documents.put(f"b {number}", "Bob wrote it.", collection="books", wait=False)
                except NotFound:
                    return False
                return True

            writes = [asyncio.create_task(write(number)) for number in range(60)]
            await asyncio.sleep(0.01 * turn)
            removal = await engine.collection_removal.run("books", seconds=60)
            written = sum(await asyncio.gather(*writes))
            assert removal == Removal(written, True)
            left = {key for key in await all_keys(cluster) - before if not key.startswith("epoch:{")}
            assert left == set()
            assert await engine.collections.names() == ("default",)


async def _nothing(name: str) -> None:
    """A check that does nothing, like a check that ran before the removal."""


async def test_concurrent_removal_and_creation_leave_an_empty_or_no_collection(
    engine: Engine, second_engine: Engine
) -> None:
    async def create() -> None:
        with suppress(CollectionBusy):
            await second_engine.collections.create("books")

    for _ in range(5):
        await engine.collections.create("books")
        await put(engine, "ada", "Ada wrote it.", "books")
        removal, _ = await asyncio.gather(engine.collection_removal.run("books", seconds=60), create())
        assert removal == Removal(1, True)
        if "books" in await engine.collections.names():
            assert (await engine.collections.entry("books")).documents == 0
            await second_engine.collections.create("books")
            await put(second_engine, "eve", "Eve wrote it.", "books")
            await second_engine.documents.delete("eve", collection="books")


async def test_a_removal_wins_over_a_creation_that_started_earlier(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, books: str
) -> None:
    await engine.collections.begin_removal(books)

    async def earlier() -> dict[str, str]:
        return {}

    with monkeypatch.context() as patched:
        patched.setattr(engine.collections, "_read", earlier)
        with pytest.raises(CollectionBusy, match="being deleted"):
            await engine.collections.create(books)
    assert (await engine.collections.entry(books)).state == DELETING


async def test_collections_stay_known_while_no_shard_reports_changes(cluster: ScriptedCluster, engine: Engine) -> None:
    await engine.collections.create("books")
    await engine.collections.check("books")
    engine.freshness.ready = False
    engine.freshness.drained = lambda: False  # type: ignore[method-assign]
    async with opened(cluster) as other:
        await other.collection_removal.run("books", seconds=60)
    engine.collections._generation = engine.freshness.generation
    with pytest.raises(NotFound):
        await engine.collections.check("books")


async def test_the_cluster_client_has_the_same_calls(cluster: ScriptedCluster) -> None:
    async with AsyncClusterClient(cluster.url) as client:
        assert await client.create_collection("books")
        await client.put_document("ada", "Ada wrote programs.", collection="books")
        assert (await client.ask(QUESTION, collection="books")).best.answer == "Ada"
        assert (await client.collection("books")).documents == 1
        assert [entry.name for entry in await client.collections()] == ["default", "books"]
        assert (await client.get_document("ada", collection="books")).id == "ada"
        assert await client.count_documents(collection="books") == DocumentCounts(1, 1)
        assert [entry.id async for entry in client.list_documents(collection="books")] == ["ada"]
        assert len((await client.document_page(limit=4, prefix="a", collection="books")).documents) == 1
        assert (await client.search("programs", collection="books")).hits[0].document_id == "ada"
        await client.delete_document("ada", collection="books")
        await client.put_document("bob", "Bob wrote it.", collection="books")
        assert await client.delete_documents(prefix="b", collection="books") == Removal(1, True)
        assert await client.delete_collection("books") == Removal(0, True)
