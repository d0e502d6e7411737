"""`/qa`: results, caching headers, capacity, deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from qa_cluster.types import AskResult
from tests.api.service_under_test import assert_leaving_cancels, assert_problem, serving
from tests.client.scripted_cluster import Node, ScriptedCluster, never, refusal
from tests.harness.polling import eventually_async

ASK = {"question": "Who wrote it?"}


async def write(client: httpx.AsyncClient, name: str, text: str) -> None:
    response = await client.put(f"/documents/{name}", json={"text": text})
    assert response.is_success, response.text


def constant(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in body if name not in ("id", "created", "cache", "timings_ms")}


async def test_get_and_post_give_the_same_result_from_every_cache(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client, serving(cluster) as other:
        await write(client, "a", "Hm. \U0001f600 Zoë wrote it.")
        first = await client.get("/qa", params=ASK)
        assert first.headers["cache-status"] == "qa-cluster; fwd=miss; stored"
        again = await client.get("/qa", params=ASK)
        assert "detail=near" in again.headers["cache-status"]
        posted = await client.post("/qa", json=ASK)
        results = [response.json() for response in (first, again, posted)]
        assert constant(results[0]) == constant(results[1]) == constant(results[2])
        assert [result["cache"]["tier"] for result in results] == ["none", "near", "near"]
        answer = results[1]["answers"][0]
        text = (await client.get("/documents/a")).json()["text"]
        assert text[answer["start"] : answer["end"]] == answer["answer"] == "Zoë"

        async def elsewhere() -> bool:
            return bool((await other.get("/qa", params={**ASK, "cache": "only"})).is_success)

        await eventually_async(elsewhere)
        assert AskResult.from_json(first.content).answers == AskResult.from_json(again.content).answers


async def test_etag_and_the_other_headers(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await write(client, "a", "Ada wrote it.")
        first = await client.get("/qa", params=ASK)
        etag = first.headers["etag"]
        assert etag.startswith('W/"')
        for tag in (etag, f'"other", {etag}', "*"):
            unchanged = await client.get("/qa", params=ASK, headers={"if-none-match": tag})
            assert (unchanged.status_code, unchanged.content) == (304, b"")
            assert unchanged.headers["etag"] == etag
        assert "total;dur=" in first.headers["server-timing"] and "read1;dur=" in first.headers["server-timing"]
        assert first.headers["cache-control"] == "private, no-cache"
        await write(client, "a", "Bob wrote it.")
        changed = await client.get("/qa", params=ASK, headers={"if-none-match": etag})
        assert changed.status_code == 200
        assert changed.json()["answers"][0]["answer"] == "Bob"
        assert (await client.head("/qa", params=ASK)).status_code == 200


async def test_a_result_echoes_the_question_as_the_client_wrote_it(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await write(client, "a", "Ada wrote it.")
        for question in ("Who wrote it?", "WHO wrote it", "Who wrote it?", "WHO wrote it"):
            assert (await client.get("/qa", params={"question": question})).json()["question"] == question


async def test_no_stale_answer_after_a_write_through_the_service(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client, serving(cluster) as other:
        for number in range(60):
            writer, reader = (client, other) if number % 2 else (other, client)
            await write(writer, "a", f"Author{number} wrote it.")
            for asked in (reader, writer, reader):
                result = (await asked.get("/qa", params=ASK)).json()
                assert result["answers"][0]["answer"] == f"Author{number}"
        await other.delete("/documents/a")
        assert (await client.get("/qa", params=ASK)).json()["answerable"] is False


async def test_a_full_shard_is_503_with_retry_after(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        cluster.triggers["rank"] = refusal("OVERLOADED queue is full: 1024 jobs wait")
        assert_problem(await client.get("/qa", params=ASK), 503, "overloaded", "OVERLOADED", "1024")


async def test_a_request_beyond_the_limit_is_503_while_others_are_pending(cluster: ScriptedCluster) -> None:
    release = asyncio.Event()

    async def wait(node: Node, arguments: list[str]) -> Any:
        await release.wait()
        return await cluster.rank(node, arguments)

    async with serving(cluster, max_requests=2) as client:
        cluster.triggers["rank"] = wait
        held = [asyncio.create_task(client.get("/qa", params={"question": f"Who is {n}?"})) for n in range(2)]
        await eventually_async(lambda: cluster.count("rank") == 6 or any(task.done() for task in held))
        assert [task.result().text for task in held if task.done()] == []
        assert_problem(await client.get("/qa", params=ASK), 503, "overloaded", "http_max_requests")
        assert not any(task.done() for task in held)
        assert (await client.get("/livez")).status_code == 200
        release.set()
        assert all(response.status_code == 200 for response in await asyncio.gather(*held))
        assert "qa_http_refused_total 1" in (await client.get("/metrics")).text


async def test_an_exceeded_deadline_is_504(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        cluster.triggers["rank"] = never
        response = await client.get("/qa", params={**ASK, "timeout_ms": 50})
        assert_problem(response, 504, "deadline-exceeded", "50 ms")
        await eventually_async(lambda: cluster.cancelled == cluster.count("rank"))


async def test_a_client_that_disconnects_cancels_its_question(cluster: ScriptedCluster) -> None:
    await assert_leaving_cancels(cluster, "/qa", "question=Who")
