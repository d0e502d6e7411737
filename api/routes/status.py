"""The status routes: liveness, readiness, metrics, the list of models, and the API description."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from qa_cluster.asking.engine import Engine
from qa_cluster.asking.loaded_readers import SHARD_TIMEOUT_SECONDS
from qa_cluster.batches.records import BatchLimits
from qa_cluster.batches.store import BatchStore
from qa_cluster.errors import QAError
from qa_cluster.exposition import CONTENT_TYPE, sample
from qa_cluster.topology import Shard

from ..description.openapi import describe, docs_page
from ..service.lifespan import ServiceState
from ..service.readiness import KEEP_SECONDS, Readiness
from ..service.telemetry import batch_samples, parse_info, shard_samples
from .page import PAGE_HEADERS

BATCHES_KEEP_SECONDS = 10.0


def _json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json", headers={"cache-control": "no-store"})


class StatusPages:
    """The status pages of the service and of the admin listener."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self.readiness = Readiness(state)
        self._shard_metrics = _Metrics(state)

    def routes(self) -> list[Route]:
        """Return the status routes of the service."""
        options = self._state.options
        description = describe(
            version("qa-cluster"),
            options.limits,
            options.body_max_bytes,
            options.pipeline,
            coverage=options.coverage,
            upload_timeout_ms=options.upload_timeout_ms,
        )
        if not options.metrics:
            del description["paths"]["/metrics"]

        async def openapi(request: Request) -> Response:
            return _json(description)

        async def docs(request: Request) -> Response:
            return HTMLResponse(docs_page(description), headers=PAGE_HEADERS)

        return [
            Route("/models", self._models),
            *self._probes(),
            *([Route("/metrics", self._metrics)] if options.metrics else []),
            Route("/openapi.json", openapi),
            Route("/docs", docs),
        ]

    def admin_routes(self) -> list[Route]:
        """Return the routes of the admin listener."""
        return [*self._probes(), Route("/metrics", self._metrics)]

    def _probes(self) -> list[Route]:
        return [Route("/livez", self._livez), Route("/readyz", self._readyz)]

    async def _livez(self, request: Request) -> Response:
        return _json({"alive": True})

    async def _models(self, request: Request) -> Response:
        found = await self._state.engine.models()
        return _json({"object": "list", "data": [{"object": "qa.model", **model.to_dict()} for model in found]})

    async def _readyz(self, request: Request) -> Response:
        verdict = await self.readiness.verdict()
        response = _json(verdict, 200 if verdict["ready"] else 503)
        if not verdict["ready"]:
            response.headers["retry-after"] = "1"
        return response

    async def _metrics(self, request: Request) -> Response:
        return PlainTextResponse(await self._shard_metrics.text(), media_type=CONTENT_TYPE)


class _Metrics:
    """The metrics of this process and of all shards.

    Requests for metrics are not limited, so caches limit the load on the shards.
    """

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        limits = state.options.batches
        self._cached = (
            _Cached(KEEP_SECONDS, _shards),
            _Cached(BATCHES_KEEP_SECONDS, lambda engine: _batches(engine, limits)),
        )

    async def text(self) -> str:
        """Return the metrics in the format of Prometheus."""
        engine = self._state.engine_or_none
        cluster = [] if engine is None else await asyncio.gather(*(cached.text(engine) for cached in self._cached))
        return self._state.metrics.registry.render() + "".join(cluster)


class _Cached:
    """Metrics of the cluster that are read at most once every `seconds` seconds."""

    def __init__(self, seconds: float, read: Callable[[Engine], Awaitable[str]]) -> None:
        self._seconds = seconds
        self._read = read
        self._known: tuple[float, str] | None = None
        self._lock = asyncio.Lock()

    async def text(self, engine: Engine) -> str:
        """Return the metrics in the format of Prometheus."""
        async with self._lock:
            if self._known is None or time.monotonic() - self._known[0] >= self._seconds:
                self._known = (time.monotonic(), await self._read(engine))
            return self._known[1]


async def _batches(engine: Engine, limits: BatchLimits) -> str:
    """Return the metrics of batches; empty while a shard with batches does not answer."""
    try:
        async with asyncio.timeout(SHARD_TIMEOUT_SECONDS):
            counts = await BatchStore(engine.shards, limits).counts()
    except (QAError, TimeoutError):
        return ""
    return "\n".join(batch_samples(counts, time.time())) + "\n"


async def _shards(engine: Engine) -> str:
    """Return the metrics of every shard. `qa_shard_up` is 0 for a shard that does not answer."""
    lines: list[str] = []
    for shard, info in zip(
        engine.shards.all, await asyncio.gather(*(_info(engine, shard) for shard in engine.shards.all)), strict=True
    ):
        lines.append(sample("qa_shard_up", {"shard": shard.name}, float(info is not None)))
        if info is not None:
            lines += shard_samples(shard.name, parse_info(info))
    return "\n".join(sorted(lines)) + "\n"


async def _info(engine: Engine, shard: Shard) -> bytes | None:
    try:
        async with asyncio.timeout(SHARD_TIMEOUT_SECONDS):
            reply = await engine.shards.execute_on(shard, "INFO", "qa")
    except (QAError, TimeoutError):
        return None
    return reply if isinstance(reply, bytes) else str(reply).encode()
