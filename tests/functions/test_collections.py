"""Collections on shards with functions and reader: stock clients, rights, frequencies, and partitions that move."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from qa_cluster import keys
from qa_cluster.clients.async_cluster_client import AsyncClusterClient
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.documents import stored
from qa_cluster.keys import DocumentName, SentenceRef
from qa_cluster.types import Removal
from tests.harness.polling import eventually
from tests.harness.programs import ROOT
from tests.harness.servers import Server

from .running_shards import PARTITIONS, SECONDS, Shards, tag
from .test_moved_partition import moved

TEXT = "Herman Melville wrote Moby Dick. The whale is white."
QUESTION = "Who wrote Moby Dick?"
TAGS = keys.partition_tags(PARTITIONS)
RULES = {
    role.split()[0]: (patterns.split(), commands.split())
    for role, patterns, commands in re.findall(
        r"^\| (\w+ [^|]*`books`) \| `([^`]*)` \| `([^`]*)` \|$", (ROOT / "docs/access.md").read_text(), re.MULTILINE
    )
}


@pytest.fixture
def client(shards: Shards) -> Iterator[ClusterClient]:
    with ClusterClient(f"redis://127.0.0.1:{shards.nodes[0].port}") as made:
        yield made


@pytest.fixture
def books(client: ClusterClient) -> Iterator[str]:
    """A collection that is removed at the end with all its documents."""
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


class Users:
    """The users of docs/access.md, on every server."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        for role, (patterns, commands) in RULES.items():
            for node in shards.nodes:
                shards.on(node, "ACL", "SETUSER", role, "reset", "on", ">pw", "-@all", *patterns, *commands)

    def run(self, role: str, key: str, *command: Any) -> Any:
        with self.shards.node_of(key).client(username=role, password="pw") as connection:
            return connection.execute_command(*command)

    def refused(self, role: str, key: str, *command: Any) -> bool:
        try:
            self.run(role, key, *command)
        except redis.exceptions.NoPermissionError:
            return True
        except redis.ResponseError as error:
            return "NOPERM" in str(error) or "ACL failure" in str(error)
        return False


@pytest.fixture
def users(shards: Shards) -> Iterator[Users]:
    assert sorted(RULES) == ["asks", "searches", "writes"]
    yield Users(shards)
    for node in shards.nodes:
        shards.on(node, "ACL", "DELUSER", *RULES)


def test_a_user_who_may_ask_one_collection_reads_nothing_of_another(
    shards: Shards, client: ClusterClient, books: str, users: Users
) -> None:
    client.put_document("moby", TEXT, collection=books)
    client.put_document("secret", TEXT)
    assert json.loads(users.run("asks", key_of("moby"), "GET", key_of("moby")))["answer"] == "Herman Melville"
    for question in (QUESTION, ":books%/", "x:books%/y", "{t}_books%/", "}_books%/", "_books%/m:{t}:0_q"):
        key = keys.answer_key(SentenceRef("secret", tag("secret"), 0), question)
        named = keys.answer_key(SentenceRef("secret", tag("secret"), 0), question, "tiny")
        for wanted in (key, named):
            assert users.refused("asks", wanted, "GET", wanted), wanted
    for key in (keys.paragraphs_key(name_of("moby"), tag("moby")), keys.index_key(tag("moby"), books)):
        assert users.refused("asks", key, "GET", key)
    assert users.refused("asks", key_of("moby"), "RG.TRIGGER", "qa.models")
    client.delete_document("secret")


def test_a_user_who_may_search_one_collection_reads_nothing_of_another(
    shards: Shards, client: ClusterClient, books: str, users: Users
) -> None:
    client.put_document("moby", TEXT, collection=books)
    client.put_document("secret", TEXT)
    index = keys.index_key(tag("moby"), books)
    rank = ("QA.INDEX.RANK", index, 1, 0, "TERMS", 1, "whale", 0)
    assert users.run("searches", index, *rank)[3][0][0] in ("moby", b"moby")
    assert users.run("searches", index, "GET", keys.paragraphs_key(name_of("moby"), tag("moby"))) == TEXT
    for key in (keys.index_key(tag("secret")), keys.index_key(tag("secret"), "book"), "index:{x}:books:{t}"):
        assert users.refused("searches", key, "QA.INDEX.INFO", key)
    for key in (keys.paragraphs_key("secret", tag("secret")), keys.paragraphs_key("books%/secret", tag("secret"))):
        assert users.refused("searches", key, "GET", key)
    text = keys.paragraphs_key(name_of("moby"), tag("moby"))
    assert users.refused("searches", text, "SET", text, "x")
    client.delete_document("secret")


def test_a_user_who_may_write_one_collection_changes_nothing_of_another(
    shards: Shards, client: ClusterClient, books: str, users: Users
) -> None:
    def put(name: DocumentName) -> tuple[Any, ...]:
        checked = stored.check_document(name.id, TEXT, collection=name.collection)
        return stored.put_document(checked, tag(name.id)).command()

    client.put_document("secret", TEXT)
    own, other = name_of("moby"), DocumentName.of("secret")
    text = keys.paragraphs_key(own, tag("moby"))
    assert users.run("writes", text, *put(own))[0] == "stored"
    eventually(lambda: client.collection(books).documents == 1, SECONDS)
    assert shards.client.get(key_of("moby")) is not None
    changed = stored.check_document("moby", TEXT + " It is big.", collection=books)
    assert users.run("writes", text, *stored.put_document(changed, tag("moby")).command())[0] == "stored"
    assert users.run("writes", text, "SET", text, TEXT)
    assert users.run("writes", text, *stored.delete_document(own, tag("moby")).command())[0] == "deleted"
    place = keys.paragraphs_key(other, tag("secret"))
    assert users.refused("writes", place, *put(other))
    assert users.refused("writes", place, *put(DocumentName.of("secret", "book")))
    assert users.refused("writes", place, *stored.delete_document(other, tag("secret")).command())
    assert users.refused("writes", place, "SET", place, "x")
    listed = keys.collections_key(tag("moby"))
    assert users.refused("writes", listed, "HSET", listed, "more", "ready")
    assert client.get_document("secret").text == TEXT
    client.delete_document("secret")


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
    removal = client.delete_collection("going", timeout=2)  # waits for the slot: keys may arrive behind the removal
    assert not removal.complete
    with moved(shards, slot, source, target):
        last = client.delete_collection("going")
        assert last.complete and removal.deleted + last.deleted <= 24
        assert not [key for key in all_keys(shards) if "going" in key]


def _half_moved(shards: Shards, slot: int, source: Server, target: Server, key: str) -> None:
    """Start to migrate a slot: one key has arrived."""
    source_id, target_id = (shards.on(node, "CLUSTER", "MYID") for node in (source, target))
    shards.on(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    shards.on(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    shards.on(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "REPLACE", "KEYS", key)
