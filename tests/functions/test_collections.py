"""Collections on shards with functions and reader: stock clients, frequencies, and partitions that move."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from qa_cluster import keys
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.keys import DocumentName, SentenceRef
from qa_cluster.types import Removal
from tests.harness.polling import eventually
from tests.harness.servers import Server

from .running_shards import PARTITIONS, SECONDS, Shards, tag
from .test_moved_partition import moved

TEXT = "Herman Melville wrote Moby Dick. The whale is white."
QUESTION = "Who wrote Moby Dick?"
TAGS = keys.partition_tags(PARTITIONS)


@pytest.fixture
def client(shards: Shards) -> Iterator[ClusterClient]:
    with ClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as made:
        yield made


@pytest.fixture
def books(client: ClusterClient) -> Iterator[str]:
    """A collection that is removed after the test with all its documents."""
    assert client.create_collection("books")
    yield "books"
    assert client.delete_collection("books").complete


def name_of(document_id: str) -> DocumentName:
    return DocumentName.of(document_id, "books")


def key_of(document_id: str, question: str = QUESTION, model: str = "") -> str:
    """The key of the first sentence's answer of a document in the collection."""
    return keys.answer_key(SentenceRef(name_of(document_id), tag(document_id), 0), question, model)


def all_keys(shards: Shards) -> set[str]:
    return {str(key) for node in shards.nodes for key in shards.on(node, "KEYS", "*")}


def test_stock_clients_write_to_a_collection_and_ask_its_sentences(
    shards: Shards, client: ClusterClient, books: str
) -> None:
    shards.client.set(keys.paragraphs_key(name_of("moby"), tag("moby")), TEXT)
    eventually(lambda: client.collection(books).documents == 1, SECONDS)
    answer = json.loads(shards.client.get(key_of("moby")))
    assert answer["answer"] == "Herman Melville" and answer["document_id"] == "moby"
    assert shards.client.get(keys.answer_key(SentenceRef("moby", tag("moby"), 0), QUESTION)) is None
    found = client.ask(QUESTION, collection=books)
    assert found.best is not None and (found.best.answer, found.best.document_id) == ("Herman Melville", "moby")
    assert not client.ask(QUESTION, doc_id="moby").answerable, "the default collection has no document of that name"
    shards.client.delete(keys.paragraphs_key(name_of("moby"), tag("moby")))
    eventually(lambda: client.collection(books).documents == 0, SECONDS)
    assert shards.client.get(key_of("moby")) is None


def test_a_text_without_a_collection_is_not_ranked(shards: Shards, client: ClusterClient) -> None:
    name = DocumentName.of("lost", "nowhere")
    shards.client.set(keys.paragraphs_key(name, tag("lost")), TEXT)
    node = shards.node_of(keys.paragraphs_key(name, tag("lost")))
    eventually(lambda: "no collection 'nowhere'" in str(shards.on(node, "RG.DUMPREGISTRATIONS")), SECONDS)
    assert not shards.client.exists(keys.document_key(name, tag("lost")))
    assert not shards.client.exists(keys.index_key(tag("lost"), "nowhere"))
    assert client.create_collection("nowhere")
    shards.client.set(keys.paragraphs_key(name, tag("lost")), TEXT)
    eventually(lambda: client.collection("nowhere").documents == 1, SECONDS)
    assert client.delete_collection("nowhere") == Removal(1, True)


def test_ranking_is_by_the_frequencies_of_the_collection(shards: Shards, client: ClusterClient, books: str) -> None:
    for number in range(8):
        client.put_document(f"f{number}", f"The wombat number {number} digs. Burrows are long.", collection=books)
    for number in range(8):
        client.put_document(f"outside/{number}", "A wombat digs long burrows, and long tunnels.")

    found = shards.rank("long wombat burrows", 100, collection=books)
    assert found.sentences == 16 and sorted(found.frequencies) == [8, 8, 8]
    assert len(found.candidates) == 16
    assert all(hit.sentence.startswith("books%/f") for hit in found.candidates)
    default = [hit.sentence for hit in shards.rank("long wombat burrows", 100).candidates]
    assert any(name.startswith("outside/") for name in default)
    assert not any("%/" in name for name in default)
    client.delete_documents(prefix="outside/")


async def test_documents_and_collections_move_with_their_slots(shards: Shards, client: ClusterClient) -> None:
    async with AsyncClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as other:
        assert await other.create_collection("moving")
        names = [f"m{number}" for number in range(24)]
        for name in names:
            await other.put_document(name, f"Sentence about {name} whales.", collection="moving")
        before = (await other.search("whales", collection="moving", top_k=50)).hits
        partition = tag(names[0])
        source = shards.node_of(keys.index_key(partition))
        target = next(node for node in shards.nodes if node is not source)

        def inside() -> Removal:
            with moved(shards, keys.slot(partition), source, target):
                assert client.collection("moving").documents == 24
                assert client.collection("moving").state == "ready"
                again = client.search("whales", collection="moving", top_k=50).hits
                assert sorted((hit.document_id, hit.score) for hit in again) == sorted(
                    (hit.document_id, hit.score) for hit in before
                )
                client.put_document(names[0], "Another text about whales.", collection="moving")
                return client.delete_collection("moving")

        assert await asyncio.to_thread(inside) == Removal(24, True)
        assert [entry.name for entry in await other.collections()] == ["default"]
    assert not [key for key in all_keys(shards) if "moving" in key]


def test_a_removal_during_a_migration_deletes_everything(shards: Shards, client: ClusterClient) -> None:
    assert client.create_collection("going")
    for number in range(24):
        client.put_document(f"g{number}", TEXT, collection="going")
    partition = tag("g0")
    slot = keys.slot(partition)
    source = shards.node_of(keys.index_key(partition))
    target = next(node for node in shards.nodes if node is not source)
    _half_moved(shards, slot, source, target, keys.document_key(DocumentName.of("g0", "going"), partition))
    removal = client.delete_collection("going", timeout=2)  # waits for the slot: more keys may arrive
    assert not removal.complete
    with moved(shards, slot, source, target):
        last = client.delete_collection("going")
        assert last.complete and removal.deleted + last.deleted <= 24
        assert not [key for key in all_keys(shards) if "going" in key]


def _half_moved(shards: Shards, slot: int, source: Server, target: Server, key: str) -> None:
    """Start the migration of a slot, and move one key."""
    source_id, target_id = (shards.on(node, "CLUSTER", "MYID") for node in (source, target))
    shards.on(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    shards.on(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    shards.on(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "REPLACE", "KEYS", key)
