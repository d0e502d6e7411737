"""Sends spans to an OTLP receiver from a background thread, so that requests never wait.

The queue is bounded. If the receiver is down or slow, spans are dropped and counted. The log reports this once, until
the receiver accepts spans again.
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
# The time limit for sending the last spans when the service stops.
STOP_SECONDS = 2.0
_EXPORTER_LOG = "opentelemetry.exporter.otlp.proto.http.trace_exporter"

_log = logging.getLogger(__name__)


class _LastMessage(logging.Filter):
    """Stores the last log message of the exporter and suppresses it. The exporter logs every attempt; the queue logs
    once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Store the message, and suppress it."""
        self.text = record.getMessage()
        return False


class SpanQueue(SpanProcessor):
    """Queues ended spans until they are sent. The queue has at most `most` spans.

    `endpoint` names the receiver in the log.

    Attributes:
        sent: the number of spans that the receiver has accepted.
        dropped: the number of lost spans.
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
        self._last_message = _LastMessage()
        logging.getLogger(_EXPORTER_LOG).addFilter(self._last_message)
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Do nothing: a span is sent when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span; drop it if the queue is full."""
        with self._lock:
            full = len(self._waiting) >= self._most
            if not full:
                self._waiting.append(span)
        if full:
            self._lost(1, f"the queue is at its limit of {self._most} spans")
        elif len(self._waiting) >= MAX_BATCH:
            self._wake.set()

    def shutdown(self) -> None:
        """Send the queued spans for at most `STOP_SECONDS`; drop the remaining spans."""
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_SECONDS)
        self._exporter.shutdown()
        with self._lock:
            left = len(self._waiting)
            self._waiting.clear()
        if left:
            self._lost(left, "the service has stopped")
        logging.getLogger(_EXPORTER_LOG).removeFilter(self._last_message)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wake the thread that sends the spans, and return true without waiting for the thread."""
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
            accepted = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # the thread must survive any error of the exporter
            self._last_message.text = repr(error)
            accepted = False
        if not accepted:
            self._lost(len(batch), self._last_message.text)
            return
        self.sent += len(batch)
        if self._complained:
            self._complained = False
            _log.info("the receiver of traces %s accepts spans again; %d spans were lost", self._endpoint, self.dropped)

    def _lost(self, count: int, why: str) -> None:
        with self._lock:
            self.dropped += count
            complained, self._complained = self._complained, True
        if not complained:
            _log.warning(
                "spans for the receiver of traces %s are lost; this is logged once, until the receiver accepts spans"
                " again (qa_trace_spans_dropped counts them): %s",
                self._endpoint,
                why[:300],
            )
