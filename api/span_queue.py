"""Sends spans to an OTLP receiver from a thread of its own; whoever ends a span never waits.

The queue is bounded. A receiver that is down or slow costs spans, never a request: what finds the queue full, and what
the receiver does not take, is dropped and counted, and the log says so once, until the receiver takes spans again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MAX_QUEUE = 4096
MAX_BATCH = 512
PAUSE_SECONDS = 1.0
# A stopping service gives the receiver this long for the last spans.
STOP_SECONDS = 2.0
_EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

_log = logging.getLogger(__name__)


class _LastWords(logging.Filter):
    """Keeps what the exporter would log, at every try; the queue says it once."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let nothing through."""
        self.text = record.getMessage()
        return False


class SpanQueue(SpanProcessor):
    """The spans that have ended and were not sent yet.

    Attributes:
        sent, dropped: how many spans the receiver has taken, and how many are lost.
    """

    def __init__(self, exporter: SpanExporter, endpoint: str, *, most: int = MAX_QUEUE) -> None:
        self.sent = 0
        self.dropped = 0
        self._exporter = exporter
        self._endpoint = endpoint
        self._most = most
        self._waiting: deque[ReadableSpan] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._complained = False
        self._words = _LastWords()
        logging.getLogger(_EXPORTER_LOG).addFilter(self._words)
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing: a span is sent when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; it is dropped if too many wait."""
        with self._lock:
            full = len(self._waiting) >= self._most
            if not full:
                self._waiting.append(span)
        if full:
            self._lost(1, f"{self._most} spans wait already")
        elif len(self._waiting) >= MAX_BATCH:
            self._wake.set()

    def shutdown(self) -> None:
        """Send what waits, for `STOP_SECONDS` at most, and end; what is left then is dropped."""
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_SECONDS)
        self._exporter.shutdown()
        with self._lock:
            left = len(self._waiting)
            self._waiting.clear()
        if left:
            self._lost(left, "the service ends")
        logging.getLogger(_EXPORTER_LOG).removeFilter(self._words)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Have the thread send what waits, without waiting for it."""
        self._wake.set()
        return True

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait(PAUSE_SECONDS)
            self._wake.clear()
            while batch := self._take():
                self._send(batch)

    def _take(self) -> list[ReadableSpan]:
        with self._lock:
            return [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            taken = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # whatever the exporter raises, the thread must go on
            self._words.text = repr(error)
            taken = False
        if not taken:
            self._lost(len(batch), self._words.text)
            return
        self.sent += len(batch)
        if self._complained:
            self._complained = False
            _log.info("the receiver of traces %s takes spans again; %d are lost so far", self._endpoint, self.dropped)

    def _lost(self, count: int, why: str) -> None:
        with self._lock:
            self.dropped += count
            complained, self._complained = self._complained, True
        if not complained:
            _log.warning(
                "spans for the receiver of traces %s are lost, and this is said once until it takes some again"
                " (qa_trace_spans_dropped counts them): %s",
                self._endpoint,
                why[:300],
            )
