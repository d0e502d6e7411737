"""Metadata on shards: null in filters, changes without a new text, fields with their values, unknown fields."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qa_cluster import keys
from qa_cluster.client import InputTooLong, InvalidInput, NotFound, VersionConflict
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.documents import stored
from qa_cluster.documents.metadata_change import MetadataChange
from qa_cluster.documents.metadata_limits import canonical_metadata
from tests.harness.polling import eventually_async

from .running_shards import Shards, tag


@pytest.fixture
async def client(shards: Shards) -> AsyncIterator[AsyncClusterClient]:
    async with AsyncClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as made:
        yield made


@pytest.fixture
async def books(client: AsyncClusterClient) -> AsyncIterator[str]:
    """A collection with four documents."""
    await client.create_collection("books")
    for name, metadata in {
        "moby": {"year": 1851, "lang": "en", "tags": ["sea", "whale"], "seen": "2024-01-31"},
        "emma": {"year": 1815.5, "lang": "en", "seen": "2024-02-01T10:00:00.25Z"},
        "faust": {"year": "1808", "lang": "de", "tags": ["devil"], "author": {"name": "Goethe"}},
        "plain": {"lang": None},
    }.items():
        await client.put_document(name, f"The novel {name} begins here.", metadata=metadata, collection="books")
    yield "books"
    await client.delete_collection("books")


async def ids(client: AsyncClusterClient, *conditions: str, **options: Any) -> set[str]:
    return {entry.id async for entry in client.list_documents(filter=conditions, collection="books", **options)}


async def test_null_chooses_documents_without_a_field(client: AsyncClusterClient, books: str) -> None:
    assert await ids(client, "lang=null") == {"plain"}
    assert await ids(client, "tags!=null") == {"moby", "faust"}
    assert await ids(client, "tags=null,sea") == {"moby", "emma", "plain"}
    assert await ids(client, "author!=null") == {"faust"}
    assert await ids(client, filters={"field": "meta.tags", "operator": "exists", "value": False}) == {"emma", "plain"}
    hits = (await client.search("novel", collection=books, filter="lang=null")).hits
    assert [hit.document_id for hit in hits] == ["plain"]
    assert await ids(client, "nowhere=null") == {"moby", "emma", "faust", "plain"}


async def test_a_change_of_metadata_keeps_the_text_and_its_tokens(
    shards: Shards, client: AsyncClusterClient, books: str
) -> None:
    name = keys.DocumentName.of("moby", books)
    key, position = keys.document_key(name, tag("moby")), keys.index_key(tag("moby"), books)
    before = await client.get_document("moby", collection=books)

    def places() -> Any:
        return shards.on(shards.node_of(position), "QA.INDEX.LIST", position, 0, 100)

    listed = places()
    shards.client.hset(keys.tokens_key(name, tag("moby")), "0", "stored tokens")
    written = await client.update_document("moby", {"lang": "nl", "year": None}, remove="tags", collection=books)
    after = await client.get_document("moby", collection=books)
    assert written.changed and written.tokenized and after.tokenized and not written.created
    assert written.version == after.version != before.version
    assert after.metadata == {"lang": "nl", "year": None, "seen": "2024-01-31"} and after.text == before.text
    assert after.version == stored.document_version("", canonical_metadata(after.metadata, ""), after.text)
    assert places() == listed
    assert shards.client.hget(keys.tokens_key(name, tag("moby")), "0") == "stored tokens"
    assert shards.client.hget(key, "tokenized") == after.version
    assert await ids(client, "lang=nl") == {"moby"}
    assert await ids(client, "year=null") == {"moby", "plain"}
    again = await client.update_document("moby", {"lang": "nl"}, remove=["tags", "absent"], collection=books)
    assert not again.changed and again.version == after.version
    with pytest.raises(VersionConflict):
        await client.update_document("moby", {"lang": "fr"}, collection=books, if_version=before.version)
    with pytest.raises(NotFound):
        await client.update_document("absent", {"lang": "fr"}, collection=books)
    with pytest.raises(NotFound):
        await client.update_document("moby", {"lang": "fr"}, collection="absent")
    put = await client.put_document("moby", after.text, metadata=after.metadata, collection=books)
    assert not put.changed


async def test_the_metadata_of_a_pending_document_are_indexed_with_it(
    shards: Shards, client: AsyncClusterClient, books: str
) -> None:
    written = await client.put_document("moby", "Call me Ishmael. " * 500, collection=books, wait=False)
    changed = await client.update_document("moby", {"lang": "nl"}, collection=books)
    assert changed.version != written.version

    async def is_found() -> bool:
        return await ids(client, "lang=nl") == {"moby"}

    await eventually_async(is_found)
    assert (await client.get_document("moby", collection=books)).version == changed.version


async def test_a_text_that_a_client_sets_meanwhile_is_not_taken_for_indexed(
    shards: Shards, client: AsyncClusterClient, books: str
) -> None:
    for number in range(5):
        name = keys.DocumentName.of("emma", books)
        shards.client.set(keys.paragraphs_key(name, tag("emma")), f"Pelicans met Emma {number} times.")
        await client.update_document("emma", {"round": number}, collection=books)

        async def is_current(number: int = number) -> bool:
            hits = (await client.search("pelicans", collection="books", filter=f"round={number}")).hits
            return [hit.text for hit in hits] == [f"Pelicans met Emma {number} times."]

        await eventually_async(is_current)


async def test_changes_at_once_lose_no_field(client: AsyncClusterClient, books: str) -> None:
    await asyncio.gather(
        *(client.update_document("emma", {f"field {number}": number}, collection=books) for number in range(12))
    )
    found = (await client.get_document("emma", collection=books)).metadata
    assert {name for name in found if name.startswith("field")} == {f"field {number}" for number in range(12)}


async def test_an_update_by_filter_can_be_repeated(client: AsyncClusterClient, books: str) -> None:
    update = await client.update_documents({"lang": "en-GB"}, filter="lang=en", collection=books)
    assert (update.updated, update.unchanged, update.skipped, update.complete) == (2, 0, 0, True)
    assert (await client.update_documents({"lang": "en-GB"}, filter="lang=en", collection=books)).updated == 0
    assert (await client.update_documents({"lang": "en-GB"}, prefix="m", collection=books)).unchanged == 1
    assert (await client.update_documents(remove="tags", filter="tags!=null", collection=books)).updated == 2
    assert (await client.update_documents(remove="tags", filter="tags=sea", collection=books)).updated == 0
    assert await ids(client, "lang=en-GB") == {"moby", "emma"}
    with pytest.raises(InvalidInput, match="without either"):
        await client.update_documents({"lang": "en"}, collection=books)
    with pytest.raises(InvalidInput, match="needs fields"):
        await client.update_documents(filter="lang=en", collection=books)
    with pytest.raises(InvalidInput, match="did you mean 'lang'"):
        await client.update_documents({"a": 1}, filter="lagn!=en", collection=books)
    late = await client.update_documents({"a": 1}, prefix="", filter="lang!=null", collection=books, timeout=0.0)
    assert not late.complete and late.next_cursor is not None and late.updated == 0
    rest = await client.update_documents(
        {"a": 1}, filter="lang!=null", collection=books, cursor=late.next_cursor, timeout=60
    )
    assert rest.complete and rest.updated == 3


async def test_a_change_invalidates_the_answers_that_show_it(client: AsyncClusterClient) -> None:
    await client.put_document("shag", "Shags nest on cliffs.", metadata={"reviewed": True, "note": "old"})
    await client.put_document("tern", "Terns nest on beaches.", metadata={"reviewed": True})
    question = "Where do shags nest?"

    async def cached(**options: Any) -> bool:
        return (await client.ask(question, **options)).cache.tier == "near"

    for options in ({}, {"filter": "reviewed=true"}, {"filter": "reviewed=false,null"}):
        await client.ask(question, **options)
        await eventually_async(lambda options=options: cached(**options))
    await client.update_document("shag", {"note": "new"})
    for options in ({}, {"filter": "reviewed=true"}):
        found = await client.ask(question, **options)
        assert found.best is not None and found.best.metadata["note"] == "new"
        await eventually_async(lambda options=options: cached(**options))
    await client.update_document("shag", {"reviewed": False})
    found = await client.ask(question, filter="reviewed=false,null")
    assert found.best is not None and found.best.document_id == "shag"
    found = await client.ask(question, filter="reviewed=true")
    assert found.best is None or found.best.document_id != "shag"


async def test_fields_have_types_and_counts(client: AsyncClusterClient, books: str) -> None:
    listed = await client.fields(books)
    assert listed.complete
    assert {
        entry.name: (entry.documents, entry.texts, entry.numbers, entry.booleans, entry.times)
        for entry in listed.fields
    } == {
        "lang": (3, 3, 0, 0, 0),
        "year": (3, 1, 2, 0, 0),
        "tags": (2, 3, 0, 0, 0),
        "seen": (2, 0, 0, 0, 2),
        "author.name": (1, 1, 0, 0, 0),
    }
    assert listed.fields[0].name == "lang"
    await client.update_document("plain", {"äöü 名前": True}, collection=books)
    await client.delete_document("faust", collection=books)
    assert {entry.name for entry in (await client.fields(books)).fields} == {"lang", "year", "tags", "seen", "äöü 名前"}
    with pytest.raises(NotFound):
        await client.fields("absent")


async def test_values_have_counts_and_bounds(client: AsyncClusterClient, books: str) -> None:
    lang = await client.field_values("lang", collection=books)
    assert [(each.value, each.documents) for each in lang.values] == [("en", 2), ("de", 1)]
    assert (lang.documents, lang.missing, lang.distinct, lang.other, lang.exact) == (3, 1, 2, 0, True)
    assert lang.minimum is lang.earliest is None
    year = await client.field_values("meta.year", collection=books, limit=1)
    assert (year.distinct, year.other, year.minimum, year.maximum) == (3, 2, 1815.5, 1851)
    seen = await client.field_values("seen", collection=books)
    assert (seen.earliest, seen.latest) == ("2024-01-31", "2024-02-01T10:00:00.25Z")
    assert await ids(client, f"seen={seen.latest}") == {"emma"}
    tags = await client.field_values("tags", collection=books, filter="lang=en")
    assert [(each.value, each.documents) for each in tags.values] == [("sea", 1), ("whale", 1)]
    assert (tags.documents, tags.missing) == (1, 1)
    with pytest.raises(InvalidInput, match="field: no document of collection books has the field 'yaer': did you mean"):
        await client.field_values("yaer", collection=books)


async def test_an_unknown_field_is_refused_with_the_nearest_name(client: AsyncClusterClient, books: str) -> None:
    for refused in (
        lambda: client.search("novel", collection=books, filter="yaer>1800"),
        lambda: client.ask("Which novel?", collection=books, filter="yaer>1800"),
        lambda: client.count_documents(collection=books, filter="yaer>1800"),
        lambda: client.delete_documents(collection=books, filter="yaer!=1800"),
        lambda: ids(client, "yaer>1800"),
    ):
        with pytest.raises(InvalidInput, match=r"filter: .* has the field 'yaer': did you mean 'year'"):
            await refused()
    with pytest.raises(InvalidInput, match=r"did you mean 'author.name'"):
        await ids(client, "author=Goethe")
    with pytest.raises(InvalidInput, match=r"'zzzzzz'$") as caught:
        await ids(client, filters={"operator": "NOT", "conditions": [{"field": "zzzzzz", "operator": "exists"}]})
    assert caught.value.place == "filters"
    assert (await client.delete_documents(collection=books, filter="yaer=1800")).deleted == 0
    assert await ids(client, "yaer=null,1800", "lang=de") == {"faust"}
    await client.create_collection("empty")
    assert (await client.count_documents(collection="empty", filter="yaer>1800")).documents == 0
    await client.delete_collection("empty")


async def test_a_field_is_known_as_soon_as_its_document_is_written(client: AsyncClusterClient, books: str) -> None:
    for number in range(20):
        await client.put_document(f"new {number}", "A new novel.", metadata={f"f{number}": 1}, collection=books)
        assert await ids(client, f"f{number}=1") == {f"new {number}"}
        late = f"late{number}"
        await client.put_document(late, "A late novel.", metadata={late: 1}, collection=books, wait=False)
        assert await ids(client, f"{late}=1") <= {late}
        await client.update_document("plain", {f"u{number}": 1}, collection=books)
        assert await ids(client, f"u{number}=1") == {"plain"}


async def test_many_values_are_counted_in_pages(client: AsyncClusterClient) -> None:
    await client.create_collection("many")
    metadata = [{"ids": [f"{number}-{index}" for index in range(3000)], "same": "x"} for number in range(12)]
    for number, each in enumerate(metadata):
        await client.put_document(f"d{number}", "A document.", metadata=each, collection="many")
    found = await client.field_values("ids", collection="many", limit=5)
    assert (found.documents, found.distinct, found.other, len(found.values)) == (12, 36_000, 35_995, 5)
    assert [(each.value, each.documents) for each in (await client.field_values("same", collection="many")).values] == [
        ("x", 12)
    ]
    await client.delete_collection("many")


@pytest.mark.parametrize(
    ("metadata", "remove", "words"),
    [
        ({}, [], "needs fields"),
        ({"_source": {}}, [], "'_source'"),
        ({}, ["_source"], "'_source'"),
        ({"a": 1}, ["a"], "set and removed"),
        ({"a": float("nan")}, [], "not JSON"),
        ({"a": 2**64}, [], "64 bits"),
        ({}, [5], "names of fields"),
        ({}, [f"n{number}" for number in range(101)], "the limit is 100"),
    ],
)
def test_faulty_changes_are_refused(metadata: dict[str, Any], remove: list[Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        MetadataChange.of(metadata, remove)


async def test_metadata_that_grow_too_large_are_refused(client: AsyncClusterClient, books: str) -> None:
    await client.update_document("plain", {"a": "x" * 40_000}, collection=books)
    with pytest.raises(InputTooLong, match=r"'plain' has .* bytes as JSON, the limit is 65536"):
        await client.update_document("plain", {"b": "x" * 40_000}, collection=books)
