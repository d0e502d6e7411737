"""`Prefer: respond-async`: submitted questions, their results, several processes, keys, limits, and futures."""

from __future__ import annotations

import asyncio
import signal
import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import httpx
import pytest

from qa_cluster.access.records import KeyLimits
from qa_cluster.api.app import Application
from qa_cluster.api.routes import background
from qa_cluster.asking.answers.submissions import SubmittedQuestions
from qa_cluster.client import AsyncClient, AsyncClusterClient, Client, ClusterClient, ClusterError, QueueFull
from qa_cluster.clients import submitting
from qa_cluster.errors import DeadlineExceeded, InvalidInput, NotFound
from qa_cluster.keys import submission_key, submissions_key
from qa_cluster.types import AskResult, CacheUse, Index, Model, Timings, Usage
from tests.api.keyed_requests import bearer, made
from tests.api.service_under_test import assert_problem, listening, rest_client, service, serving
from tests.api.test_process import serving as process
from tests.client.scripted_cluster import Node, ScriptedCluster, never, refusal
from tests.harness.polling import eventually_async

LATER = {"prefer": "respond-async"}
QUESTION = "Who wrote programs?"
ADA = "Ada wrote programs."


async def submitted(client: httpx.AsyncClient, question: str = QUESTION, key: str = "", **fields: Any) -> str:
    """Submit a question and return the path of its result."""
    response = await client.post("/qa", json={"question": question, **fields}, headers=LATER | bearer(key))
    assert response.status_code == 202, response.text
    assert response.headers["preference-applied"] == "respond-async"
    body = response.json()
    assert (body["object"], body["state"], body["detail"]) == ("qa.submission", "pending", "")
    assert response.headers["location"] == f"/qa/results/{body['id']}"
    return response.headers["location"]


async def done(client: httpx.AsyncClient, path: str, key: str = "") -> httpx.Response:
    """Wait for the result and return it."""
    found: list[httpx.Response] = []

    async def ended() -> bool:
        found.append(await client.get(path, headers=bearer(key)))
        if found[-1].status_code == 202:
            assert found[-1].headers["retry-after"] == "1"
            assert path.endswith(found[-1].json()["id"])
        return found[-1].status_code != 202

    await eventually_async(ended)
    return found[-1]


def gate(cluster: ScriptedCluster) -> asyncio.Event:
    """Make rankings wait until the returned event is set."""
    opened = asyncio.Event()

    async def rank(node: Node, arguments: list[str]) -> Any:
        await opened.wait()
        return await cluster.rank(node, arguments)

    cluster.triggers["rank"] = rank
    return opened


def short_leases(app: Application, seconds: float) -> None:
    """Give submissions leases of `seconds`, which soon expire if the process does not renew them."""
    app.state.engine.submissions = SubmittedQuestions(app.state.engine.shards, lease_seconds=seconds)


async def die(app: Application) -> None:
    """Cancel the submission tasks of a process. As after a kill, the submissions keep their leases."""
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("submission ")]
    app.state.on_stop.clear()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_submitted_question_is_polled_until_it_is_answered(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await client.put("/documents/ada", json={"text": ADA})
        opened = gate(cluster)
        path = await submitted(client, top_k=1)
        pending = await client.get(path)
        assert pending.status_code == 202 and pending.headers["cache-control"] == "no-store"
        assert 3500 < pending.json()["expires"] - time.time() <= 3600
        assert "qa_submitted_questions 1" in (await client.get("/metrics")).text
        opened.set()
        answered = await done(client, path)
        assert answered.status_code == 200 and answered.headers["etag"]
        assert answered.json()["answers"][0]["answer"] == "Ada"
        assert (await client.get(path)).content == answered.content
        assert (await client.head(path)).status_code == 200
        assert_problem(await client.post(path), 405, "method-not-allowed", "GET, HEAD, DELETE")
        metrics = (await client.get("/metrics")).text
        assert 'qa_http_requests_total{route="/qa",method="POST",status="202"} 1' in metrics
        assert 'qa_http_requests_total{route="/qa/results/{id}",method="GET",status="200"}' in metrics
        assert "qa_submitted_questions 0" in metrics
        assert (await client.delete(path)).status_code == 204
        for method in ("GET", "DELETE"):
            assert_problem(await client.request(method, path), 404, "result-not-found", "deleted", "another API key")
        assert_problem(await client.get("/qa/results/x"), 404, "result-not-found")


async def test_a_query_string_can_be_submitted_even_if_its_answer_is_cached(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await client.put("/documents/ada", json={"text": ADA})
        for _ in range(3):
            assert (await client.get("/qa", params={"question": QUESTION})).status_code == 200
        for preference in ("respond-async", "wait=5, Respond-Async", "respond-async; x=1"):
            response = await client.get(
                "/qa", params={"question": QUESTION}, headers={"prefer": preference, "x-request-id": "mine"}
            )
            assert response.status_code == 202, preference
            found = await done(client, response.headers["location"])
            assert found.json()["id"] == "mine" != found.headers["x-request-id"]
        for preference in ("return=minimal", "x-respond-async"):
            response = await client.get("/qa", params={"question": QUESTION}, headers={"prefer": preference})
            assert response.status_code == 200
        assert (await client.head("/qa", params={"question": QUESTION}, headers=LATER)).status_code == 200
    async with serving(cluster, async_results_max=0) as client:
        response = await client.post("/qa", json={"question": QUESTION}, headers=LATER)
        assert response.status_code == 200 and "preference-applied" not in response.headers


async def test_bad_requests_are_refused_at_once_and_failures_are_results(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for fields in ({"question": ""}, {"question": "x", "top_k": 0}, {"question": "x", "filter": "?"}):
            assert_problem(await client.post("/qa", json=fields, headers=LATER), 422, "validation")
        path = await submitted(client, collection="nothing")
        assert_problem_of_question(await done(client, path), 404, "not-found", "nothing")
        path = await submitted(client, cache="only")
        assert_problem_of_question(await done(client, path), 404, "cache-miss", "cached")
        await client.put("/documents/ada", json={"text": ADA})
        cluster.triggers["rank"] = never
        path = await submitted(client, timeout_ms=100)
        assert_problem_of_question(await done(client, path), 504, "deadline-exceeded", "100 ms")


def assert_problem_of_question(response: httpx.Response, status: int, kind: str, *said: str) -> None:
    """Check the error of a submitted question, including the id of the request that submitted it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (body["type"], body["status"], body["instance"]) == (f"urn:qa-cluster:problem:{kind}", status, "/qa")
    assert body["request_id"] != response.headers["x-request-id"]
    for text in said:
        assert text in body["detail"]


async def test_a_shard_that_is_not_ready_leaves_the_question_pending(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.0)
    async with serving(cluster) as client:
        await client.put("/documents/ada", json={"text": ADA})
        cluster.triggers["qa.read"] = refusal("NOWORKER no worker")
        path = await submitted(client, coverage="full")

        async def released() -> bool:
            response = await client.get(path)
            assert response.status_code == 202
            return "no worker" in response.json()["detail"]

        await eventually_async(released)
        for _ in range(5):  # retries, which do not count as dead processes
            await eventually_async(released)
        cluster.triggers["qa.read"] = cluster.read
        assert (await done(client, path)).json()["answerable"] is True


async def test_another_process_serves_the_result(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (_, first), service(cluster.target()) as (_, second):
        await first.put("/documents/ada", json={"text": ADA})
        opened = gate(cluster)
        path = await submitted(first)
        assert (await second.get(path)).status_code == 202
        opened.set()
        answered = await done(second, path)
        assert answered.status_code == 200
        assert (await first.get(path)).content == answered.content
        assert cluster.count("rank") == 3, "only the first process asks the shards"


async def test_another_process_answers_the_questions_of_a_stopped_process(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (_, second):
        async with service(cluster.target()) as (_, first):
            await first.put("/documents/ada", json={"text": ADA})
            cluster.triggers["rank"] = never
            path = await submitted(first)
            await eventually_async(lambda: cluster.count("rank") == 3)
        cluster.triggers["rank"] = cluster.rank
        pending = await second.get(path)
        assert pending.status_code == 202 and "retried" in pending.json()["detail"]
        assert (await done(second, path)).status_code == 200


@pytest.mark.hostile
async def test_a_poll_restarts_the_question_of_a_dead_process_three_times(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (_, last):
        cluster.triggers["rank"] = never
        path = ""
        for asked in (3, 6, 9):
            async with service(cluster.target()) as (app, client):
                short_leases(app, 0.5)
                if not path:
                    await client.put("/documents/ada", json={"text": ADA})
                    path = await submitted(client)
                else:
                    await eventually_async(partial(claims, client, path))
                await eventually_async(partial(has_ranked, cluster, asked))
                await die(app)
        cluster.triggers["rank"] = cluster.rank
        failed = await done(last, path)
        assert_problem_of_question(failed, 500, "shard-unavailable", "3 processes", "ended")
        assert cluster.count("rank") == 9, "the service gives up after three dead processes"


async def has_ranked(cluster: ScriptedCluster, times: int) -> bool:
    return cluster.count("rank") == times


async def claims(client: httpx.AsyncClient, path: str) -> bool:
    response = await client.get(path)
    assert response.status_code == 202
    return "retried" in response.json()["detail"]


@pytest.mark.hostile
@pytest.mark.timeout(300)
async def test_a_killed_service_loses_nothing_that_it_acknowledged(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (_, client):
        await client.put("/documents/ada", json={"text": ADA})
    cluster.triggers["rank"] = never
    async with process(cluster) as (child, client, _):
        paths = [await submitted(client, f"Who wrote program {n}?", timeout_ms=60_000) for n in range(20)]
        child.send_signal(signal.SIGKILL)
        await child.wait()
    cluster.triggers["rank"] = cluster.rank
    for path in paths:  # as if the leases of the killed process had expired
        key = submission_key("", path[-32:])
        await cluster.at(key, "HSET", key, "until", "0")
    async with listening(cluster) as (_, client):
        answers = [await done(client, path) for path in paths]
        assert {answer.status_code for answer in answers} == {200}, answers[0].text
        assert [answer.json()["question"] for answer in answers] == [f"Who wrote program {n}?" for n in range(20)]


async def test_results_expire(cluster: ScriptedCluster) -> None:
    async with serving(cluster, async_result_ttl_seconds=5.0) as client:
        await client.put("/documents/ada", json={"text": ADA})
        path = await submitted(client)
        assert (await done(client, path)).status_code == 200
        begun = time.monotonic()
        while (await client.get(path)).status_code == 200:
            assert time.monotonic() - begun < 120
            await asyncio.sleep(0.05)
        assert_problem(await client.get(path), 404, "result-not-found", "expired")
        key = submissions_key("")
        assert await cluster.at(key, "PTTL", key) <= 5000


async def test_a_lease_is_renewed_while_the_question_is_answered(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "RENEW_SECONDS", 0.1)
    async with service(cluster.target()) as (app, client), service(cluster.target()) as (_, other):
        await client.put("/documents/ada", json={"text": ADA})
        short_leases(app, 30.0)
        opened = gate(cluster)
        path = await submitted(client)
        key = submission_key("", path[-32:])
        first = int(await cluster.at(key, "HGET", key, "until"))

        async def renewed() -> bool:
            return int(await cluster.at(key, "HGET", key, "until")) > first

        await eventually_async(renewed)
        assert (await other.get(path)).json()["detail"] == ""
        assert cluster.count("rank") == 3
        opened.set()
        assert (await done(other, path)).status_code == 200


async def test_only_the_key_that_submitted_may_read(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await client.post("/collections", json={"name": "books"})
        await client.put("/documents/ada", params={"collection": "books"}, json={"text": ADA})
        before = await submitted(client, collection="books")
        assert (await done(client, before)).status_code == 200
        _, mine = await made(app, "ask", collections=["books"])
        _, others = await made(app, "ask", "search", "write", "admin")
        _, searching = await made(app, "search")
        path = await submitted(client, key=mine, collection="books")
        assert (await done(client, path, mine)).status_code == 200
        for method in ("GET", "DELETE"):
            assert_problem(await client.request(method, path), 401, "unauthorized")
            assert_problem(await client.request(method, path, headers=bearer(others)), 404, "result-not-found")
            assert_problem(await client.request(method, path, headers=bearer(searching)), 403, "forbidden")
            refused = await client.request(method, before, headers=bearer(mine))
            assert_problem(refused, 404, "result-not-found")
        assert (await client.get(path, headers=bearer(mine))).status_code == 200
        refused = await client.post("/qa", json={"question": "x"}, headers=LATER | bearer(mine))
        assert_problem(refused, 403, "forbidden", "books")


async def test_a_key_has_a_limit_of_results(cluster: ScriptedCluster) -> None:
    async with service(cluster.target(), async_results_max=2) as (app, client):
        await client.put("/documents/ada", json={"text": ADA})
        _, mine = await made(app, "ask")
        _, others = await made(app, "ask")
        first, second = [await submitted(client, key=mine) for _ in range(2)]
        refused = await client.post("/qa", json={"question": QUESTION}, headers=LATER | bearer(mine))
        assert_problem(refused, 429, "too-many-requests", "2 submitted questions", "async_results_max")
        assert 3000 < int(refused.headers["retry-after"]) <= 3600
        await submitted(client, key=others)
        await done(client, second, mine)
        assert (await client.delete(first, headers=bearer(mine))).status_code == 204
        await submitted(client, key=mine)


async def test_a_process_has_a_limit_of_submitted_questions(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_HELD", 1)
    async with service(cluster.target()) as (_, client), service(cluster.target()) as (_, other):
        await client.put("/documents/ada", json={"text": ADA})
        opened = gate(cluster)
        path = await submitted(client)
        refused = await client.post("/qa", json={"question": QUESTION}, headers=LATER)
        assert_problem(refused, 503, "overloaded", "1 submitted questions")
        # a process at its limit takes over no question of another process
        second = await submitted(other)
        await cluster.at(submission_key("", second[-32:]), "HSET", submission_key("", second[-32:]), "until", "0")
        assert (await client.get(second)).json()["detail"] == ""
        opened.set()
        assert [(await done(client, each)).status_code for each in (path, second)] == [200, 200]


async def test_a_deleted_question_is_not_answered(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        await client.put("/documents/ada", json={"text": ADA})
        cluster.triggers["rank"] = never
        path = await submitted(client)
        await eventually_async(lambda: cluster.count("rank") == 3)
        assert (await client.delete(path)).status_code == 204
        await eventually_async(lambda: cluster.cancelled == 3)


async def test_the_concurrent_limit_of_a_key_applies_to_submitted_questions(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await client.put("/documents/ada", json={"text": ADA})
        _, key = await made(app, "ask", limits=KeyLimits(concurrent=2))
        running, most = 0, 0

        async def rank(node: Node, arguments: list[str]) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.05)
            running -= 1
            return await cluster.rank(node, arguments)

        cluster.triggers["rank"] = rank
        paths = [await submitted(client, f"Who wrote program {number}?", key) for number in range(6)]
        assert [(await done(client, path, key)).status_code for path in paths] == [200] * 6
        assert most <= 2 * 3, "two questions on three shards"


async def test_the_asynchronous_client_gathers_200_futures_in_order(cluster: ScriptedCluster) -> None:
    async with rest_client(cluster) as (_, client):
        await client.put_document("ada", ADA)
        questions = [f"Who wrote program {number}?" for number in range(200)]
        futures = [client.submit(question, top_k=1) for question in questions]
        assert all(isinstance(future, asyncio.Future) for future in futures)
        results = await asyncio.gather(*futures)
        assert [result.question for result in results] == questions
        assert all(result.best is not None and result.best.answer == "Ada" for result in results)
        key = submissions_key("")
        assert await cluster.at(key, "ZCARD", key) == 0, "the client deletes the results that it has read"
        with pytest.raises(NotFound, match="nothing"):
            await client.submit("Who?", collection="nothing")
        with pytest.raises(InvalidInput, match="top_k"):
            await client.submit("Who?", top_k=0)
        with pytest.raises(InvalidInput, match="colour"):
            client.submit("Who?", colour=1)  # type: ignore[call-arg]
        cluster.triggers["rank"] = never
        with pytest.raises(DeadlineExceeded, match=r"no result after 0\.2 s"):
            await client.submit("Who wrote what?", wait=0.2)
        left = client.submit("Who wrote it?")
        await asyncio.sleep(0)
    assert left.cancelled()


@pytest.mark.timeout(300)
async def test_the_synchronous_client_gathers_200_futures_in_order(cluster: ScriptedCluster) -> None:
    def ask(url: str) -> None:
        with Client(url) as client:
            client.put_document("ada", ADA)
            questions = [f"Who wrote program {number}?" for number in range(200)]
            futures = [client.submit(question, top_k=1) for question in questions]
            assert all(isinstance(future, Future) for future in futures)
            results = [future.result(timeout=240) for future in futures]
            assert [result.question for result in results] == questions
            assert all(result.best is not None and result.best.answer == "Ada" for result in results)
            cluster.triggers["rank"] = never
            late = client.submit("Who wrote what?", wait=0.2)
            with pytest.raises(DeadlineExceeded, match=r"no result after 0\.2 s"):
                late.result(timeout=60)
            left = [client.submit(f"Who wrote thing {number}?") for number in range(40)]
            time.sleep(0.5)
        for future in left:
            assert future.cancelled() or isinstance(future.exception(timeout=60), ClusterError)

    async with listening(cluster) as (_, http):
        await asyncio.to_thread(ask, str(http.base_url))


@pytest.mark.timeout(300)
async def test_the_cluster_clients_submit_questions(cluster: ScriptedCluster) -> None:
    questions = [f"Who wrote program {number}?" for number in range(200)]

    def ask() -> None:
        with ClusterClient(cluster.url) as client:
            client.put_document("ada", ADA)
            futures = [client.submit(question, timeout=60) for question in questions]
            assert [future.result(timeout=240).question for future in futures] == questions
            cluster.triggers["rank"] = never
            left = [client.submit(f"Who wrote thing {number}?") for number in range(40)]
            time.sleep(0.2)
        for future in left:
            assert future.cancelled() or isinstance(future.exception(timeout=60), ClusterError)

    await asyncio.to_thread(ask)
    cluster.triggers["rank"] = cluster.rank
    async with AsyncClusterClient(cluster.url) as client:
        results = await asyncio.gather(*(client.submit(question, timeout=60) for question in questions))
        assert [result.question for result in results] == questions


async def test_a_client_has_a_limit_of_unfinished_futures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "MAX_SUBMITTED", 2)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=RESULT))
    async with AsyncClient("http://localhost", transport=transport) as client:
        futures = [client.submit("Who?"), client.submit("Who?")]
        with pytest.raises(QueueFull, match="2 submitted questions"):
            client.submit("Who?")
        assert [result.answerable for result in await asyncio.gather(*futures)] == [False, False]
        assert (await client.submit("Who?")).question == "Who?", "the client also accepts an immediate answer"


RESULT = AskResult(
    id="r1",
    created=1,
    question="Who?",
    normalized_question="who?",
    model=Model("scripted", "a", "float32"),
    answerable=False,
    no_answer_score=1.0,
    answers=(),
    cache=CacheUse("miss", "none", 0, 0),
    index=Index("1", 1, 1),
    usage=Usage(0, 0, 0, 0, False),
    timings_ms=Timings(),
).to_dict()
