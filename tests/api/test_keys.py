"""API keys on every route: missing, wrong, revoked and expired keys, and keys of another scope or collection."""

from __future__ import annotations

import time

import httpx
import pytest

from qa_cluster.api.admission.resources import OPEN_PATHS
from qa_cluster.client import AccessDenied, AsyncClient, InvalidInput
from qa_cluster.errors import ClusterError
from tests.api.keyed_requests import BOOKS, OPEN, OTHER, QUESTION, ROUTES, WHOLE, bearer, made, send, with_documents
from tests.api.service_under_test import assert_problem, rest_client, service, serving
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.polling import eventually_async

ALL = ("ask", "search", "write", "admin")
ASKED = {"question": QUESTION, **BOOKS}


async def near(client: httpx.AsyncClient, key: str) -> None:
    """Ask until the answer comes from the near cache."""

    async def cached() -> bool:
        found = await client.get("/qa", params=ASKED, headers=bearer(key))
        return bool(found.json()["cache"]["tier"] == "near")

    await eventually_async(cached)


@pytest.mark.hostile
async def test_once_a_key_exists_only_open_routes_answer_without_one(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await with_documents(client)
        for path in ("/qa", "/metrics"):  # without keys, every request is allowed
            assert (await client.get(path, params=ASKED if path == "/qa" else None)).status_code == 200
        await made(app, "ask")
        for route in (*ROUTES, *WHOLE):
            refused = await send(client, route, "books")
            if route[0] != "HEAD":
                assert_problem(refused, 401, "unauthorized", "needs an API key", "keys create")
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == 'Bearer realm="qa-cluster"'
        for path in OPEN:
            assert (await client.get(path)).status_code == 200
        assert set(OPEN) <= OPEN_PATHS


@pytest.mark.hostile
async def test_a_route_accepts_only_its_own_scopes(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await with_documents(client)
        keys = {scope: (await made(app, scope))[1] for scope in ALL}
        for route in (*ROUTES, *WHOLE):
            for scope, text in keys.items():
                response = await send(client, route, "books", text)
                assert response.status_code != 401, route
                if scope in route[3]:
                    assert response.status_code != 403, (route, scope, response.text)
                else:
                    assert response.status_code == 403, (route, scope)
                    assert 'error="insufficient_scope"' in response.headers["www-authenticate"]
                    if route[0] != "HEAD":
                        assert_problem(response, 403, "forbidden", f"has scope {scope}")


@pytest.mark.hostile
async def test_a_key_of_one_collection_sees_nothing_of_another(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await with_documents(client)
        await client.get("/qa", params={"question": QUESTION, **OTHER})
        key, text = await made(app, *ALL, collections=["books"])
        for route in ROUTES:
            if route[:2] == ("DELETE", "/collections/{}"):
                continue
            own = await send(client, route, "books", text)
            assert own.status_code not in (401, 403), (route, own.text)
            for foreign in ("other", "nowhere", "default"):
                refused = await send(client, route, foreign, text)
                assert refused.status_code == 403, (route, foreign)
                if route[0] != "HEAD":
                    assert_problem(refused, 403, "forbidden", f"key {key.id} does not allow collection '{foreign}'")
        for path in ("/qa?question=Who%3F", "/search?q=x", "/documents", "/documents/count", "/documents/ada"):
            assert_problem(await client.get(path, headers=bearer(text)), 403, "forbidden", "'default'")
        listed = (await client.get("/collections", headers=bearer(text))).json()["data"]
        assert [entry["name"] for entry in listed] == ["books"]
        assert_problem(
            await client.get("/metrics", headers=bearer(text)), 403, "forbidden", "allows only some collections"
        )
        assert_problem(await client.delete("/collections/other", headers=bearer(text)), 403, "forbidden")
        assert (await client.delete("/collections/books", headers=bearer(text))).status_code == 200


@pytest.mark.hostile
async def test_a_cached_answer_needs_a_valid_key(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await with_documents(client)
        _, text = await made(app, "ask", collections=["books"])
        _, foreign = await made(app, "ask", collections=["other"])
        _, search = await made(app, "search")
        revoked, late = await made(app, "ask")
        await near(client, text)
        await near(client, late)
        assert_problem(await client.get("/qa", params=ASKED), 401, "unauthorized")
        assert_problem(await client.get("/qa", params=ASKED, headers=bearer(text + "x")), 401, "unauthorized")
        assert_problem(await client.get("/qa", params=ASKED, headers=bearer(foreign)), 403, "forbidden")
        assert_problem(await client.get("/qa", params=ASKED, headers=bearer(search)), 403, "forbidden")
        await app.state.engine.api_keys.revoke(revoked.id)
        assert_problem(await client.get("/qa", params=ASKED, headers=bearer(late)), 401, "unauthorized", "revoked")
        await near(client, text)


@pytest.mark.hostile
async def test_a_key_that_another_service_revokes_is_refused_at_the_next_request(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client), service(cluster.target()) as (other, _):
        await with_documents(client)
        key, text = await made(app, *ALL)
        await near(client, text)
        await other.state.engine.api_keys.revoke(key.id)
        for path in ("/qa", "/documents", "/metrics"):
            refused = await client.get(path, params=ASKED if path == "/qa" else None, headers=bearer(text))
            assert_problem(refused, 401, "unauthorized", f"key {key.id} is revoked")


async def test_a_key_expires(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(cluster.target()) as (app, client):
        await with_documents(client)
        now = int(time.time())
        _, text = await made(app, "ask", expires_in_seconds=3600, now=now)
        await near(client, text)
        monkeypatch.setattr("qa_cluster.api.admission.guard.time", lambda: now + 3601.0)
        assert_problem(await client.get("/qa", params=ASKED, headers=bearer(text)), 401, "unauthorized", "expired")


@pytest.mark.hostile
async def test_invalid_headers_are_refused_and_no_secret_is_repeated(
    cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with service(cluster.target()) as (app, client):
        _, text = await made(app, *ALL)
        forms = ("{}", "Basic {}", "Bearer", "Bearer ", "Bearer {} x", "Bearer x{}", "Bearer {}, Bearer {}")
        headers = [{"authorization": form.replace("{}", text)} for form in forms]
        two = httpx.Headers([("authorization", f"Bearer {text}"), ("authorization", f"Bearer {text}")])
        refused = [await client.get("/qa?question=a", headers=each) for each in (*headers, two)]
        assert all('error="invalid_token"' in each.headers["www-authenticate"] for each in refused)
        refused.append(await client.get(f"/qa?question=a&key={text}"))
        for scheme in ("Bearer", "bearer", "BEARER"):
            asked = await client.get("/models", headers={"authorization": f"{scheme} {text}"})
            assert asked.status_code == 200, scheme
        metrics = (await client.get("/metrics", headers=bearer(text))).text
        for each in refused:
            assert_problem(each, 401, "unauthorized")
            assert text.split("_", 2)[2] not in each.text + caplog.text + metrics


@pytest.mark.hostile
async def test_if_keys_are_required_requests_are_refused_until_a_key_exists(cluster: ScriptedCluster) -> None:
    async with service(cluster.target(), keys_required=True) as (app, client):
        for _ in range(2):
            for route in (*ROUTES, *WHOLE):
                assert (await send(client, route, "default")).status_code == 401, route
        refused = await client.get("/qa?question=a")
        assert_problem(refused, 401, "unauthorized", "the cluster has no API key yet")
        key, text = await made(app, *ALL)
        assert (await client.get("/metrics", headers=bearer(text))).status_code == 200
        await app.state.engine.api_keys.clear()
        assert_problem(await client.get("/metrics", headers=bearer(text)), 401, "unauthorized")
        assert key.id


@pytest.mark.hostile
async def test_if_the_keys_cannot_be_read_only_metrics_are_answered(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(cluster.target()) as (app, client):
        await with_documents(client)
        _, text = await made(app, *ALL)
        await near(client, text)

        async def gone() -> None:
            raise ClusterError("no shard answers")

        monkeypatch.setattr(app.state.engine.api_keys, "current", gone)
        monkeypatch.setattr(app.state.engine.api_keys, "at_hand", lambda: None)
        assert_problem(await client.get("/qa", params=ASKED, headers=bearer(text)), 503, "shard-unavailable")
        assert_problem(await client.get("/qa", params=ASKED), 503, "shard-unavailable")
        assert (await client.get("/metrics", headers=bearer(text))).status_code == 200
        assert_problem(await client.get("/metrics"), 401, "unauthorized")


async def test_the_clients_send_their_key(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        await with_documents(client)
        _, text = await made(app, "ask", collections=["books"])
        async with rest_client(cluster, text) as (_, keyed):
            assert (await keyed.ask(QUESTION, collection="books")).answerable
            with pytest.raises(AccessDenied, match="does not allow collection 'other'") as forbidden:
                await keyed.ask(QUESTION, collection="other")
        async with rest_client(cluster) as (_, keyless):
            with pytest.raises(AccessDenied, match="needs an API key") as unknown:
                await keyless.ask(QUESTION)
        assert (forbidden.value.http_status, unknown.value.http_status) == (403, 401)
        with pytest.raises(InvalidInput, match="api_key must be a key") as error:
            AsyncClient("http://localhost", api_key="qac_ secret")
        assert "secret" not in str(error.value).partition("and a")[0]


async def test_the_openapi_description_has_the_keys(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        described = (await client.get("/openapi.json")).json()
        assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
        assert described["security"] == [{"key": []}, {}]
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                if method == "parameters":
                    continue
                responses = set(operation["responses"])
                assert ({"401", "403", "429"} <= responses) == (path not in OPEN_PATHS), (path, method)
                assert (operation.get("security") == []) == (path in OPEN_PATHS)
