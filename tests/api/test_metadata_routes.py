"""`PATCH /documents`, `PATCH /documents/{id}` and `/collections/{name}/fields`."""

from __future__ import annotations

import httpx
import pytest

from qa_cluster.client import Client, InvalidInput, NotFound
from tests.api.service_under_test import assert_problem, rest_client, serving
from tests.client.scripted_cluster import ScriptedCluster


async def write(client: httpx.AsyncClient) -> None:
    for name, metadata in {"a": {"lang": "en", "y/z ä": 1}, "b": {"lang": "de"}, "c": {}}.items():
        body = {"text": "Ada wrote it. She did.", "metadata": metadata}
        assert (await client.put(f"/documents/{name}", json=body)).is_success


async def test_a_patch_changes_metadata_only(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await write(client)
        before = (await client.get("/documents/a")).json()
        response = await client.patch("/documents/a", json={"metadata": {"lang": "nl"}, "remove": ["y/z ä"]})
        assert response.status_code == 200, response.text
        written, after = response.json(), (await client.get("/documents/a")).json()
        assert written["changed"] and not written["created"] and response.headers["etag"] == f'"{after["version"]}"'
        assert after["metadata"] == {"lang": "nl"} and after["text"] == before["text"]
        assert after["version"] != before["version"] and after["sentences"] == before["sentences"]
        again = await client.patch("/documents/a", json={"metadata": {"lang": "nl"}})
        assert again.json()["changed"] is False
        stale = {"if-match": f'"{before["version"]}"'}
        assert_problem(
            await client.patch("/documents/a", json={"remove": ["lang"]}, headers=stale), 412, "version-conflict"
        )
        assert_problem(await client.patch("/documents/none", json={"remove": ["x"]}), 404, "not-found")
        for body, pointer in (
            ({}, "#/metadata"),
            ({"metadata": {"_source": 1}}, "#/metadata"),
            ({"metadata": {"x": 1}, "remove": ["x"]}, "#/remove"),
            ({"metadata": [], "remove": ["x"]}, "#/metadata"),
            ({"remove": [1]}, "#/remove"),
            ({"text": "x"}, "#/text"),
        ):
            problem = assert_problem(await client.patch("/documents/a", json=body), 422, "validation")
            assert [error["pointer"] for error in problem["errors"]] == [pointer]


async def test_the_metadata_of_selected_documents_are_updated(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await write(client)
        body = {"metadata": {"lang": "xx"}}
        found = await client.patch("/documents", params={"filter": "lang=en,de"}, json=body)
        expected = {"updated": 2, "unchanged": 0, "skipped": 0, "complete": True, "next_cursor": None}
        assert found.json() == expected
        assert (await client.patch("/documents", params={"filter": "lang=en,de"}, json=body)).json()["updated"] == 0
        assert_problem(await client.patch("/documents", json=body), 422, "validation", "without either")
        assert_problem(await client.patch("/documents?cursor=x&prefix=a", json=body), 422, "validation", "next_cursor")


async def test_fields_and_values(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await write(client)
        found = (await client.get("/collections/default/fields")).json()
        assert found["complete"] and {each["name"]: each["documents"] for each in found["data"]} == {
            "lang": 2,
            "y/z ä": 1,
        }
        lang = (await client.get("/collections/default/fields/lang?limit=1")).json()
        assert lang["values"] == [{"value": "de", "documents": 1}] and lang["other"] == 1 and lang["missing"] == 1
        odd = (await client.get("/collections/default/fields/y%2Fz%20%C3%A4")).json()
        assert odd["values"] == [{"value": 1, "documents": 1}] and odd["minimum"] == odd["maximum"] == 1
        assert_problem(await client.get("/collections/none/fields"), 404, "not-found")
        assert_problem(await client.get("/collections/default/fields/%ff"), 422, "validation", "UTF-8")
        assert_problem(await client.get("/collections/default/fields/lang?limit=1001"), 422, "validation", "limit")
        assert_problem(await client.get("/collections/default/fields/" + "x" * 256), 422, "validation", "255 bytes")
        assert_problem(await client.put("/collections/default/fields", json={}), 405, "method-not-allowed")


async def test_the_rest_clients_update_and_count(cluster: ScriptedCluster) -> None:
    async with rest_client(cluster) as (_, client):
        await client.put_document("a", "Ada wrote it.", metadata={"x": 1})
        assert (await client.update_document("a", {"y": [1, 2]}, remove="x")).changed
        assert (await client.update_documents({"z": True}, filter="y=2")).updated == 1
        assert {entry.name for entry in (await client.fields()).fields} == {"y", "z"}
        values = await client.field_values("y", filter="z=true")
        assert [(each.value, each.documents) for each in values.values] == [(1, 1), (2, 1)]
        with pytest.raises(NotFound):
            await client.update_document("none", {"y": 1})
        with pytest.raises(InvalidInput):
            await client.update_documents({"y": 1})
    assert {"update_document", "update_documents", "fields", "field_values"} <= set(dir(Client))
