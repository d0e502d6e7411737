"""Traces of requests for an OTLP receiver (extra `otel`). Without the extra, this module is not imported.

`Traced` wraps the application. It starts a span for each request, except probes and metrics, in the trace that
`traceparent` names. The core (`qa_cluster.tracing`) adds child spans. OpenTelemetry's sampler decides whether a request
is traced (``OTEL_TRACES_SAMPLER``). By default, `traceparent` decides, and a request without it is traced. A request
that is not traced costs only this decision.

Spans contain numbers, names of shards, the route and the request id. They contain no path, query string, document id or
text of a document. They contain the question only if the setting `otlp_question_text` is true.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, MutableMapping
from importlib.metadata import version
from time import perf_counter, time_ns
from typing import Any, Protocol
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from qa_cluster.errors import QAError, ReplyError
from qa_cluster.tracing import Fact, TracedStep, recording

from .admission.resources import UNBOUNDED_PATHS, resource_of
from .http.messages import METHODS, Receive, Scope, Send
from .service.lifespan import ServiceState
from .span_queue import SpanQueue

TRACES_PATH = "/v1/traces"
QUESTION = "qa.question"
_PROPAGATOR = TraceContextTextMapPropagator()


class App(Protocol):
    """The application that is traced."""

    state: ServiceState

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or handle the start and the stop of the process (ASGI's scope `lifespan`)."""


class _Headers(Getter[Any]):
    """Reads the headers of an ASGI scope. A repeated `traceparent` is ignored."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        name = key.encode()
        found = [value.decode("latin-1") for header, value in carrier if header == name]
        return None if not found or (key == "traceparent" and len(found) > 1) else found

    def keys(self, carrier: Any) -> list[str]:
        return [header.decode("latin-1") for header, _ in carrier]


_HEADERS = _Headers()


class SpanStep:
    """A span in the form of a `TracedStep` of the core (`qa_cluster.tracing`).

    The core gives times on the clock of `time.perf_counter`. `epoch_ns` is the wall-clock time at which this clock was
    0, in nanoseconds since 1970. All spans of a request have the same `epoch_ns`.
    """

    __slots__ = ("_epoch_ns", "_question_text", "_span", "_tracer", "sent_at")

    def __init__(self, tracer: Tracer, span: Span, epoch_ns: int, *, question_text: bool) -> None:
        self._tracer = tracer
        self._span = span
        self._epoch_ns = epoch_ns
        self._question_text = question_text
        self.sent_at: float | None = None

    @property
    def traceparent(self) -> str:
        """The `traceparent` header of the span."""
        about = self._span.get_span_context()
        return f"00-{format_trace_id(about.trace_id)}-{format_span_id(about.span_id)}-{about.trace_flags & 1:02x}"

    def begin(self, name: str, facts: Mapping[str, Fact], *, is_call: bool) -> TracedStep:
        """Start a child span and return it. `facts` are its attributes.

        `is_call` says whether the span is a call to another server.
        """
        span = self._child(name, perf_counter(), SpanKind.CLIENT if is_call else SpanKind.INTERNAL)
        step = SpanStep(self._tracer, span, self._epoch_ns, question_text=self._question_text)
        step.note(facts)
        return step

    def put(self, name: str, begun: float, ended: float, facts: Mapping[str, Fact]) -> None:
        """Add a child span that has already ended. `begun` and `ended` are on the clock of `time.perf_counter`."""
        span = self._child(name, begun, SpanKind.INTERNAL)
        span.set_attributes(facts)
        span.end(self._ns(ended))

    def note(self, facts: Mapping[str, Fact]) -> None:
        """Set attributes of the span. The text of the question is set only with `question_text`."""
        for name, value in facts.items():
            if name != QUESTION or self._question_text:
                self._span.set_attribute(name, value)

    def end(self, error: BaseException | None) -> None:
        """End the span. `error` is the exception that ended the work; None if there was no exception.

        The span records only the kind of the error, because an error message may quote the user's text.
        """
        if isinstance(error, asyncio.CancelledError):
            self._span.set_attribute("qa.cancelled", True)
        elif error is not None:
            self._span.set_attribute("error.type", _kind(error))
            self._span.set_status(StatusCode.ERROR)
        self._span.end(self._ns(perf_counter()))

    def _child(self, name: str, begun: float, kind: SpanKind) -> Span:
        parent = trace.set_span_in_context(self._span)
        return self._tracer.start_span(name, context=parent, kind=kind, start_time=self._ns(begun))

    def _ns(self, when: float) -> int:
        return self._epoch_ns + round(when * 1e9)


def _kind(error: BaseException) -> str:
    if isinstance(error, ReplyError):
        return error.code[:50]
    return error.resp_code if isinstance(error, QAError) else type(error).__name__


class Traced:
    """Wraps the application and traces each request, except requests for probes and metrics."""

    def __init__(self, app: App, queue: SpanQueue, *, question_text: bool = False) -> None:
        self._app = app
        self.state = app.state
        self._queue = queue
        self._question_text = question_text
        given = {} if _service_is_named() else {SERVICE_NAME: "qa-cluster"}
        resource = Resource.create({**given, SERVICE_VERSION: version("qa-cluster")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(queue)
        self._tracer = self._provider.get_tracer("qa-cluster", version("qa-cluster"))
        registry = app.state.metrics.registry
        registry.gauge("qa_trace_spans_sent", "Spans that the receiver of traces has accepted", lambda: queue.sent)
        registry.gauge(
            "qa_trace_spans_dropped", "Spans lost because the receiver is down or slow", lambda: queue.dropped
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or handle the start and the stop of the process (ASGI's scope `lifespan`)."""
        if scope["type"] == "http" and scope["path"] not in UNBOUNDED_PATHS:
            await self._request(scope, receive, send)
            return

        async def ending(message: MutableMapping[str, Any]) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.startup.failed"):
                await asyncio.to_thread(self._provider.shutdown)
            await send(message)

        await self._app(scope, receive, ending if scope["type"] == "lifespan" else send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        epoch_ns = time_ns() - round(perf_counter() * 1e9)
        begun = perf_counter()
        parent = _PROPAGATOR.extract(scope["headers"], getter=_HEADERS)
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        route = resource_of(scope).name
        span = self._tracer.start_span(
            f"{method} {route}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route, "url.scheme": scope.get("scheme", "http")},
            start_time=epoch_ns + round(begun * 1e9),
        )
        if not span.is_recording():
            with recording(None):  # a pipelined request starts inside the previous request, which may be recorded
                await self._app(scope, receive, send)
            return

        answered = False

        async def noting(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                _note_response(span, message)
            await send(message)

        step = SpanStep(self._tracer, span, epoch_ns, question_text=self._question_text)
        error: BaseException | None = None
        try:
            with recording(step):
                await self._app(scope, receive, noting)
            if not answered:
                span.set_attribute("qa.client_gone", True)
        except BaseException as raised:
            error = raised
            raise
        finally:
            step.end(error)


def _note_response(span: Span, message: Mapping[str, Any]) -> None:
    status = message["status"]
    span.set_attribute("http.response.status_code", status)
    for name, value in message["headers"]:
        if name == b"x-request-id":
            span.set_attribute("qa.request_id", value.decode("latin-1"))
    if status >= 500:
        span.set_attribute("error.type", str(status))
        span.set_status(StatusCode.ERROR)


def _service_is_named() -> bool:
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def traced(app: App, endpoint: str, *, question_text: bool = False) -> Traced:
    """Wrap the application with traces for the receiver at `endpoint` (``http://host:4318``).

    If `endpoint` is empty, OpenTelemetry's environment variables name the receiver.
    """
    # Hide warnings, because clients could fill the log with invalid trace contexts.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    url = endpoint.rstrip("/")
    exporter = OTLPSpanExporter(endpoint=(url if url.endswith(TRACES_PATH) else url + TRACES_PATH) if url else None)
    named = url or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
    parts = urlsplit(named)  # the URL may have a password, which must not be logged
    return Traced(app, SpanQueue(exporter, f"{parts.hostname}:{parts.port}"), question_text=question_text)
