"""`/search`: GET and POST, headers, capacity, deadlines, clients that disconnect, and the OpenAPI description."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from qa_cluster.types import SearchResult
from tests.api.keyed_requests import bearer, made
from tests.api.service_under_test import assert_leaving_cancels, assert_problem, service, serving
from tests.client.scripted_cluster import Node, ScriptedCluster, never, refusal
from tests.harness.polling import eventually_async

JSON = {"content-type": "application/json"}
QUERY = {"q": "wrote it"}


async def test_get_and_post_give_the_same_result(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        text = "Hm. \U0001f600 Zoë wrote it."
        await client.put("/documents/a", json={"text": text, "title": "T", "metadata": {"k": [1]}})
        await client.put("/documents/b", json={"text": "Bob wrote it."})
        options = {"top_k": 5, "context": 1, "timeout_ms": 5000}
        got = await client.get("/search", params={**QUERY, **options, "doc_id": ["a", "c"]})
        posted = await client.post("/search", json={"query": "wrote it", **options, "doc_id": ["a", "c"]})
        results = [SearchResult.from_json(response.content) for response in (got, posted)]
        assert results[0].hits == results[1].hits
        [hit] = results[0].hits
        assert (text[hit.start : hit.end], hit.title, hit.metadata) == (hit.text, "T", {"k": [1]})
        assert [text[span.start : span.end] for span in hit.highlights] == ["wrote"]
        assert hit.passage is not None and hit.passage.text == text
        assert got.json()["object"] == "qa.search"
        assert got.json()["id"] == got.headers["x-request-id"]
        assert got.headers["cache-control"] == "no-store"
        assert all(f"{stage};dur=" in got.headers["server-timing"] for stage in ("rank", "fetch", "total"))
        assert (await client.head("/search", params=QUERY)).status_code == 200
        assert [hit["document_id"] for hit in (await client.get("/search", params=QUERY)).json()["hits"]] == ["a", "b"]


async def test_filters_in_both_forms(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for name, year in (("a", 2019), ("b", 2021)):
            await client.put(f"/documents/{name}", json={"text": "Ada wrote it.", "metadata": {"year": year}})
        filters = {"field": "meta.year", "operator": ">", "value": 2020}
        for response in (
            await client.get("/search", params={**QUERY, "filter": "year>2020"}),
            await client.get("/search", params={**QUERY, "filters": json.dumps(filters)}),
            await client.post("/search", json={"query": "wrote it", "filter": ["year>2020"]}),
            await client.post("/search", json={"query": "wrote it", "filters": filters}),
        ):
            assert [hit["document_id"] for hit in response.json()["hits"]] == ["b"]
        answered = await client.get("/qa", params={"question": "Who wrote it?", "filter": "year<2020"})
        assert [answer["document_id"] for answer in answered.json()["answers"]] == ["a"]


async def test_a_search_finds_a_document_right_after_its_write(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for number in range(20):
            await client.put("/documents/a", json={"text": f"Author{number} wrote it."})
            [hit] = (await client.get("/search", params=QUERY)).json()["hits"]
            assert hit["text"] == f"Author{number} wrote it."
        await client.delete("/documents/a")
        assert (await client.get("/search", params=QUERY)).json()["hits"] == []


async def test_capacity_and_deadline(cluster: ScriptedCluster) -> None:
    async with serving(cluster, max_requests=1) as client:
        cluster.triggers["rank"] = refusal("OVERLOADED queue is full: 1024 jobs wait")
        assert_problem(await client.get("/search", params=QUERY), 503, "overloaded", "1024")
        cluster.triggers["rank"] = never
        refused = cluster.count("rank")
        # even on a busy machine, the longest timeout lets the request reach all shards
        for timeout_ms in (1000, 5000, 60_000):
            before = cluster.count("rank")
            response = await client.get("/search", params={**QUERY, "timeout_ms": timeout_ms})
            assert_problem(response, 504, "deadline-exceeded", f" {timeout_ms} ms")
            if cluster.count("rank") == before + 3:
                break
        # wait for late calls of this request, which would count for the next request
        await eventually_async(lambda: cluster.cancelled + refused == cluster.count("rank") == before + 3)
        release = asyncio.Event()

        async def wait(node: Node, arguments: list[str]) -> Any:
            await release.wait()
            return await cluster.rank(node, arguments)

        cluster.triggers["rank"] = wait
        asked = cluster.count("rank")
        held = asyncio.create_task(client.get("/search", params=QUERY))
        await eventually_async(lambda: cluster.count("rank") == asked + 3)
        assert_problem(await client.get("/search", params=QUERY), 503, "overloaded", "http_max_requests")
        release.set()
        assert (await held).status_code == 200


async def test_a_client_that_disconnects_cancels_its_search(cluster: ScriptedCluster) -> None:
    await assert_leaving_cancels(cluster, "/search", "q=Ada")


async def test_searches_are_counted(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await client.get("/search", params=QUERY)
        await client.put("/documents/a", json={"text": "Ada wrote it."})
        await client.post("/search", json={"query": "wrote"})
        lines = (await client.get("/metrics")).text.splitlines()
        assert 'qa_http_requests_total{route="/search",method="POST",status="200"} 1' in lines
        assert 'qa_searches_total{outcome="hits"} 1' in lines
        assert 'qa_searches_total{outcome="no_hits"} 1' in lines


async def test_responses_fit_the_openapi_schema(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        described = (await client.get("/openapi.json")).json()
        path = described["paths"]["/search"]
        parameters = {item["name"]: described_type(item) for item in path["get"]["parameters"]}
        body = path["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(parameters) - {"q"} == set(body["properties"]) - {"query"}
        assert (parameters["top_k"]["maximum"], parameters["context"]["default"]) == (1000, 0)
        assert body["required"] == ["query"]
        source = {"file": "a.1", "format": "roff", "sections": [[0, 0, "Authors"]], "unit": "line", "places": "AAY="}
        metadata = {"_source": source, "url": "https://docs.example.org/a.html"}
        await client.put("/documents/a", json={"text": "Ada wrote it.", "metadata": metadata})
        response: httpx.Response = await client.get("/search", params={**QUERY, "context": 2})
        hit = response.json()["hits"][0]
        assert hit["source"] == {"file": "a.1", "line": 3, "page": None}
        assert (hit["url"], hit["metadata"]) == (metadata["url"], {"url": metadata["url"]})
        assert_fits(response.json(), described["components"]["schemas"]["Search"], "result")


def described_type(parameter: dict[str, Any]) -> dict[str, Any]:
    """The type of a parameter; an object is sent as JSON."""
    return dict(parameter.get("schema") or parameter["content"]["application/json"]["schema"])


_KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list}


def assert_fits(value: Any, schema: dict[str, Any], where: str) -> None:
    """Check that the value has exactly the fields of the schema, each with its type."""
    if "const" in schema:
        assert value == schema["const"], where
        return
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if value is None:
        assert "null" in kinds, where
        return
    assert any(isinstance(value, _KINDS[kind]) for kind in kinds if kind != "null"), where
    if "properties" in schema:
        assert set(value) == set(schema["properties"]), where
        for name, inner in schema["properties"].items():
            assert_fits(value[name], inner, f"{where}.{name}")
    if "items" in schema:
        assert value or where.endswith("index.missing"), where
        for item in value:
            assert_fits(item, schema["items"], f"{where}[]")


@pytest.mark.hostile
async def test_missing_rights_of_the_services_user_are_not_an_error_of_the_api_key(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    refused = "NOPERM User service has no permissions to run the 'qa.index.rank' command"
    cluster.triggers["rank"] = refusal(refused)
    async with serving(cluster) as client:
        for _ in range(2):
            for path, name in (("/search", "q"), ("/qa", "question")):
                response = await client.get(path, params={name: "Who wrote it?"})
                assert_problem(response, 503, "shard-unavailable", "the cause is in the service's log")
                assert "NOPERM" not in response.text
    logged = [record.getMessage() for record in caplog.records if refused in record.getMessage()]
    # at most one log line for each of the three shards, not one for each request
    assert 1 <= len(logged) <= 3
    assert all("Grant it" in text and "+qa.index.rank" in text for text in logged)


async def test_all_collections_means_the_collections_of_the_key(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        for name in ("books", "news"):
            assert (await client.post("/collections", json={"name": name})).status_code == 201
            await client.put(f"/documents/a?collection={name}", json={"text": f"Ada wrote {name}."})
        await client.put("/documents/a", json={"text": "Ada wrote letters."})
        _, every = await made(app, "search")
        _, some = await made(app, "search", collections=("books", "gone"))

        async def found(key: str, *names: str) -> list[str]:
            response = await client.get("/search", params={"q": "wrote", "collection": names}, headers=bearer(key))
            assert response.status_code == 200, response.text
            return sorted(hit["collection"] for hit in response.json()["hits"])

        assert await found(every, "*") == ["books", "default", "news"]
        assert await found(every, "books", "news", "books") == ["books", "news"]
        assert await found(some, "*") == await found(some, "books") == ["books"]
        refused = await client.get("/search?q=wrote&collection=books&collection=news", headers=bearer(some))
        assert_problem(refused, 403, "forbidden", "'news'")
        for body in ({"collection": "*"}, {"collection": ["books"]}, {"collection": "books"}):
            posted = await client.post("/search", json={"query": "wro", "prefix": True, **body}, headers=bearer(some))
            assert [hit["collection"] for hit in posted.json()["hits"]] == ["books"]
        both = await client.get("/search?q=a&collection=*&collection=books", headers=bearer(every))
        assert_problem(both, 422, "validation", "leave out the others")
        bad = await client.get("/search?q=a&collection=B", headers=bearer(every))
        assert_problem(bad, 422, "validation", "collection must be")
