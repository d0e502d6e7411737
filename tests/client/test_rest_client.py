"""The clients of the REST service: typed results, typed errors, and retries that the service asks for."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from qa_cluster.client import AsyncClient, Client
from qa_cluster.clients import rest_client, retry_policy
from qa_cluster.clients.retry_policy import RetryPolicy
from qa_cluster.errors import (
    ClusterError,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    ProtocolError,
    QAError,
    QueueFull,
    VersionConflict,
)
from tests.api.service_under_test import service
from tests.client.scripted_cluster import ScriptedCluster


async def test_against_the_service(cluster: ScriptedCluster) -> None:
    async with (
        service(cluster.target()) as (app, _),
        AsyncClient("http://localhost", transport=httpx.ASGITransport(app=app)) as client,  # type: ignore[arg-type]
    ):
        written = await client.put_document("a/b", "Zoë wrote it.", "T", {"k": [1]})
        assert (await client.get_document("a/b")).version == written.version
        result = await client.ask("Who wrote it?", doc_id="a/b", top_k=1)
        assert result.best is not None and result.best.answer == "Zoë"
        found = await client.search("wrote it", doc_id="a/b", top_k=1, context=1)
        assert [(hit.text, hit.title, hit.metadata) for hit in found.hits] == [("Zoë wrote it.", "T", {"k": [1]})]
        with pytest.raises(InvalidInput, match="context"):
            await client.search("wrote", context=99)
        assert (await client.ready())["ready"] is True
        with pytest.raises(VersionConflict, match="must not exist"):
            await client.put_document("a/b", "x", if_version="")
        with pytest.raises(InvalidInput, match="top_k"):
            await client.ask("Who?", top_k=0)
        with pytest.raises(InvalidInput, match="colour"):
            await client.ask("Who?", colour=1)
        await client.delete_document("a/b", if_version=written.version)
        with pytest.raises(NotFound):
            await client.get_document("a/b")


def busy(times: int, then: httpx.Response) -> httpx.MockTransport:
    left = iter(range(times))

    def answer(request: httpx.Request) -> httpx.Response:
        if next(left, None) is not None:
            problem = {"code": "OVERLOADED", "detail": "queue is full", "status": 503}
            return httpx.Response(503, content=orjson.dumps(problem), headers={"retry-after": "0"})
        return then

    return httpx.MockTransport(answer)


@pytest.mark.parametrize(("attempts", "succeeds"), [(None, True), (4, True), (3, False), (1, False)])
def test_the_attempts_of_a_call_are_limited(attempts: int | None, succeeds: bool) -> None:
    document = httpx.Response(200, json={"id": "a", "text": "t"})
    retry = RetryPolicy(attempts=attempts)
    with Client("http://localhost", retry=retry, transport=busy(3, document)) as client:
        if succeeds:
            assert client.get_document("a").text == "t"
        else:
            with pytest.raises(QueueFull):
                client.get_document("a")


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"attempts": 1.5}, {"first_pause": -1}, {"max_pause": "5"}, {"connect": float("inf")}]
)
def test_a_wrong_retry_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        RetryPolicy(**wrong)


async def test_the_timeout_of_a_client_applies_to_each_call() -> None:
    """The request has the timeout in milliseconds. A call can have its own timeout."""
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        body = orjson.loads(request.content)
        sent.append(request.url.params.get("timeout_ms", body.get("timeout_ms")))
        return httpx.Response(503, headers={"retry-after": "0"})

    async with AsyncClient("http://localhost", timeout=0.05, transport=httpx.MockTransport(answer)) as client:
        for call in (client.put_document("a", "t"), client.put_document("a", "t", timeout=0.0625)):
            with pytest.raises(QueueFull):
                await call
        with pytest.raises(QueueFull):
            await client.ask("Who?", timeout=0.03)
    assert set(sent) == {"50", "63", 30}


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5"])
def test_a_wrong_timeout_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidInput, match="timeout must be a positive number of seconds"):
        Client("http://localhost", timeout=timeout)
    with Client("http://localhost") as client, pytest.raises(InvalidInput, match="timeout"):
        client.search("Who?", timeout=timeout)


def test_the_old_name_of_the_timeout_is_explained() -> None:
    with Client("http://localhost") as client, pytest.raises(InvalidInput, match="seconds, timeout="):
        client.ask("Who?", timeout_ms=5)  # type: ignore[call-arg]


def test_503_ends_with_the_deadline() -> None:
    with Client("http://localhost", transport=busy(10**9, httpx.Response(200))) as client:
        with pytest.raises(QueueFull, match="queue is full") as raised:
            client.ask("Who?", timeout=0.05)
        assert raised.value.retryable


@pytest.mark.parametrize(
    ("status", "code", "error", "retryable"),
    [
        (504, "DEADLINE", DeadlineExceeded, True),
        (404, "NOTFOUND", NotFound, False),
        (412, "CONFLICT", VersionConflict, False),
        (422, "VALIDATION", InvalidInput, False),
        (418, "X", InvalidInput, False),
        (500, "INTERNAL", ClusterError, True),
    ],
)
def test_problems_become_exceptions(status: int, code: str, error: type[QAError], retryable: bool) -> None:
    problem = httpx.Response(status, content=orjson.dumps({"code": code, "detail": "because"}))
    with Client("http://localhost", transport=busy(0, problem)) as client:
        with pytest.raises(error, match="because") as raised:
            client.get_document("a")
        assert raised.value.retryable is retryable


def test_a_response_of_another_server_is_an_error() -> None:
    proxy = Client("http://localhost", transport=busy(0, httpx.Response(502, text="<html>proxy")))
    with proxy as client, pytest.raises(ClusterError, match="502 <html>proxy"):
        client.get_document("a")
    page = Client("http://localhost", transport=busy(0, httpx.Response(200, text="<html>")))
    with page as client, pytest.raises(ProtocolError, match="not JSON"):
        client.put_document("a", "t")


def test_an_unreachable_service() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(ClusterError, match="cannot be reached"):
        client.ask("Who?", timeout=0.1)


def refusing(times: int) -> httpx.MockTransport:
    left = iter(range(times))

    def answer(request: httpx.Request) -> httpx.Response:
        if next(left, None) is not None:
            raise httpx.ConnectError("Connection refused")
        return httpx.Response(200, json={"id": "a", "text": "t"})

    return httpx.MockTransport(answer)


class Clock:
    """A clock that advances only during sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock of the clients."""
    made = Clock()
    for module in (retry_policy, rest_client):
        monkeypatch.setattr(module, "time", made)
    return made


def test_the_client_gives_up_a_refused_connection_soon(clock: Clock) -> None:
    with (
        Client("http://localhost", transport=refusing(10**9)) as client,
        pytest.raises(ClusterError, match="qa-cluster"),
    ):
        client.get_document("a")
    assert 0 < clock.now <= RetryPolicy().connect


def test_the_client_waits_for_a_starting_service() -> None:
    with Client("http://localhost", transport=refusing(1)) as client:
        assert client.get_document("a").text == "t"
