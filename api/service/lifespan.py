"""The state of the running service: its options, its metrics, and its engine, which opens in the background.

The service can start without a cluster. Until it reaches a cluster with a model, `/readyz` and questions get status
503.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from qa_cluster.access.audit import AuditLog
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.engine import Engine
from qa_cluster.asking.questions import AskLimits
from qa_cluster.batches.records import BatchLimits
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, QAError
from qa_cluster.huggingface.request import PipelineLimits
from qa_cluster.options.questions import PARTIAL

from .loop_lag import LoopLag
from .telemetry import Telemetry

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options of the service. The attributes that are not in the list below are settings (`qa_cluster.config`).

    These attributes have the names of their settings, except `max_requests` (`http_max_requests`) and
    `async_result_ttl_seconds` (`async_result_ttl_s`). `pipeline` and `batches` contain several settings each.

    Attributes:
        target: the cluster, and the options with which the engine opens it.
        hosts: the names that `Host` headers may have, in addition to IP addresses and ``localhost``.
        page_questions: example questions of the page.
        page_title: the name on the page.
        page_logo: the path of an image file for the page; empty: no image.
        keys_required: whether requests need an API key even if the cluster has none.
        metrics: whether the service has `/metrics`; false if the admin listener has it.
    """

    target: Target
    max_requests: int = 256
    body_max_bytes: int = 8 * 1024 * 1024
    pipeline: PipelineLimits = field(default_factory=PipelineLimits)
    body_timeout_ms: int = 10_000
    hosts: tuple[str, ...] = ()
    cors_origins: str = ""
    page_questions: tuple[str, ...] = ()
    page_title: str = "qa-cluster"
    page_logo: str = ""
    coverage: str = PARTIAL
    keys_required: bool = False
    audit_log: str = ""
    metrics: bool = True
    async_result_ttl_seconds: float = Settings.async_result_ttl_s
    async_results_max: int = Settings.async_results_max
    upload_max_bytes: int = 64 * 1024 * 1024
    upload_max_files: int = 100
    upload_max_requests: int = 2
    upload_timeout_ms: int = 120_000
    batches: BatchLimits = field(default_factory=BatchLimits)

    @property
    def limits(self) -> AskLimits:
        """The limits of a question and its options."""
        return self.target.options.limits


class ServiceState:
    """The options and the metrics of the service, and its engine as soon as it is open."""

    def __init__(self, options: ServiceOptions) -> None:
        self.options = options
        self.metrics = Telemetry()
        self.audit = AuditLog(options.audit_log)
        self._loop_lag = LoopLag(self.metrics.loop_lag.observe)
        self.engine_or_none: Engine | None = None
        self._problem: QAError = ClusterError("the service is connecting to the cluster")
        self._opening: asyncio.Task[None] | None = None
        # Functions that `stop` calls before the engine closes.
        self.on_stop: list[Callable[[], Awaitable[None]]] = []

    @property
    def engine(self) -> Engine:
        """The engine. Until the engine is open, this property raises the error of the last attempt to open it."""
        if self.engine_or_none is None:
            raise type(self._problem)(str(self._problem))
        return self.engine_or_none

    async def start(self) -> None:
        """Start to open the engine in the background, and wait for the first attempt.

        After a QAError, such as a missing cluster, the background task retries. Any other error of the first attempt is
        raised.
        """
        self._loop_lag.start()
        tried = asyncio.Event()
        self._opening = asyncio.create_task(self._open(tried), name="engine")
        await tried.wait()
        if self._opening.done() and (error := self._opening.exception()) is not None:
            _log.error("the service cannot start because of an unexpected error", exc_info=error)
            raise error

    async def stop(self) -> None:
        """Call the functions in `on_stop`, then close the engine and the audit log."""
        self._loop_lag.stop()
        for stop in self.on_stop:
            await stop()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self.engine_or_none is not None:
            engine, self.engine_or_none = self.engine_or_none, None
            await engine.aclose()
        self.audit.close()

    async def _open(self, tried: asyncio.Event) -> None:
        pause = FIRST_RETRY_SECONDS
        while self.engine_or_none is None:
            try:
                self.engine_or_none = await self.options.target.open()
                self.metrics.watch(self.engine_or_none)
                _log.info("connected to %d shards", len(self.engine_or_none.shards.all))
            except QAError as error:
                if str(error) != str(self._problem):
                    _log.warning("not connected to the cluster, retrying: %s", error)
                self._problem = error
            except Exception as error:
                if not tried.is_set():
                    raise
                _log.exception("not connected to the cluster because of an unexpected error, retrying")
                self._problem = ClusterError(f"the service could not connect: {type(error).__name__}: {error}")
            finally:
                tried.set()
            if self.engine_or_none is None:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_RETRY_SECONDS)
