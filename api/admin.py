"""The admin listener: `/metrics`, `/livez` and `/readyz` on a separate port, without API keys.

With this listener, the port of the service has no `/metrics`. So clients of the service cannot read the metrics, and
Prometheus needs no key. The listener answers probes even while all connections of the service are in use. `/readyz` is
on both listeners, because clients of the service need it, too.
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
from .admission.origins import Origins
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
    """The pages of the admin listener of a service, as an ASGI application. `hosts` are the accepted hosts."""

    def __init__(self, service: Application, hosts: Hosts) -> None:
        self._metrics = service.state.metrics
        self._router = Router(routes=service.status.admin_routes(), redirect_slashes=False)
        self._hosts = hosts
        self._origins = Origins()
        self._id_prefix = f"admin-{os.urandom(4).hex()}"
        self._ids = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. A WebSocket connection is closed."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        begun = perf_counter()
        responder = Responder(send, f"{self._id_prefix}-{next(self._ids):x}")
        scope["app"] = self  # makes Starlette's router raise instead of sending a plain-text error
        try:
            self._hosts.check(scope)
            self._origins.check(scope)
            await self._router(scope, receive, responder)
        except Exception as error:  # every error becomes a problem document, unless the response has started
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
    """A server without signal handlers, because the service's own server handles signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class AdminListener:
    """Listens as soon as it is created, and answers requests between `start` and `stop`.

    Without `certificate`, the listener has no TLS. Raises ConfigError if the address cannot be used.
    """

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
            proxy_headers=False,
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
        """The port of the listener."""
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Start answering requests, and return when the listener is ready. If it cannot start, raise the error."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="admin")
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(POLL_SECONDS)
        if self._serving.done():
            await self._serving
        _log.info("the admin listener answers on %s, port %d", self._socket.getsockname()[0], self.port)

    async def stop(self) -> None:
        """Finish the running requests, for at most `STOP_SECONDS`, and close the listener."""
        self._server.should_exit = True
        if self._serving is not None:
            await asyncio.wait([self._serving])
        self._socket.close()


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host` and `port`. Raise ConfigError if this address cannot be used."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another address with the settings"
            " 'admin_host' and 'admin_port'"
        ) from error
