"""Liveness, readiness, metrics, the OpenAPI description, and the page."""

from __future__ import annotations

import re

import pytest

from qa_cluster.api.routes.page import PAGE_PATHS
from qa_cluster.api.service import readiness
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.engine import EngineOptions
from qa_cluster.routing.connection import Login
from qa_cluster.shard_functions import FUNCTIONS, QUESTION_FUNCTIONS
from qa_cluster.topology import Address
from tests.api.service_under_test import assert_problem, service, serving
from tests.api.test_search_route import described_type
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.polling import eventually_async
from tests.harness.ports import free_port
from tests.harness.programs import ROOT

_SAMPLE = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? -?[0-9.e+-]+\Z')


async def test_without_a_cluster_the_service_is_alive_but_not_ready() -> None:
    target = Target([Address("127.0.0.1", free_port())], Login(), EngineOptions())

    async with service(target) as (_, client):
        assert (await client.get("/livez")).json() == {"alive": True}
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["ready"], ready.headers["retry-after"]) == (503, False, "1")
        assert_problem(await client.get("/qa", params={"question": "Who?"}), 503, "shard-unavailable", "connect")
        assert_problem(await client.get("/documents/a"), 503, "shard-unavailable")
        assert (await client.get("/metrics")).status_code == 200


async def test_ready_when_every_shard_has_model_functions_and_worker(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        verdict = (await client.get("/readyz")).json()
        assert verdict["ready"] and len(verdict["shards"]) == 3
        assert all(shard["model"] == "a" * 12 and shard["missing"] == [] for shard in verdict["shards"])


async def test_a_service_that_is_not_ready_names_what_is_missing(cluster: ScriptedCluster) -> None:
    async with service(cluster.target()) as (app, client):
        found = [key for node in cluster.nodes for key in await node.commands.execute("KEYS", "bert-qa[{]*")]
        key = found[0]
        await app.state.engine.shards.execute(key, "DEL", key)
        response = await client.get("/readyz")
        assert (response.status_code, response.json()["ready"]) == (503, False)
        assert "no model" in response.json()["detail"]
        await cluster.set_manifest("a")

        async def ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await eventually_async(ready)


async def test_the_service_is_not_ready_without_a_function_for_questions(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "KEEP_SECONDS", 0.0)
    async with serving(cluster) as client:
        for name in QUESTION_FUNCTIONS:
            cluster.functions = [other for other in FUNCTIONS if other != name]
            response = await client.get("/readyz")
            assert (response.status_code, response.json()["ready"]) == (503, False)
            assert f"function {name} is not registered: run `qa-cluster up`" in response.json()["detail"]


async def test_the_documented_table_has_every_metric_of_batches_and_submissions(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        text = (await client.get("/metrics")).text
    shown: dict[str, set[str]] = {name: set() for name in re.findall(r"^(qa_(?:batch|subm)\w*)", text, re.MULTILINE)}
    for name, value in re.findall(r'^(qa_(?:batch|subm)\w*)\{\w+="(\w+)"\}', text, re.MULTILINE):
        shown[name].add(value)
    section = (ROOT / "docs" / "operations.md").read_text().partition("### See batches and submitted questions")[2]
    rows = re.findall(r"^\| `(qa_\w+)(?:\{\w+\})?` \| (.*) \|$", section.partition("\n### ")[0], re.MULTILINE)
    assert {name: set(re.findall(r"`(\w+)`", said)) for name, said in rows} == shown


async def test_metrics_are_well_formed_and_include_the_shards(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        for _ in range(3):
            await client.get("/qa", params={"question": "Who?"})
        await client.get("/some/unknown/path")
        text = (await client.get("/metrics")).text
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert [line for line in lines if not _SAMPLE.match(line)] == []
        assert len(lines) == len({line.rpartition(" ")[0] for line in lines})
        assert 'qa_http_requests_total{route="/qa",method="GET",status="200"} 3' in lines
        assert 'qa_http_requests_total{route="other",method="GET",status="404"} 1' in lines
        assert 'qa_questions_total{tier="none",outcome="no_answer"} 1' in lines
        assert sum(line.startswith("qa_shard_up{") and line.endswith(" 1") for line in lines) == 3
        assert sum('kind="trigger",outcome="ok"} 3' in line for line in lines) == 3
        assert "some/unknown" not in text


ACTIONS = ("", "/ready", "/infer")


async def test_the_openapi_description_has_every_route_and_parameter(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        described = (await client.get("/openapi.json")).json()
        assert set(described["paths"]) == {
            *("/qa", "/search", "/documents", "/documents/count", "/documents/{id}", "/models", "/models/{id}"),
            *("/documents/upload", "/collections/{name}/fields", "/collections/{name}/fields/{field}"),
            *("/collections", "/collections/{name}", "/livez", "/readyz", "/metrics", "/qa/results/{id}"),
            *("/v1/files", "/v1/files/{id}", "/v1/files/{id}/content"),
            *("/v1/batches", "/v1/batches/{id}", "/v1/batches/{id}/cancel"),
            *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/repository/index"),
            *(f"/v2/models/{{id}}{version}{action}" for version in ("", "/versions/{version}") for action in ACTIONS),
            *("/pins", "/synonyms", "/feedback", "/unanswered"),
        }
        parameters = {item["name"]: described_type(item) for item in described["paths"]["/qa"]["get"]["parameters"]}
        assert parameters.pop("Prefer")["type"] == "string"
        body = described["paths"]["/qa"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(parameters) == set(body["properties"])
        assert parameters["top_k"]["maximum"] == 20
        result = (await client.get("/qa", params={"question": "Who?"})).json()
        schema = described["components"]["schemas"]["Result"]
        assert set(result) == set(schema["properties"])
        assert set(result["usage"]) == set(schema["properties"]["usage"]["properties"])
        docs = await client.get("/docs")
        assert docs.headers["content-type"].startswith("text/html") and "/documents/{id}" in docs.text
        rows = docs.text.replace("</td>", "")
        assert "<td>top_k<td>query<td>integer 1 to 20<td>" in rows
        assert "<td>parameters.doc_stride<td>body<td>integer from 0<td>" in rows


async def test_the_page_loads_nothing_from_other_hosts(cluster: ScriptedCluster) -> None:
    async with serving(cluster) as client:
        scripts = {
            path: (await client.get(path)).text
            for path in ("/page.js", *sorted(p for p in PAGE_PATHS if "/page/" in p))
        }
        imported = {path for text in scripts.values() for path in re.findall(r'from "(/[^"]+)"', text)}
        assert imported == scripts.keys() - {"/page.js"}
        for path in ("/", "/page.css", *scripts, "/docs"):
            response = await client.get(path)
            assert response.status_code == 200
            assert "https://" not in response.text and "http://" not in response.text
            assert "default-src 'none'" in response.headers["content-security-policy"]


async def test_the_page_shows_the_example_questions_of_the_settings(cluster: ScriptedCluster) -> None:
    async with serving(cluster, page_questions=("Who wrote <b>?", "When & where?")) as client:
        page = (await client.get("/")).text
        assert "<li>Who wrote &lt;b&gt;?</li><li>When &amp; where?</li></template>" in page
