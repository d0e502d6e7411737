"""Without API keys, the service listens on loopback, and on other addresses only with --without-keys."""

from __future__ import annotations

import httpx
import pytest

from qa_cluster.access.records import new_key
from qa_cluster.api.__main__ import check_keys, service_options
from qa_cluster.api.admission.hosts import is_loopback
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from tests.api.keyed_requests import bearer
from tests.api.service_under_test import assert_problem, listening, succeeds
from tests.api.test_process import process
from tests.client.engines import opened
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.polling import eventually_async
from tests.harness.ports import free_port


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LocalHost."])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "a.example", "localhost.example", "::ffff:10.0.0.1"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("host", "without", "required"),
    [("127.0.0.1", False, False), ("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.1", True, False)],
)
def test_other_addresses_require_keys_except_with_the_flag(host: str, without: bool, required: bool) -> None:
    settings = Settings(cluster_url="redis://a:7000", http_host=host, http_without_keys=without)
    assert service_options(settings).keys_required is required


@pytest.mark.hostile
async def test_on_other_addresses_the_service_does_not_start_without_keys(cluster: ScriptedCluster) -> None:
    settings = Settings(cluster_url=cluster.url, http_host="0.0.0.0")
    with pytest.raises(ConfigError) as refused:
        await check_keys(service_options(settings), settings.http_host)
    for text in ("no API key", "0.0.0.0", "keys create", "--without-keys"):
        assert text in str(refused.value)


@pytest.mark.hostile
async def test_the_service_starts_with_a_key_and_requires_it(cluster: ScriptedCluster) -> None:
    async with opened(cluster) as engine, listening(cluster, http_host="0.0.0.0") as (_, client):
        key, text = new_key("the shop", ["ask"], now=0)
        await engine.api_keys.add(key)
        await check_keys(service_options(Settings(cluster_url=cluster.url, http_host="0.0.0.0")), "0.0.0.0")
        assert_problem(await client.get("/qa?question=Who%3F"), 401, "unauthorized")
        assert (await client.get("/qa?question=Who%3F", headers=bearer(text))).status_code == 200
        await engine.api_keys.clear()
        refused = await client.get("/qa?question=Who%3F", headers=bearer(text))
        assert_problem(refused, 401, "unauthorized", "the cluster has no API key yet")


@pytest.mark.hostile
async def test_without_a_cluster_the_service_starts_and_refuses_all_requests() -> None:
    port = free_port()
    nowhere = f"redis://127.0.0.1:{free_port()}"
    async with (
        process("--host", "0.0.0.0", "--port", str(port), QA_CLUSTER_URL=nowhere),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        await eventually_async(lambda: succeeds(client, "/livez"))
        for path in ("/qa?question=a", "/metrics", "/documents"):
            assert_problem(await client.get(path), 503, "shard-unavailable")
