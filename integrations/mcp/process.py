"""The process of `qa-cluster mcp`: transports, logging and shutdown.

With stdio, the protocol uses standard output, so the log uses standard error. The log has no headers and no questions.
The loggers of the HTTP client log only warnings, because their debug messages contain headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, QAError

from .backend import Backend, BackendOptions, service_url
from .server import QuestionServer, make_server

PATH = "/mcp"
SHUTDOWN_SECONDS = 5
# The maximum number of open connections, including idle connections.
MAX_CONNECTIONS = 256
# The maximum size of a request body in bytes, if the server has no `put_document`. The longest argument is then a
# question or a filter.
READ_BODY_BYTES = 256 * 1024
# If the server has `put_document`, the maximum size is `body_max_bytes` plus this number, because texts are longer as
# JSON.
_BODY_MARGIN = 64 * 1024
_QUIET = ("httpx", "httpcore", "uvicorn.access", "asyncio", "mcp.server.streamable_http", "mcp.server.lowlevel")
_INTERRUPTED = 130
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")

_log = logging.getLogger(__name__)


def run(
    settings: Settings,
    *,
    over_http: bool,
    direct: bool,
    write: bool,
    collection: str,
    without_keys: bool,
    loopback: bool,
) -> int:
    """Serve until standard input ends (stdio) or a signal stops the process; return the exit status.

    With stdio, a signal ends the process inside this function.

    Args:
        settings: the settings of this process.
        over_http: serve streamable HTTP at `mcp_host` and `mcp_port` instead of stdio.
        direct: use the cluster of the settings directly, without the REST service.
        write: offer the tool `put_document`.
        collection: the default collection of calls.
        without_keys: allow an address other than loopback even if the service requires no API key.
        loopback: whether `mcp_host` is reachable from this machine only. The service then need not require API keys.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    options = BackendOptions(
        settings, direct=direct, over_http=over_http, keys_required=over_http and not loopback and not without_keys
    )
    return asyncio.run(_serve(options, write, collection))


async def _serve(options: BackendOptions, write: bool, collection: str) -> int:
    settings = options.settings
    backend = Backend(options)
    server = make_server(backend, write=write, collection=collection, log_level=settings.log_level)
    where = "the cluster" if options.direct else service_url(settings)
    try:
        if options.over_http:
            return await _serve_http(server, backend, settings, where, write)
        return await _serve_stdio(server, backend, where)
    finally:
        await backend.aclose()


async def _serve_stdio(server: QuestionServer, backend: Backend, where: str) -> int:
    """Serve standard input and output until end of file, and return 0.

    At a signal, this function ends the process: with the status 0 after SIGTERM, and with 130 after SIGINT. `where`
    is the source of the documents, for the log.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(number: int) -> None:
        if not stopped.done():
            stopped.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    _log.info("serving MCP on standard input and output; documents come from %s", where)
    serving = asyncio.ensure_future(server.run_stdio_async())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()
        _log.info("standard input has ended")
        return 0
    _log.info("stopped by %s", signal.Signals(stopped.result()).name)
    await backend.aclose()
    # A regular exit would wait for a thread of the SDK that reads the next line of standard input. No other thread can
    # interrupt this thread.
    logging.shutdown()
    os._exit(0 if stopped.result() == signal.SIGTERM else _INTERRUPTED)


class PostOnly:
    """Replies with 405 to every method except POST, because the server offers no streams.

    `app` is the application of the SDK. It receives all POST requests, and ASGI's `lifespan` events, which report the
    start and the end of the process.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["method"] == "POST":
            await self._app(scope, receive, send)
            return
        headers = [(b"allow", b"POST"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 405, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def transport_security(settings: Settings) -> TransportSecuritySettings:
    """Return the accepted hosts and origins, which protect against DNS rebinding and requests from other web sites."""
    own = f"[{settings.mcp_host}]" if ":" in settings.mcp_host else settings.mcp_host
    names = {*_LOOPBACK_NAMES, own, *_words(settings.mcp_hosts)} - {"0.0.0.0", "[::]"}
    hosts = [form for name in sorted(names) for form in (name, f"{name}:*")]
    pages = [form for name in _LOOPBACK_NAMES for form in (f"http://{name}", f"http://{name}:*")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=hosts,
        allowed_origins=[*pages, *_words(settings.mcp_origins)],
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


async def _serve_http(server: QuestionServer, backend: Backend, settings: Settings, where: str, write: bool) -> int:
    """Serve streamable HTTP until a signal; return 0, or 1 if the server could not start.

    `where` is the source of the documents, for the log. `write` says whether the server has the tool `put_document`.
    """
    try:
        await backend.check_keys()
    except ConfigError:
        raise
    except QAError as error:
        _log.warning("the service was not checked: %s", error)
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=settings.body_max_bytes + _BODY_MARGIN if write else READ_BODY_BYTES,
        transport_security=transport_security(settings),
    )
    config = uvicorn.Config(
        PostOnly(app),
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        log_level=settings.log_level,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    listener = _listener(settings)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
    _log.info("serving MCP at %s; documents come from %s", address, where)
    if settings.service_api_key:
        _log.warning("service_api_key is not used over HTTP: callers send their own keys in the Authorization header")
    # uvicorn raises the signal again after an orderly shutdown. Without this handler, SIGTERM would then end the
    # process before it returns its exit status.
    signal.signal(signal.SIGTERM, lambda *_: None)
    serving = uvicorn.Server(config)
    with contextlib.closing(listener):
        await serving.serve([listener])
    return 0 if serving.started else 1


def _listener(settings: Settings) -> socket.socket:
    host, port = settings.mcp_host, settings.mcp_port
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=MAX_CONNECTIONS
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose a different address with --host and"
            " --port (settings 'mcp_host' and 'mcp_port')"
        ) from error
