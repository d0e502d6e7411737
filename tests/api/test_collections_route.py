"""The route `/collections`, and the parameter `collection` of the other routes."""

from __future__ import annotations

from itertools import product

import pytest

from qa_cluster.client import CollectionBusy, CollectionEntry, InvalidInput, NotFound
from qa_cluster.types import Removal
from tests.api.service_under_test import assert_problem, rest_client, service, serving
from tests.client.scripted_cluster import ScriptedCluster

ASKED = {"question": "Who wrote programs?"}


async def test_a_collection_is_created_listed_counted_and_deleted(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        made = await client.post("/collections", json={"name": "books"})
        assert (made.status_code, made.json()) == (201, {"name": "books", "created": True})
        again = await client.post("/collections", json={"name": "books"})
        assert (again.status_code, again.json()) == (200, {"name": "books", "created": False})
        put = await client.put("/documents/ada", params={"collection": "books"}, json={"text": "Ada wrote programs."})
        assert put.status_code == 201
        found = {"object": "qa.collection", "name": "books", "state": "ready", "documents": 1, "sentences": 1}
        assert (await client.get("/collections/books")).json() == found
        listed = (await client.get("/collections")).json()
        assert listed["object"] == "list" and [entry["name"] for entry in listed["data"]] == ["default", "books"]
        assert (await client.delete("/collections/books")).json() == {"deleted": 1, "complete": True}
        assert_problem(await client.get("/collections/books"), 404, "not-found", "POST /collections")
        assert 'qa_document_writes_total{operation="delete"} 1' in (await client.get("/metrics")).text


async def test_every_route_accepts_a_collection(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await client.post("/collections", json={"name": "books"})
        await client.put("/documents/ada", params={"collection": "books"}, json={"text": "Ada wrote programs."})
        books = {"collection": "books"}
        for of, answers in ((books, 1), ({}, 0)):
            assert len((await client.get("/qa", params={**ASKED, **of})).json()["answers"]) == answers
            assert len((await client.post("/qa", json={**ASKED, **of})).json()["answers"]) == answers
            assert len((await client.get("/search", params={"q": "programs", **of})).json()["hits"]) == answers
            assert len((await client.post("/search", json={"query": "programs", **of})).json()["hits"]) == answers
            assert (await client.get("/documents/count", params=of)).json()["documents"] == answers
            assert len((await client.get("/documents", params=of)).json()["data"]) == answers
            assert (await client.get("/documents/ada", params=of)).status_code == (200 if answers else 404)
        assert (await client.get("/qa", params={**ASKED, **books})).json()["cache"]["tier"] == "near"
        assert (await client.delete("/documents/ada")).status_code == 404
        assert (await client.delete("/documents/ada", params=books)).status_code == 204
        await client.put("/documents/bob", params=books, json={"text": "Bob wrote programs."})
        removed = await client.delete("/documents", params={"prefix": "b", **books})
        assert removed.json() == {"deleted": 1, "complete": True}


NAMED = [
    ("GET", "/qa?question=Who%3F&collection="),
    ("GET", "/search?q=x&collection="),
    ("GET", "/documents?collection="),
    ("GET", "/documents/count?collection="),
    ("GET", "/documents/a?collection="),
    ("PUT", "/documents/a?collection="),
    ("DELETE", "/documents/a?collection="),
    ("GET", "/collections/"),
    ("DELETE", "/collections/"),
]


async def test_every_route_refuses_an_invalid_name(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for name, (method, path) in product(("Books", "a b", "%C3%BC", "x" * 65, "a%2Fb"), NAMED):
            response = await client.request(method, path + name, json={"text": "Text."} if method == "PUT" else None)
            if len(name) > 64 and "collection=" in str(response.request.url):
                assert_problem(response, 413, "too-long", "64")
            else:
                assert_problem(response, 422, "validation", "collection must be 1 to 64 characters of a-z")
        assert (await client.get("/collections")).json()["data"][1:] == []


async def test_unknown_collections_and_wrong_requests(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        none = {"collection": "none"}
        for request in (
            client.get("/qa", params={**ASKED, **none}),
            client.get("/search", params={"q": "x", **none}),
            client.get("/documents", params=none),
            client.put("/documents/a", params=none, json={"text": "Text."}),
            client.delete("/collections/none"),
        ):
            assert_problem(await request, 404, "not-found", "no such collection: 'none'")
        assert_problem(await client.delete("/collections/default"), 422, "validation", "always exists")
        assert_problem(await client.put("/collections/books"), 405, "method-not-allowed", "GET, HEAD, DELETE")
        assert_problem(await client.delete("/collections"), 405, "method-not-allowed", "GET, HEAD, POST")
        assert_problem(await client.post("/collections", json={"name": 7}), 422, "validation", "#/name")
        assert_problem(await client.post("/collections", json={}), 422, "validation", "name is required")
        wrong = await client.post("/collections", content=b"{}", headers={"content-type": "text/plain"})
        assert_problem(wrong, 415, "unsupported-media-type")
        assert_problem(await client.get("/collections?x=1"), 422, "validation", "is not a parameter of this route")
        assert (await client.head("/collections")).status_code == 200


async def test_questions_do_not_see_a_collection_that_is_being_deleted(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await client.post("/collections", json={"name": "books"})
        await client.put("/documents/ada", params={"collection": "books"}, json={"text": "Ada wrote programs."})
        books = {**ASKED, "collection": "books"}
        assert (await client.get("/qa", params=books)).json()["answerable"]
        assert (await client.get("/qa", params=books)).json()["cache"]["tier"] == "near"
        await app.state.engine.collections.begin_removal("books")
        assert_problem(await client.get("/qa", params=books), 404, "not-found", "is being deleted")
        busy = assert_problem(await client.post("/collections", json={"name": "books"}), 409, "collection-busy")
        assert busy["code"] == "DELETING"
        assert (await client.get("/collections/books")).json()["state"] == "deleting"
        done = await client.delete("/collections/books", params={"timeout_ms": "60000"})
        assert done.json() == {"deleted": 1, "complete": True}


async def test_the_rest_clients_manage_collections(cluster: ScriptedCluster) -> None:
    async with rest_client(cluster) as (app, client):
        assert await client.create_collection("books") and not await client.create_collection("books")
        await client.put_document("ada", "Ada wrote programs.", collection="books")
        assert (await client.ask("Who wrote programs?", collection="books")).answerable
        assert not (await client.ask("Who wrote programs?")).answerable
        assert (await client.search("programs", collection="books")).hits[0].document_id == "ada"
        assert await client.collection("books") == CollectionEntry("books", "ready", 1, 1)
        assert [entry.name for entry in await client.collections()] == ["default", "books"]
        assert (await client.get_document("ada", collection="books")).text == "Ada wrote programs."
        assert [entry.id async for entry in client.list_documents(collection="books")] == ["ada"]
        assert (await client.count_documents(collection="books")).documents == 1
        with pytest.raises(NotFound, match="no such document"):
            await client.delete_document("ada")
        await client.delete_document("ada", collection="books")
        await app.state.engine.collections.begin_removal("books")
        with pytest.raises(CollectionBusy, match="being deleted"):
            await client.create_collection("books")
        assert await client.delete_collection("books") == Removal(0, True)
        with pytest.raises(NotFound, match="no such collection"):
            await client.collection("books")
        with pytest.raises(InvalidInput, match="collection must be 1 to 64"):
            await client.collection("../models")
