"""A small HTTP server for Prometheus and for probes: `/metrics`, `/livez` and `/readyz`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvicorn

from qa_cluster.errors import ConfigError
from qa_cluster.exposition import CONTENT_TYPE

from .metrics import AdapterMetrics

MAX_CONNECTIONS = 32

_Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Server(uvicorn.Server):
    """A uvicorn server that does not handle signals, because the adapter handles them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class MetricsServer:
    """Serves metrics and probes. `ready` returns whether the process is a member of its consumer group."""

    def __init__(self, metrics: AdapterMetrics, host: str, port: int, ready: Callable[[], bool]) -> None:
        self._metrics, self._ready = metrics, ready
        try:
            self._socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose a free port with --metrics-port"
            ) from error
        self._server = _Server(
            uvicorn.Config(
                self._answer,
                interface="asgi3",
                ws="none",
                lifespan="off",
                access_log=False,
                server_header=False,
                log_config=None,
                log_level="warning",
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=1,
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        port: int = self._socket.getsockname()[1]
        return port

    async def _answer(self, scope: dict[str, Any], receive: object, send: _Send) -> None:
        status, kind, body = 404, "text/plain; charset=utf-8", "not found: /metrics, /livez and /readyz exist\n"
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            if scope["path"] == "/metrics":
                status, kind, body = 200, CONTENT_TYPE, self._metrics.render()
            elif scope["path"] == "/livez":
                status, body = 200, "alive\n"
            elif scope["path"] == "/readyz":
                status, body = (200, "ready\n") if self._ready() else (503, "not a member of the group yet\n")
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    async def start(self) -> None:
        """Start to serve requests."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Stop serving requests, and close all connections and the listening socket."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait([self._serving])
        self._socket.close()
