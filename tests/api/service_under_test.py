"""A service on the scripted cluster in the test's process, and a check of error responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from threading import Thread
from typing import Any

import httpx

from qa_cluster.api.__main__ import application, serve, server_of, service_options
from qa_cluster.api.app import Application
from qa_cluster.api.service.lifespan import ServiceOptions
from qa_cluster.asking.connecting import Target
from qa_cluster.client import AsyncClient
from qa_cluster.config import load
from tests.client.scripted_cluster import ScriptedCluster, never
from tests.harness.polling import eventually_async
from tests.harness.ports import free_port


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
async def rest_client(
    cluster: ScriptedCluster, api_key: str = "", **options: Any
) -> AsyncIterator[tuple[Application, AsyncClient]]:
    """The application and the project's client of it, without a socket."""
    async with service(cluster.target(), **options) as (app, _):
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with AsyncClient("http://localhost", api_key=api_key, transport=transport) as client:
            yield app, client


@asynccontextmanager
async def serving(cluster: ScriptedCluster, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service with the default options."""
    async with service(cluster.target(), **options) as (_, client):
        yield client


async def succeeds(client: httpx.AsyncClient, path: str) -> bool:
    """Whether the service answers a path with success; false if it does not listen."""
    try:
        return (await client.get(path)).is_success
    except httpx.TransportError:
        return False


@asynccontextmanager
async def listening(cluster: ScriptedCluster, **settings: object) -> AsyncIterator[tuple[int, httpx.AsyncClient]]:
    """The port of a service with its real server, and a client that opens a connection for each request.

    The server runs in a thread, because the start of a process takes half a second.
    """
    port = free_port()
    given = {"cluster_url": cluster.url, "http_port": port, **settings}
    loaded = load(flags={name: str(value) for name, value in given.items()}).settings
    server = server_of(application(loaded, service_options(loaded)), loaded)
    server.config.timeout_graceful_shutdown = 0  # tests leave requests that never end
    thread = Thread(target=serve, args=(server, loaded.http_head_timeout_ms / 1000))
    thread.start()
    try:
        url, alone = f"http://127.0.0.1:{port}", httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=alone, verify=False) as client:
            await eventually_async(lambda: server.started or not thread.is_alive())
            await eventually_async(lambda: succeeds(client, "/readyz"))
            yield port, client
    finally:
        server.should_exit = True
        await asyncio.to_thread(thread.join)


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


Wrong = tuple[str, str, dict[str, Any], int, str, tuple[str, ...]]


async def assert_problems(client: httpx.AsyncClient, requests: Iterable[Wrong]) -> None:
    """Check the error of each request: method, path, arguments of httpx, status, kind of problem, words."""
    for method, path, more, status, kind, said in requests:
        response = await client.request(method, path, **more)
        try:
            body = assert_problem(response, status, kind, *said)
            assert status != 422 or body["code"] == "VALIDATION"
        except AssertionError as error:
            raise AssertionError(f"{method} {path[:60]} {more}: {error}") from error


async def assert_leaving_cancels(cluster: ScriptedCluster, route: str, query: str) -> None:
    """Disconnect while the shards rank; check that the service cancels the request and counts the disconnection."""
    async with listening(cluster) as (_, client):
        cluster.triggers["rank"] = never
        request = asyncio.create_task(client.get(f"{route}?{query}&timeout_ms=60000"))
        await eventually_async(lambda: cluster.count("rank") == 3)
        request.cancel()
        await asyncio.wait([request])
        await eventually_async(lambda: cluster.cancelled == 3)

        async def is_counted() -> bool:
            text = (await client.get("/metrics")).text
            ended = f'qa_http_requests_total{{route="{route}",method="GET",status="499"}} 1'
            return "qa_http_disconnects_total 1" in text and ended in text

        await eventually_async(is_counted)
