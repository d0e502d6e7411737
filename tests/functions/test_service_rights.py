"""The rights of docs/access.md are enough for the REST service and the cluster clients, and reach no internal key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from qa_cluster import keys
from qa_cluster.api.batches.running import OwnerBatches
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.engine import EngineOptions
from qa_cluster.batches.records import ANONYMOUS_OWNER, BatchLimits
from qa_cluster.batches.store import BatchStore
from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.ranking.ranker import RIGHTS
from qa_cluster.routing.connection import Login
from qa_cluster.topology import Address
from qa_cluster.types import Document, Feedback, Pin, Synonyms
from tests.api.service_under_test import service
from tests.harness.programs import ROOT

from .running_shards import Shards, tag

TEXT = "Herman Melville wrote Moby Dick. The whale is white."
QUESTION = "Who wrote Moby Dick?"
SECTION = (
    (ROOT / "docs/access.md")
    .read_text()
    .partition("## Rights of the service and the cluster clients")[2]
    .partition("\n## ")[0]
)
ROWS = {
    name: [rule.replace("\\|", "|") for rule in re.findall(r"\([^)]*\)|\S+", rules)]
    for name, rules in re.findall(r"^\| ([^|]+) \| `([^`]*)`", SECTION, re.MULTILINE)
}
WRITING = "write and remove documents"
COLLECTIONS = "create and remove collections"


@contextmanager
def user(shards: Shards, *without: str) -> Iterator[str]:
    """The URL of the cluster for a user with the rights of all rows except `without`."""
    rules = [rule for name, row in ROWS.items() if name not in without for rule in row]
    for node in shards.nodes:
        shards.on(node, "ACL", "SETUSER", "service", "reset", "on", ">pw", "-@all", *rules)
        shards.on(node, "ACL", "LOG", "RESET")
    try:
        yield f"redis://service:pw@127.0.0.1:{shards.nodes[0].port}"
    finally:
        for node in shards.nodes:
            shards.on(node, "ACL", "DELUSER", "service")


def refusals(shards: Shards) -> set[str]:
    """The commands and keys that the servers have refused to the user, from their logs."""
    return {f"{entry['object']}" for node in shards.nodes for entry in shards.on(node, "ACL", "LOG", 128)}


def test_the_rights_are_enough_for_a_cluster_client(shards: Shards) -> None:
    assert len(ROWS) == 18 and " ".join(ROWS["rank sentences"]) == RIGHTS
    with user(shards) as url, ClusterClient(url) as client:
        assert client.create_collection("more")
        for collection in ("default", "more"):
            assert client.put_document("service/d", TEXT, collection=collection).tokenized
            found = client.ask(QUESTION, collection=collection)
            assert found.best is not None and found.best.answer == "Herman Melville"
            assert client.search("whale", collection=collection).hits
            client.put_pin(Pin("Who knows?", "Ishmael."), collection=collection)
            client.set_synonyms(Synonyms(("whale, leviathan",)), collection=collection)
            client.send_feedback(Feedback(QUESTION, "right"), collection=collection)
            assert client.search("leviathan", collection=collection).hits
            assert [pin.answer for pin in client.pins(collection)] == ["Ishmael."]
            assert client.feedback(collection) and client.unanswered_questions(collection) is not None
            client.delete_pin("who knows", collection=collection)
            client.set_synonyms(Synonyms(), collection=collection)
            assert client.search("wha", collection=collection, prefix=True).hits
            assert client.get_document("service/d", collection=collection).text == TEXT
            assert list(client.list_documents(failed=True, collection=collection)) == []
            assert [each.id for each in client.list_documents(prefix="service/", collection=collection)] == [
                "service/d"
            ]
            assert client.count_documents(collection=collection, waiting=True).documents >= 1
            client.ask(QUESTION, collection=collection, cache="refresh")
            assert client.update_document("service/d", {"lang": "en"}, collection=collection).changed
            assert client.update_documents({"lang": "de"}, prefix="service/", collection=collection).updated == 1
            assert client.search("whale", filter="lang=de", collection=collection).hits
            assert "lang" in {entry.name for entry in client.fields(collection).fields}
            assert "de" in {each.value for each in client.field_values("lang", collection=collection).values}
        assert {entry.name for entry in client.collections()} >= {"default", "more"}
        assert client.models()
        client.put_documents([Document(f"service/{number}", TEXT) for number in range(20)], wait=True)
        assert client.delete_document("service/d")
        assert client.delete_documents(prefix="service/").deleted == 20
        assert client.delete_collection("more").complete
        assert refusals(shards) == set()
    assert not [key for node in shards.nodes for key in shards.on(node, "KEYS", "*") if "more" in str(key)]


async def test_the_rights_are_enough_for_the_rest_service(shards: Shards) -> None:
    address = Address("127.0.0.1", shards.nodes[0].port)
    target = Target([address], Login("service", "pw", connect_timeout_seconds=10), EngineOptions())
    with user(shards):
        async with service(target) as (app, client):
            assert (await client.put("/documents/service", json={"text": TEXT})).status_code in (200, 201)
            for _ in range(2):
                assert (await client.get("/qa", params={"question": QUESTION})).json()["answerable"]
            assert (await client.get("/search", params={"q": "whale"})).status_code == 200
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.get("/metrics")).status_code == 200
            body = b'{"custom_id": "a", "method": "POST", "url": "/qa", "body": {"question": "Who wrote Moby Dick?"}}'
            file = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": body})
            asked = {"input_file_id": file.json()["id"], "endpoint": "/qa", "completion_window": "24h"}
            batch = (await client.post("/v1/batches", json=asked)).json()["id"]
            engine = app.state.engine
            store = BatchStore(engine.shards, BatchLimits())
            assert ANONYMOUS_OWNER in await store.owners() and await store.has_work(ANONYMOUS_OWNER)
            assert await OwnerBatches(engine, store, ANONYMOUS_OWNER).run(60)
            ended = (await client.get(f"/v1/batches/{batch}")).json()
            assert ended["status"] == "completed" and ended["request_counts"]["completed"] == 1
            for name in (ended["input_file_id"], ended["output_file_id"]):
                assert (await client.get(f"/v1/files/{name}/content")).status_code == 200
                assert (await client.delete(f"/v1/files/{name}")).status_code == 200
            assert (await client.post(f"/v1/batches/{batch}/cancel")).status_code == 409
            assert (await client.delete("/documents/service")).status_code in (200, 204)
        assert refusals(shards) == set()


@pytest.mark.hostile
def test_the_service_cannot_write_internal_keys(shards: Shards) -> None:
    """The module and the worker write these keys. The service's user may not write them, also not in a script."""
    partition = tag("d")
    internal = [
        *(make(partition) for make in (keys.pending_key, keys.failures_key, keys.layout_key, keys.flight_key)),
        keys.sentence_answer_list_key(partition),
        keys.sentence_answer_bytes_key(partition),
        keys.whole_answer_list_key(partition),
        keys.whole_answer_bytes_key(partition),
        keys.index_key(partition, "books"),
        keys.epoch_key(partition, "books"),
    ]
    writes = [
        *(["SET", "1"], ["DEL"], ["UNLINK"], ["HSET", "a", "1"], ["ZADD", "1", "a"], ["INCRBY", "1"], ["EXPIRE", "1"]),
        *(["RENAME", "x{{{tag}}}"], ["QA.INDEX.DEL", "a"], ["QA.PUTDOCUMENT", *"12345678"], ["QA.DELCOLLECTION", "a"]),
    ]
    with user(shards), shards.node_of(internal[0]).client(username="service", password="pw") as connection:
        for key in internal:
            for command, *rest in writes:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    connection.execute_command(command, key, *rest)
            with pytest.raises(redis.ResponseError, match=r"NOPERM|ACL|permission"):
                connection.eval("return redis.call('SET', KEYS[1], 'x')", 1, key)


@pytest.mark.parametrize("row", [WRITING, COLLECTIONS])
def test_without_the_rights_of_a_row_its_work_is_refused(shards: Shards, row: str) -> None:
    with user(shards, row) as url, ClusterClient(url) as client:
        work = {
            WRITING: lambda: client.put_document("service/d", TEXT),
            COLLECTIONS: lambda: client.create_collection("more"),
        }
        with pytest.raises(Exception, match="NOPERM"):
            work[row]()
