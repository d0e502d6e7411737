"""Requests that a browser sends for a page of another origin, and the origins that `cors_origins` allows.

The service is a process on a real socket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from qa_cluster.access.records import SCOPES, new_key
from qa_cluster.api.__main__ import service_options
from qa_cluster.api.admission.origins import Origins
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from tests.api.keyed_requests import OPEN, ROUTES, WHOLE, bearer, send
from tests.api.service_under_test import assert_problem, listening
from tests.client.engines import opened
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.ports import free_port

pytestmark = pytest.mark.hostile

EVIL, WIDGET = "https://evil.example", "https://docs.example"
# Headers of a browser's request for a page of another origin; some browsers send no `Sec-Fetch-Site`.
FOREIGN = {
    "cross-site": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "origin": EVIL},
    "image": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    "navigation": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    "other port": {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:3000"},
    "older browser": {"origin": EVIL},
    "sandbox": {"origin": "null"},
    "unknown value": {"sec-fetch-site": "elsewhere"},
    "empty value": {"sec-fetch-site": ""},
}
PROBES = [("GET", path, "", ()) for path in ("/livez", "/readyz")]
FILES = [path for path in OPEN if path not in ("/livez", "/readyz")]


@asynccontextmanager
async def running(
    cluster: ScriptedCluster, *, keyed: bool = False, **settings: object
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service; with `keyed`, the cluster has an API key and the client sends this key."""
    async with opened(cluster) as engine:
        key, text = new_key("the shop", SCOPES, now=1_795_000_000)
        if keyed:
            await engine.api_keys.add(key)
        async with listening(cluster, **settings) as (_, client):
            client.headers.update(bearer(text) if keyed else {})
            yield client


@pytest.mark.parametrize("keyed", [False, True])
async def test_every_route_that_asks_the_shards_refuses_foreign_pages(cluster: ScriptedCluster, keyed: bool) -> None:
    async with running(cluster, keyed=keyed) as client:
        await client.put("/documents/ada", json={"text": "Ada wrote programs."})
        before = (await client.get("/metrics")).text
        for headers in FOREIGN.values():
            client.headers.update(headers)
            for route in [*ROUTES, *WHOLE, *PROBES]:
                if route[0] == "HEAD":
                    response = await send(client, route, "default")
                    assert (response.status_code, response.headers.get("access-control-allow-origin")) == (403, None)
                    continue
                refused = await send(client, route, "default")
                assert_problem(refused, 403, "cross-site", "another origin", "cors_origins")
                assert "access-control-allow-origin" not in refused.headers
            for name in headers:
                del client.headers[name]
        after = (await client.get("/metrics")).text
    assert asked(after) == asked(before)


def asked(metrics: str) -> list[str]:
    """The metrics that count calls of the shards."""
    return [line for line in metrics.splitlines() if line.startswith(("qa_questions_total", "qa_searches_total"))]


async def test_foreign_pages_get_no_answer_from_the_near_cache(cluster: ScriptedCluster) -> None:
    async with running(cluster) as client:
        for _ in range(3):
            assert (await client.get("/qa?question=Who%3F")).status_code == 200
        for headers in FOREIGN.values():
            assert_problem(await client.get("/qa?question=Who%3F", headers=headers), 403, "cross-site")


async def test_a_link_from_a_foreign_page_opens_the_page(cluster: ScriptedCluster) -> None:
    async with running(cluster) as client:
        for path in FILES:
            assert (await client.get(path, headers=FOREIGN["navigation"])).status_code == 200, path


async def test_the_own_page_and_programs_get_answers(cluster: ScriptedCluster) -> None:
    async with running(cluster) as client:
        own = str(client.base_url).rstrip("/")
        programs: list[dict[str, str]] = [
            {},
            {"sec-fetch-site": "none"},
            {"sec-fetch-site": "same-origin", "origin": own},
            # a proxy may change `Host`, but not the browser's headers
            {"sec-fetch-site": "same-origin", "origin": "https://qa.example"},
            {"origin": own},
            {"origin": own.replace("127.0.0.1", "LOCALHOST"), "host": own.replace("http://127.0.0.1", "localhost")},
        ]
        for headers in programs:
            asked = await client.post("/qa", json={"question": "Who?"}, headers=headers)
            assert asked.status_code == 200, (headers, asked.text)
            assert "access-control-allow-origin" not in asked.headers


async def test_a_page_of_an_allowed_origin_gets_answers(cluster: ScriptedCluster) -> None:
    async with running(cluster, keyed=True, cors_origins=f"{WIDGET}/, http://localhost:3000") as client:
        page = {"origin": WIDGET, "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        token = client.headers.pop("authorization")
        preflight = await client.options(
            "/qa",
            headers={
                **page,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type",
            },
        )
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == WIDGET
        assert {"GET", "POST", "PUT", "DELETE"} <= set(preflight.headers["access-control-allow-methods"].split(", "))
        allowed = preflight.headers["access-control-allow-headers"].split(", ")
        assert {"authorization", "content-type", "if-match", "if-none-match"} <= set(allowed)
        assert int(preflight.headers["access-control-max-age"]) >= 60
        assert "origin" in preflight.headers["vary"].lower()
        refused = await client.get("/qa?question=Who%3F", headers=page)
        assert_problem(refused, 401, "unauthorized")  # a script of the page may read this error
        assert refused.headers["access-control-allow-origin"] == WIDGET
        for method, content in (("GET", None), ("POST", b'{"question": "Who?"}')):
            path = "/qa" if content else "/qa?question=Who%3F"
            headers = {**page, "authorization": token, "content-type": "application/json"}
            found = await client.request(method, path, content=content, headers=headers)
            assert found.status_code == 200, found.text
            assert found.headers["access-control-allow-origin"] == WIDGET
            assert "access-control-allow-credentials" not in found.headers
            exposed = found.headers["access-control-expose-headers"].split(", ")
            assert {"etag", "retry-after", "x-request-id"} <= set(exposed)
            assert "origin" in found.headers["vary"].lower()
        other = {**page, "origin": EVIL, "access-control-request-method": "POST"}
        assert_problem(await client.options("/qa", headers=other), 403, "cross-site")
        # requests for an image or a form of the allowed page have no `Origin`
        assert_problem(await client.get("/qa?question=Who%3F", headers=FOREIGN["image"]), 403, "cross-site")


async def test_the_admin_listener_refuses_foreign_pages(cluster: ScriptedCluster) -> None:
    admin = free_port()
    async with (
        running(cluster, admin_port=admin),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin}", timeout=30) as client,
    ):
        for headers in FOREIGN.values():
            assert_problem(await client.get("/metrics", headers=headers), 403, "cross-site")
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    ("setting", "origin", "allowed"),
    [
        ("https://a.example", b"https://a.example", True),
        ("HTTPS://A.example/", b"https://a.example", True),
        ("https://a.example:443", b"https://a.example", True),
        ("http://a.example:8000", b"http://a.example:8000", True),
        ("https://a.example", b"http://a.example", False),
        ("https://a.example", b"https://a.example.evil", False),
        ("https://a.example", b"https://b.a.example", False),
        ("https://a.example", b"null", False),
        ("*", b"https://evil.example", True),
        ("*", b"null", True),
    ],
)
def test_the_setting_allows_only_its_origins(setting: str, origin: bytes, allowed: bool) -> None:
    scope = {"headers": [(b"host", b"127.0.0.1:8080"), (b"origin", origin), (b"sec-fetch-site", b"cross-site")]}
    assert (Origins(setting).verdict(scope) is not None) is allowed


@pytest.mark.parametrize(
    "text", ["docs.example", "https://docs.example/manual", "https://", "null", "https://a b", "ftp:x"]
)
def test_an_invalid_origin_in_the_setting_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        service_options(Settings(cluster_url="redis://a:7000", cors_origins=text))
