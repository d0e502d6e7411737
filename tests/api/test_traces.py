"""Traces of requests in a real OTLP receiver. The scripted shards report the times of traced calls."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from qa_cluster.api import span_queue
from qa_cluster.api.__main__ import with_traces
from qa_cluster.api.app import Application
from qa_cluster.api.service.lifespan import ServiceOptions
from qa_cluster.api.tracing import traced
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, ReplyError
from qa_cluster.tracing import recording
from tests.client.scripted_cluster import Node, ScriptedCluster
from tests.harness.otlp import Receiver, children, facts, milliseconds, receiver
from tests.harness.polling import eventually_async
from tests.harness.ports import free_port

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": STATE}
QUESTION = "Who wrote it?"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A running receiver; the service sends spans to it after a short delay."""
    monkeypatch.setattr(span_queue, "PAUSE_SECONDS", 0.02)
    with receiver() as running:
        yield running


@asynccontextmanager
async def tracing(
    cluster: ScriptedCluster, url: str, *, question_text: bool = False, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that sends traces to `url`. The document for `QUESTION` is stored."""
    app = traced(Application(ServiceOptions(cluster.target(), **options)), url, question_text=question_text)
    await app.state.start()
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            await client.put("/documents/a", json={"text": "Ada wrote it."}, headers={"traceparent": "00-" + "0" * 52})
            yield client
    finally:
        await app.state.stop()
        await asyncio.to_thread(app._provider.shutdown)


async def ask(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **options: str) -> dict[str, Any]:
    response = await client.get("/qa", params={"question": QUESTION, **options}, headers=headers)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def spans_of(collector: Receiver, trace_id: str = TRACE, root: str = "GET /qa") -> tuple[dict[str, Span], Span]:
    spans = await asyncio.to_thread(collector.trace, trace_id, root=root)
    (top,) = [span for span in spans.values() if span.name == root]
    return spans, top


def names(spans: dict[str, Span], top: Span) -> list[str]:
    return [span.name for span in children(spans, top)]


def only(spans: dict[str, Span], top: Span, name: str) -> Span:
    (found,) = [span for span in children(spans, top) if span.name == name]
    return found


async def test_the_spans_of_a_question_form_a_tree_from_http_to_the_shards_model(
    cluster: ScriptedCluster, collector: Receiver
) -> None:
    async with tracing(cluster, collector.url) as client:
        answered = await ask(client, HEADERS, cache="off")
        spans, top = await spans_of(collector)
    assert (top.trace_id.hex(), top.parent_span_id.hex(), top.kind) == (TRACE, PARENT, Span.SPAN_KIND_SERVER)
    about = facts(top)
    assert (about["http.request.method"], about["http.route"]) == ("GET", "/qa")
    assert (about["http.response.status_code"], about["qa.request_id"]) == (200, answered["id"])
    assert names(spans, top) == ["cache", "rank", "wave", "documents"]
    rank, wave = only(spans, top, "rank"), only(spans, top, "wave")
    assert names(spans, rank) == ["indexes"] * 6, "two pipelines to each of three shards"
    call = only(spans, wave, "qa.read")
    assert call.kind == Span.SPAN_KIND_CLIENT
    assert facts(call)["server.port"] in {node.port for node in cluster.nodes}
    assert [name for name in names(spans, call) if name != "connect"] == ["queue", "answers", "batch", "model"]
    model = only(spans, call, "model")
    assert facts(model) == {
        "qa.batch.items": 5, "qa.batch.own_items": 1, "qa.batch.rows": 8, "qa.batch.length": 32, "qa.batch.tokens": 100
    }  # fmt: skip
    assert milliseconds(only(spans, call, "queue")) <= milliseconds(call)
    for span in spans.values():
        above = spans.get(span.parent_span_id.hex())
        if above is not None:
            assert above.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= above.end_time_unix_nano
        assert span.trace_state == STATE, "the trace state is passed on unchanged"
    assert collector.resources[0]["service.name"] == "qa-cluster"


async def test_the_shard_gets_the_trace_context_only_of_sampled_calls(
    cluster: ScriptedCluster, collector: Receiver
) -> None:
    async with tracing(cluster, collector.url) as client:
        await ask(client, HEADERS, cache="off")
        spans, top = await spans_of(collector)
        call = only(spans, only(spans, top, "wave"), "qa.read")
        asked = [arguments for _, arguments in cluster.calls if arguments[0] == "qa.read"]
        assert [arguments[-1] for arguments in asked] == [f"00-{TRACE}-{call.span_id.hex()}-01"]
        cluster.calls.clear()
        await ask(client, {"traceparent": f"00-{TRACE}-{PARENT}-00"}, cache="off")
    (asked_plainly,) = [arguments for _, arguments in cluster.calls if arguments[0] == "qa.read"]
    assert not asked_plainly[-1].startswith("00-")


async def test_unsampled_requests_probes_and_metrics_yield_no_spans(
    cluster: ScriptedCluster, collector: Receiver
) -> None:
    unsampled, before = {"traceparent": f"00-{'11' * 16}-{PARENT}-00"}, Mock()
    async with tracing(cluster, collector.url) as client:
        # uvicorn handles a pipelined request in the context of the previous request, which may be recorded
        with recording(before):
            await ask(client, unsampled, cache="off")
        for path in ("/livez", "/readyz", "/metrics"):
            await client.get(path, headers={"traceparent": f"00-{'22' * 16}-{PARENT}-01"})
        await ask(client, HEADERS, cache="off")
        await spans_of(collector)
    assert before.mock_calls == []
    own = {span.trace_id.hex() for span in collector.spans if span.name.startswith("PUT ")}  # writes of documents
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE, *own}


# Invalid trace contexts: no form, upper case, zeros, a wrong version, too long, twice.
INVALID = (
    ["nonsense"],
    [f"00-{TRACE.upper()}-{PARENT}-01"],
    [f"00-{'0' * 32}-{PARENT}-01"],
    [f"ff-{TRACE}-{PARENT}-01"],
    [f"00-{TRACE}-{PARENT}-01" + "x" * 1000],
    [f"00-{TRACE}-{PARENT}-01"] * 2,
)


async def test_an_invalid_header_is_ignored(
    cluster: ScriptedCluster, collector: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    def found() -> list[Span]:
        return [span for span in collector.spans if span.name == "GET /qa"]

    async with tracing(cluster, collector.url) as client:
        for values in INVALID:
            headers = [("traceparent", value) for value in values]
            response = await client.get("/qa", params={"question": QUESTION, "cache": "off"}, headers=headers)
            assert response.status_code == 200
        await eventually_async(lambda: len(found()) == len(INVALID))
    assert all((span.parent_span_id, span.trace_state) == (b"", "") for span in found())
    assert TRACE not in {span.trace_id.hex() for span in found()}
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def test_each_cache_shows_in_the_trace(cluster: ScriptedCluster, collector: Receiver) -> None:
    async with tracing(cluster, collector.url) as client:
        await ask(client)

        async def tier() -> str:
            return str((await ask(client))["cache"]["tier"])

        async def near() -> bool:
            return await tier() == "near"

        await eventually_async(near)
        assert (await ask(client, HEADERS))["cache"]["tier"] == "near"
        spans, top = await spans_of(collector)
    (cache,) = children(spans, top)
    assert (cache.name, facts(cache)["qa.cache.tier"], facts(cache)["qa.cache.hit"]) == ("cache", "near", True)


async def test_the_trace_shows_that_a_question_joined_another(cluster: ScriptedCluster, collector: Receiver) -> None:
    other = "aa" * 16
    async with tracing(cluster, collector.url) as client:
        let_go = asyncio.Event()
        reads = cluster.read

        async def slow(node: Node, arguments: list[str]) -> list[bytes]:
            await let_go.wait()
            return await reads(node, arguments)

        cluster.triggers["qa.read"] = slow
        first = asyncio.create_task(ask(client, HEADERS))
        await eventually_async(lambda: cluster.count("qa.read") == 1)
        second = asyncio.create_task(ask(client, {"traceparent": f"00-{other}-{PARENT}-01"}))
        await asyncio.sleep(0.1)
        let_go.set()
        await asyncio.gather(first, second)
        if cluster.count("qa.read") > 1:
            pytest.skip("the second question did not join the first one, because the documents changed")
        spans, top = await spans_of(collector, other)
    assert names(spans, top) == ["cache", "shared"]


async def test_a_span_has_the_kind_of_an_error_but_not_its_text(cluster: ScriptedCluster, collector: Receiver) -> None:
    async def fails(node: Node, arguments: list[str]) -> list[bytes]:
        raise ReplyError(f"INFERENCE it broke at {QUESTION}")

    async with tracing(cluster, collector.url) as client:
        cluster.triggers["qa.read"] = fails
        response = await client.get("/qa", params={"question": QUESTION, "cache": "off"}, headers=HEADERS)
        assert response.status_code == 500
        spans, top = await spans_of(collector)
    assert (top.status.code, facts(top)["error.type"]) == (Status.STATUS_CODE_ERROR, "500")
    wave = only(spans, top, "wave")
    assert (wave.status.code, facts(wave)["error.type"]) == (Status.STATUS_CODE_ERROR, "INFERENCE")
    assert QUESTION not in str(spans)


@pytest.mark.parametrize("wanted", [False, True])
async def test_traces_have_question_texts_only_if_the_setting_allows_it(
    cluster: ScriptedCluster, collector: Receiver, wanted: bool
) -> None:
    async with tracing(cluster, collector.url, question_text=wanted) as client:
        await ask(client, HEADERS, cache="off")
        spans, top = await spans_of(collector)
    assert (facts(top).get("qa.question") == QUESTION) is wanted
    assert (QUESTION in str(spans)) is wanted
    assert "Ada" not in str(spans), "spans have no texts and no answers"


async def lost(client: httpx.AsyncClient) -> int:
    text = (await client.get("/metrics")).text
    return int(float(next(line for line in text.splitlines() if line.startswith("qa_trace_spans_dropped")).split()[1]))


@pytest.mark.parametrize("how", ["nobody listens", "it refuses"])
async def test_a_receiver_that_is_down_changes_no_answer(
    cluster: ScriptedCluster,
    collector: Receiver,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # seconds, for all tries of one batch
    collector.status = 400
    url = f"http://127.0.0.1:{free_port()}" if how == "nobody listens" else collector.url
    async with tracing(cluster, url) as client:
        with caplog.at_level(logging.INFO):
            for number in range(3):
                assert (await ask(client, cache="off"))["answers"][0]["answer"] == "Ada"
                await eventually_async(partial(_lost_more_than, client, 5 * number))
    said = [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]
    assert len(said) == 1, "the failure is logged once, not at every try"
    assert "qa_trace_spans_dropped" in said[0]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


async def _lost_more_than(client: httpx.AsyncClient, before: int) -> bool:
    return await lost(client) > before


async def test_a_slow_receiver_costs_spans_but_no_time(
    cluster: ScriptedCluster, collector: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first batch hangs at the receiver while the questions are answered. The full queue is sent later."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")
    monkeypatch.setattr(span_queue, "MAX_QUEUE", 20)
    monkeypatch.setattr(span_queue.SpanQueue.__init__, "__kwdefaults__", {"most": 20})
    collector.held = True
    async with tracing(cluster, collector.url) as client:
        await ask(client, cache="off")
        await eventually_async(lambda: collector.requests == 1)
        for _ in range(10):
            await ask(client, cache="off")
        dropped = await lost(client)
        assert dropped > 20
        assert collector.spans == [], "the receiver still blocks the first batch"
        collector.held = False
        collector.release.set()
        await eventually_async(lambda: collector.requests >= 2)  # the service has sent the queued spans
        await ask(client, HEADERS, cache="off")
        await spans_of(collector)
    assert len([record for record in caplog.records if "are lost" in record.getMessage()]) == 1


async def test_the_last_spans_are_sent_when_the_service_ends(
    cluster: ScriptedCluster, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_queue, "STOP_SECONDS", 60)
    app = traced(Application(ServiceOptions(cluster.target())), collector.url)
    told: list[str] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        if told:
            app._tracer.start_span("last").end()
        return {"type": next(messages)}

    async def send(message: Any) -> None:
        told.append(message["type"])
        if message["type"] == "lifespan.shutdown.complete":
            assert [span.name for span in collector.spans] == ["last"], (
                "the service sends the last spans before it stops"
            )

    await app({"type": "lifespan"}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_without_a_receiver_opentelemetry_is_not_imported() -> None:
    code = (
        "import os, sys; from qa_cluster.api import __main__ as m; from qa_cluster.config import load;"
        "s = load(flags={'cluster_url': 'redis://127.0.0.1:1'}).settings;"
        "app = m.application(s, m.service_options(s)); assert type(app) is m.Application;"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'google', 'requests'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class WithoutTheExtra:
    """Fails to import the packages of the extra, as if the extra were not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("opentelemetry", "qa_cluster.api.tracing"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutTheExtra(), *sys.meta_path])


async def test_without_the_extra_the_setting_is_wrong_and_a_standard_variable_is_only_logged(
    cluster: ScriptedCluster, no_extra: None, caplog: pytest.LogCaptureFixture
) -> None:
    app = Application(ServiceOptions(cluster.target()))
    with pytest.raises(ConfigError, match=r"otlp_endpoint.*qa-cluster\[otel\]"):
        with_traces(app, Settings(otlp_endpoint="http://127.0.0.1:4318"), {})
    assert with_traces(app, Settings(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}) is app
    assert "the service sends no traces" in caplog.text


async def test_without_the_address_of_a_receiver_traces_are_off(cluster: ScriptedCluster) -> None:
    app = Application(ServiceOptions(cluster.target()))
    for endpoint in ("127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://"):
        with pytest.raises(ConfigError, match="must be a URL such as"):
            with_traces(app, Settings(otlp_endpoint=endpoint), {})
    for environment in ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}):
        assert with_traces(app, Settings(), environment) is app
