"""A receiver of traces in place of a collector. It decodes OTLP over HTTP with the protocol's own classes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.harness.polling import eventually


@dataclass
class Receiver:
    """The receiver: the spans that it has accepted, and its behaviour.

    Attributes:
        status: the status of all responses; only with 200 does the receiver accept spans.
        held: whether requests wait for `release`.
    """

    url: str
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    requests: int = 0
    status: int = 200
    held: bool = False
    release: threading.Event = field(default_factory=threading.Event)

    def trace(self, trace_id: str, *, root: str) -> dict[str, Span]:
        """The spans of a trace by their ids. Waits for the span `root`, which ends last."""

        def whole() -> dict[str, Span]:
            found = {span.span_id.hex(): span for span in list(self.spans) if span.trace_id.hex() == trace_id}
            return found if any(span.name == root for span in found.values()) else {}

        return eventually(whole)


def facts(span: Span) -> dict[str, Any]:
    """The attributes of a span."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value") for each in span.attributes}


def children(spans: dict[str, Span], parent: Span) -> list[Span]:
    """The child spans of a span, in the order of their starts."""
    found = [span for span in spans.values() if span.parent_span_id == parent.span_id]
    return sorted(found, key=lambda span: (span.start_time_unix_nano, span.end_time_unix_nano))


def milliseconds(span: Span) -> float:
    """The duration of a span."""
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6


def shown(spans: dict[str, Span], top: Span, shift: int = 0, origin: int = 0) -> list[str]:
    """A trace as lines of text: start, duration, name and attributes of each span."""
    origin = origin or top.start_time_unix_nano
    begun = (top.start_time_unix_nano - origin) / 1e6
    said = " ".join(f"{name.removeprefix('qa.')}={value}" for name, value in facts(top).items())
    lines = [f"{begun:8.1f} {milliseconds(top):8.1f}  {'  ' * shift}{top.name}  {said}".rstrip()]
    for child in children(spans, top):
        lines += shown(spans, child, shift + 1, origin)
    return lines


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A running receiver on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.requests += 1
            if state.held:
                state.release.wait(60)
            if state.status == 200 and self.path == "/v1/traces":
                for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                    state.resources.append({one.key: one.value.string_value for one in each.resource.attributes})
                    state.spans += [span for scope in each.scope_spans for span in scope.spans]
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(state.status if self.path == "/v1/traces" else 404)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # an exporter that has given up has closed its connection

    with Quiet(("127.0.0.1", 0), Handler) as server:
        state = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            state.release.set()
            server.shutdown()
            thread.join()
