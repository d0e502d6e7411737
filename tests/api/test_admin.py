"""The admin listener: metrics and probes on a separate port, with the same connection limits as the service."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from qa_cluster.access.records import new_key
from qa_cluster.api.__main__ import application, service_options
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from tests.api.service_under_test import assert_problem, listening, serving, succeeds
from tests.client.engines import opened
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.polling import eventually_async
from tests.harness.ports import free_port


@dataclass
class Both:
    """A client of each listener of a running service."""

    service: httpx.AsyncClient
    admin: httpx.AsyncClient

    @property
    def admin_port(self) -> int:
        port = self.admin.base_url.port
        assert port is not None
        return port


@asynccontextmanager
async def both(cluster: ScriptedCluster, **settings: object) -> AsyncIterator[Both]:
    port = free_port()
    async with (
        listening(cluster, admin_port=port, **settings) as (_, client),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as admin,
    ):
        yield Both(client, admin)


async def test_only_the_admin_listener_has_metrics_and_both_have_probes(cluster: ScriptedCluster) -> None:
    async with both(cluster) as running:
        await running.service.get("/qa", params={"question": "Who wrote it?"})
        found = await running.admin.get("/metrics")
        assert found.status_code == 200
        assert 'qa_http_requests_total{route="/qa",method="GET",status="200"} 1' in found.text
        assert "qa_shard_up" in found.text, "the metrics of the shards are missing"
        assert_problem(await running.service.get("/metrics"), 404, "route-not-found")
        for client in (running.service, running.admin):
            assert (await client.get("/readyz")).json()["ready"] is True
            assert (await client.get("/livez")).json() == {"alive": True}
        described = (await running.service.get("/openapi.json")).json()["paths"]
        assert "/metrics" not in described and "/readyz" in described


async def test_the_admin_listener_has_no_other_routes(cluster: ScriptedCluster) -> None:
    async with both(cluster) as running:
        for path in ("/qa?question=Who%3F", "/documents", "/", "/docs", "/openapi.json", "/models"):
            assert_problem(await running.admin.get(path), 404, "route-not-found")
        assert_problem(await running.admin.post("/metrics"), 405, "method-not-allowed")


async def test_without_an_admin_port_the_service_has_the_metrics(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        assert (await client.get("/metrics")).status_code == 200
        assert "/metrics" in (await client.get("/openapi.json")).json()["paths"]


async def test_metrics_of_the_admin_listener_need_no_key(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine:
        await engine.api_keys.add(new_key("somebody", ["ask"], now=0)[0])
    async with both(cluster) as running:
        assert (await running.service.get("/metrics")).status_code == 401
        assert (await running.admin.get("/metrics")).status_code == 200


@pytest.mark.hostile
async def test_the_admin_listener_checks_the_host_header(cluster: ScriptedCluster) -> None:
    async with both(cluster) as running:
        assert_problem(await running.admin.get("/metrics", headers={"host": "evil.example"}), 421, "misdirected")
        assert (await running.admin.get("/metrics", headers={"host": "localhost:1"})).status_code == 200


@pytest.mark.hostile
async def test_the_admin_listener_limits_heads_and_connections(cluster: ScriptedCluster) -> None:
    async with both(cluster, http_max_connections=3, http_head_timeout_ms=500) as running:

        async def too_large() -> httpx.Response | None:
            try:
                refused = await running.admin.get("/livez", headers={"x-large": "x" * 70_000})
            except httpx.TransportError:
                return None  # the service closed the connection with unread bytes, so TCP may discard the response
            return None if refused.status_code == 408 else refused  # a busy machine may exceed the timeout for the head

        large = await eventually_async(too_large)
        assert large is not None
        assert_problem_of_the_connection(large, 431)
        silent = [socket.create_connection(("127.0.0.1", running.admin_port)) for _ in range(3)]
        try:
            answers = [await asyncio.to_thread(each.recv, 100) for each in silent]
            assert answers == [b""] * 3, "silent connections are closed"
        finally:
            for each in silent:
                each.close()
        assert await eventually_async(lambda: succeeds(running.admin, "/livez"))


def assert_problem_of_the_connection(response: httpx.Response, status: int) -> None:
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


async def test_the_admin_listener_answers_while_the_service_is_at_its_connection_limit(
    cluster: ScriptedCluster,
) -> None:
    async with both(cluster, http_max_connections=2) as running:
        port = running.service.base_url.port
        taken = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        try:
            assert (await running.admin.get("/livez")).status_code == 200
            assert (await running.admin.get("/metrics")).status_code == 200
        finally:
            for each in taken:
                each.close()


async def test_each_service_has_its_own_admin_listener(cluster: ScriptedCluster) -> None:
    async with both(cluster) as one, both(cluster) as other:
        await one.service.get("/qa", params={"question": "Who wrote it?"})
        counted = [(await each.admin.get("/metrics")).text.count('route="/qa",method="GET"') for each in (one, other)]
        assert counted == [1, 0]


def test_an_admin_port_in_use_is_a_wrong_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(cluster_url="redis://127.0.0.1:1", admin_port=port)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*admin_port"):
            application(settings, service_options(settings))


async def test_the_admin_listener_cannot_use_the_port_of_the_service(cluster: ScriptedCluster) -> None:
    settings = Settings(cluster_url=cluster.url, http_port=8080, admin_port=8080)
    with pytest.raises(ConfigError, match="'admin_port' is 8080, which is also the port of the service"):
        application(settings, service_options(settings))
