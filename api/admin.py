"""The listener of the administration: `/metrics`, `/livez` and `/readyz` on a port of their own, without API keys.

It has the metrics, so that those who ask questions need not be kept from them, and Prometheus needs no key. Its probes
are answered while the service's own connections are all taken. `/readyz` is on both listeners: whoever sends questions
to the service's port must be able to ask there whether it answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from time import perf_counter

import uvicorn
from starlette.routing import Router

from qa_cluster.errors import ConfigError

from .admission.hosts import Hosts
from .admission.resources import UNBOUNDED_PATHS
from .app import Application
from .certificate import Certificate
from .connections import ConnectionLimits, bounded
from .http.error_map import problem
from .http.messages import Receive, Scope, Send, send_response
from .http.responding import Responder, as_problem

BACKLOG = 128
STOP_SECONDS = 2
POLL_SECONDS = 0.01

_log = logging.getLogger(__name__)


class AdminApplication:
    """The pages of the administration of one service, as an ASGI application."""

    def __init__(self, service: Application, hosts: Hosts) -> None:
        self._metrics = service.state.metrics
        self._router = Router(routes=service.status.admin_routes(), redirect_slashes=False)
        self._hosts = hosts
        self._id_prefix = f"admin-{os.urandom(4).hex()}"
        self._ids = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        begun = perf_counter()
        responder = Responder(send, f"{self._id_prefix}-{next(self._ids):x}")
        scope["app"] = self  # makes Starlette's router raise instead of sending a plain-text error
        try:
            self._hosts.check(scope)
            await self._router(scope, receive, responder)
        except Exception as error:  # the one place where any error becomes a response
            if responder.status:
                raise
            about = {"request_id": responder.request_id, "instance": scope["path"]}
            status, headers, body = problem(as_problem(error, scope), **about)
            await send_response(responder, status, headers, body)
        finally:
            route = scope["path"] if scope["path"] in UNBOUNDED_PATHS else "other"
            method = scope["method"] if scope["method"] in ("GET", "HEAD") else "other"
            self._metrics.requests.inc(route, method, str(responder.status))
            self._metrics.seconds.observe(perf_counter() - begun, route)


class _Server(uvicorn.Server):
    """A server beside that of the service, which takes the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none."""
        yield


class AdminListener:
    """Listens from the making on, answers from `start` to `stop`."""

    def __init__(
        self, app: AdminApplication, host: str, port: int, limits: ConnectionLimits, certificate: Certificate | None
    ) -> None:
        self._socket = _listening(host, port)
        config = uvicorn.Config(
            app,
            http=bounded(limits),
            ws="none",
            lifespan="off",
            access_log=False,
            server_header=False,
            log_config=None,
            backlog=BACKLOG,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        config.load()
        if certificate is not None:
            config.ssl = certificate.context
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port."""
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Answer from now on."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin")
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(POLL_SECONDS)
        if self._serving.done():
            await self._serving
        _log.info("metrics and probes are at port %d of %s", self.port, self._socket.getsockname()[0])

    async def stop(self) -> None:
        """Answer what is under way, for `STOP_SECONDS` at most, and end."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait([self._serving])
        self._socket.close()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens; ConfigError if the address cannot be had."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with the settings"
            " 'admin_host' and 'admin_port'"
        ) from error
