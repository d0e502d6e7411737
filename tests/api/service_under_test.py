"""A service on the scripted cluster in the test's process, and a check of error responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from qa_cluster.api.app import Application
from qa_cluster.api.service.lifespan import ServiceOptions
from qa_cluster.asking.connecting import Target
from tests.client.scripted_cluster import ScriptedCluster, never
from tests.harness.polling import eventually_async


@asynccontextmanager
async def service(target: Target, **options: Any) -> AsyncIterator[tuple[Application, httpx.AsyncClient]]:
    """The application and its client, without a socket."""
    app = Application(ServiceOptions(target, **options))
    await app.state.start()
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield app, client
    finally:
        await app.state.stop()


@asynccontextmanager
async def serving(cluster: ScriptedCluster, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service with the default options."""
    async with service(cluster.target(), **options) as (_, client):
        yield client


def assert_problem(response: httpx.Response, status: int, kind: str, *said: str) -> dict[str, Any]:
    """Check an error of any route: the form of RFC 9457, no traceback, and the request id in body and header."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert set(body) - {"errors"} == {"type", "title", "status", "detail", "instance", "code", "request_id"}
    assert body["type"] == f"urn:qa-cluster:problem:{kind}"
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    assert body["instance"] == response.request.url.path
    assert body["detail"] and "Traceback" not in response.text
    for item in body.get("errors", []):
        assert set(item) in ({"pointer", "detail"}, {"parameter", "detail"})
    for text in said:
        assert text in response.text, response.text
    if status == 503:
        assert int(response.headers["retry-after"]) >= 1
    return body


async def assert_leaving_cancels(cluster: ScriptedCluster, path: str, query: bytes) -> None:
    """Disconnect while the shards rank; check that the service cancels the request and counts the disconnection."""
    async with service(cluster.target()) as (app, client):
        cluster.triggers["rank"] = never
        gone = asyncio.Event()
        first = True

        async def receive() -> dict[str, Any]:
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": b"", "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError(f"the client has disconnected and cannot receive {message}")

        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query,
            "headers": [],
        }  # fmt: skip
        request = asyncio.create_task(app(scope, receive, send))
        await eventually_async(lambda: cluster.count("rank") == 3)
        gone.set()
        await request
        await eventually_async(lambda: cluster.cancelled == 3)
        text = (await client.get("/metrics")).text
        assert "qa_http_disconnects_total 1" in text
        assert f'qa_http_requests_total{{route="{path}",method="GET",status="499"}} 1' in text
