"""`/documents/{id}`: ids with any characters, versions as ETags, `If-Match` and `If-None-Match`."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.api.service_under_test import assert_problem, serving
from tests.client.scripted_cluster import ScriptedCluster

IDS = ["a", "a/b", "a_b:c", "{x} %7B", "über süß", "東京", "a b?c=d#e", "..", "'\"", "a%2Fb"]


async def test_any_id_can_be_written_read_and_deleted(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for document_id in IDS:
            path = f"/documents/{quote(document_id, safe='')}".replace("/..", "/%2E%2E")
            written = await client.put(path, json={"text": "Ada wrote it.", "title": "T", "metadata": {"year": 1}})
            assert (written.status_code, written.json()["id"]) == (201, document_id), written.text
            document = (await client.get(path)).json()
            assert (document["id"], document["text"], document["title"]) == (document_id, "Ada wrote it.", "T")
            assert (document["metadata"], document["tokenized"], document["sentences"]) == ({"year": 1}, True, 1)
            answer = (await client.get("/qa", params={"question": "Who wrote it?"})).json()["answers"][0]
            assert (answer["document_id"], answer["metadata"], answer["title"]) == (document_id, {"year": 1}, "T")
            assert (await client.delete(path)).status_code == 204
            assert_problem(await client.get(path), 404, "not-found")


async def test_versions_are_etags_and_conditional_requests_work(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        first = await client.put("/documents/d", json={"text": "one"}, headers={"if-none-match": "*"})
        etag = first.headers["etag"]
        assert etag == f'"{first.json()["version"]}"'
        again = await client.put("/documents/d", json={"text": "two"}, headers={"if-none-match": "*"})
        assert_problem(again, 412, "version-conflict", "must not exist")
        assert (await client.get("/documents/d", headers={"if-none-match": etag})).status_code == 304
        same = await client.put("/documents/d", json={"text": "one"})
        assert (same.status_code, same.json()["changed"]) == (200, False)
        second = await client.put("/documents/d", json={"text": "two"}, headers={"if-match": etag})
        assert (second.status_code, second.json()["changed"]) == (200, True)
        assert_problem(await client.delete("/documents/d", headers={"if-match": etag}), 412, "version-conflict")
        assert (await client.get("/documents/d")).json()["text"] == "two"
        done = await client.delete("/documents/d", headers={"if-match": second.headers["etag"]})
        assert (done.status_code, done.content) == (204, b"")


async def test_a_write_without_a_worker_is_504_but_the_text_is_stored(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        cluster.tokenizing = False
        waited = await client.put("/documents/d?timeout_ms=5000", json={"text": "Ada wrote it."})
        assert_problem(waited, 504, "deadline-exceeded", "is stored, but was not indexed")
        direct = await client.put("/documents/d?wait=false", json={"text": "Ada wrote it."})
        assert direct.json() | {"version": ""} == {
            "id": "d", "version": "", "changed": False, "created": False, "tokenized": False,
            "vectors": "",
        }  # fmt: skip
        assert (await client.get("/documents/d")).json()["tokenized"] is False


async def test_only_the_id_may_be_percent_encoded(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        assert_problem(await client.put("/%64ocuments/x", json={"text": "one"}), 404, "route-not-found")
        assert_problem(await client.get("/documents/" + quote("/documents/x", safe="")), 404, "not-found")


@pytest.mark.hostile
async def test_a_text_of_too_many_sentences_is_refused_and_nothing_is_stored(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        refused = await client.put("/documents/endless", json={"text": "a。" * 2_000_000})
        assert_problem(refused, 413, "too-long", "'endless' has more than 100000 sentences", "Divide it")
        assert_problem(await client.get("/documents/endless"), 404, "not-found")
