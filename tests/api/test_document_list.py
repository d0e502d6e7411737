"""`GET /documents` and `GET /documents/count`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from qa_cluster.client import DocumentCounts, DocumentPage, InvalidInput
from qa_cluster.types import Removal
from tests.api.service_under_test import assert_problem, rest_client, serving
from tests.client.scripted_cluster import ScriptedCluster

NAMES = sorted([*(f"n/{number}" for number in range(20)), "other", "count"])


async def write(client: httpx.AsyncClient) -> None:
    for name in NAMES:
        path = "/documents/" + name.replace("/", "%2F")
        assert (await client.put(path, json={"text": "Ada wrote it. She did.", "title": f"T {name}"})).is_success


async def test_the_pages_of_a_list_have_every_document_once(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await write(client)
        found: list[dict[str, Any]] = []
        query = {"limit": "6"}
        while True:
            page = (await client.get("/documents", params=query)).json()
            assert page["object"] == "list" and len(page["data"]) <= 6
            found += page["data"]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        assert sorted(entry["id"] for entry in found) == NAMES
        other = next(entry for entry in found if entry["id"] == "other")
        shown = (await client.get("/documents/other")).json()
        assert other == {
            "object": "qa.document",
            **{name: shown[name] for name in ("id", "title", "version", "sentences", "tokenized", "failure")},
            "length": len(shown["text"]),
        }
        assert len((await client.get("/documents", params={"prefix": "n/"})).json()["data"]) == 20
        wrong = {"cursor": page["next_cursor"] or "bm8", "limit": "6"}
        assert_problem(await client.get("/documents", params=wrong), 422, "validation", "next_cursor")


async def test_the_route_count_and_a_document_with_the_id_count(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await write(client)
        assert (await client.get("/documents/count")).json() == {"documents": 22, "sentences": 44, "waiting": None}
        cluster.tokenizing = False
        await client.put("/documents/late?wait=false", json={"text": "Later."})
        found = (await client.get("/documents/count?waiting=true")).json()
        assert found == {"documents": 22, "sentences": 44, "waiting": 1}
        assert (await client.get("/documents/%63ount")).json()["id"] == "count"
        assert (await client.delete("/documents/count")).status_code == 204
        assert_problem(await client.get("/documents/%63ount"), 404, "not-found")


async def test_the_rest_clients_list_count_and_read_documents_with_any_id(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as http, rest_client(cluster) as (_, client):
        await write(http)
        assert sorted([entry.id async for entry in client.list_documents()]) == NAMES
        assert len([entry async for entry in client.list_documents(prefix="n/")]) == 20
        page = await client.document_page(limit=3)
        assert isinstance(page, DocumentPage) and len(page.documents) == 3
        following = await client.document_page(page.next_cursor or "", limit=100)
        assert {entry.id for entry in (*page.documents, *following.documents)} == set(NAMES)
        assert await client.count_documents(waiting=True) == DocumentCounts(22, 44, 0)
        assert (await client.get_document("count")).id == "count"


async def test_filters_list_count_and_remove(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as http, rest_client(cluster) as (_, client):
        for year in range(2018, 2023):
            metadata = {"year": year, "lang": "en" if year % 2 else "de"}
            await http.put(f"/documents/y{year}", json={"text": "Ada wrote it.", "metadata": metadata})
        late = [entry.id async for entry in client.list_documents(filter=["year>=2020", "lang=de"])]
        assert sorted(late) == ["y2020", "y2022"]
        filters = {"field": "lang", "operator": "==", "value": "en"}
        assert (await client.count_documents(filters=filters)).documents == 2
        assert await client.delete_documents(filters=filters, prefix="y") == Removal(2, True)
        with pytest.raises(InvalidInput, match="all documents would be removed"):
            await client.delete_documents()
        with pytest.raises(InvalidInput, match="must look like"):
            await client.delete_documents(filter="year")
        assert sorted(entry["id"] for entry in (await http.get("/documents")).json()["data"]) == [
            "y2018",
            "y2020",
            "y2022",
        ]
        removed = await http.delete("/documents", params={"filter": "year>2018"})
        assert removed.json() == {"deleted": 2, "complete": True}
        described = (await http.get("/openapi.json")).json()["components"]["schemas"]["Removal"]
        assert set(removed.json()) == set(described["properties"])
        assert 'qa_document_writes_total{operation="delete"} 2' in (await http.get("/metrics")).text
