"""The tools' access to the documents: a client of the service or of the cluster, with a call limit and a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from qa_cluster.client import (
    AccessDenied,
    AsyncClient,
    AsyncClusterClient,
    DeadlineExceeded,
    QueueFull,
)
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError, InvalidInput
from qa_cluster.security.tls import trusted

# The maximum number of waiting calls, as a multiple of the maximum number of running calls.
WAITING_PER_CALL = 4
# The additional time that a call waits for the service's error after the deadline of the request.
MARGIN_SECONDS = 1.0
# After a check has shown that the service refuses requests without a key, the next check is this much later.
CHECKED_SECONDS = 30.0
MAX_AUTHORIZATION_CHARS = 1000

_Result = TypeVar("_Result")
# The Authorization header of the current MCP request; empty: the request has none.
_CALLER: ContextVar[str] = ContextVar("qa_cluster_mcp_caller", default="")
DocumentSource = AsyncClient | AsyncClusterClient


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The options for the access to the documents.

    Attributes:
        settings: the settings of this process.
        direct: whether to use the cluster of the settings directly, without the REST service and its API keys.
        over_http: whether MCP requests arrive over HTTP. The backend then forwards each caller's Authorization header.
        keys_required: whether to refuse all calls while the service accepts requests without a key.
    """

    settings: Settings
    direct: bool = False
    over_http: bool = False
    keys_required: bool = False


def service_url(settings: Settings) -> str:
    """Return the address of the REST service: the setting `service_url`, or the address of this machine's service.

    Raises ConfigError if `service_url` is not a valid address.
    """
    if not settings.service_url:
        scheme = "https" if settings.http_tls_cert or settings.http_tls_key else "http"
        host = "127.0.0.1" if settings.http_host in ("0.0.0.0", "::", "") else settings.http_host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.http_port}"
    try:
        parts = urlsplit(settings.service_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and not parts.username
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(
            "setting 'service_url' must be the address of the REST service without user name, such as"
            " http://127.0.0.1:8080"
        )
    return settings.service_url


class CallersKey(httpx.AsyncBaseTransport):
    """Sends each request with the Authorization header of its caller. All callers share the connections."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request with the Authorization header of the current MCP request, if that request has one."""
        if caller := _CALLER.get():
            request.headers["authorization"] = caller
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


def authorization_of(values: list[str]) -> str:
    """Return the Authorization header of a request, or an empty text if the request has none.

    `values` are the values of all Authorization headers of the request.
    Raises:
        InvalidInput: there are several headers, or the header is too long or is not printable ASCII. The error does not
            repeat the header.
    """
    if len(values) > 1:
        raise InvalidInput("the request has several Authorization headers: send one, `Bearer` and an API key")
    value = values[0] if values else ""
    if len(value) > MAX_AUTHORIZATION_CHARS or not value.isascii() or not (value.isprintable() or not value):
        raise InvalidInput(
            "the Authorization header is not `Bearer` and an API key, as `qa-cluster keys create` prints it"
        )
    return value


class Backend:
    """Runs the calls of the tools: at most `mcp_max_calls` concurrent calls, each within `mcp_timeout_ms`."""

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        settings = options.settings
        self.over_http = options.over_http
        self._client = _client(options)
        self._opening = asyncio.Lock()
        self._running = asyncio.Semaphore(settings.mcp_max_calls)
        self._waiting = 0
        self._max_waiting = settings.mcp_max_calls * WAITING_PER_CALL
        self._seconds = settings.mcp_timeout_ms / 1000
        self._keys_checked = float("-inf")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def call(
        self, authorization: list[str], work: Callable[[DocumentSource, float], Awaitable[_Result]]
    ) -> _Result:
        """Wait until fewer than `mcp_max_calls` calls are running. Then run `work`, and return its result.

        Args:
            authorization: the Authorization headers of the caller's HTTP request.
            work: called with the client and the remaining seconds.

        Raises:
            InvalidInput: `authorization` has several headers, or is not a valid header.
            ConfigError: keys are required, but the service accepts requests without a key.
            QueueFull: too many calls are waiting.
            DeadlineExceeded: the call has exceeded its timeout.
        """
        until = time.monotonic() + self._seconds
        token = _CALLER.set(authorization_of(authorization) if self._options.over_http else "")
        try:
            async with asyncio.timeout(self._seconds + MARGIN_SECONDS), self._turn():
                await self.check_keys()
                if isinstance(self._client, AsyncClusterClient):
                    async with self._opening:
                        await self._client.open()
                return await work(self._client, max(0.05, until - time.monotonic()))
        except TimeoutError as error:
            raise DeadlineExceeded(f"no result within {self._seconds:g} s (setting mcp_timeout_ms)") from error
        finally:
            _CALLER.reset(token)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._running.locked():
            if self._waiting >= self._max_waiting:
                raise QueueFull(
                    f"{self._waiting} calls are already waiting, the limit is {self._max_waiting} (4 times the setting"
                    " mcp_max_calls)"
                )
            self._waiting += 1
            try:
                await self._running.acquire()
            finally:
                self._waiting -= 1
        else:
            await self._running.acquire()
        try:
            yield
        finally:
            self._running.release()

    async def check_keys(self) -> None:
        """Raise ConfigError if keys are required, but the service accepts requests without a key.

        For `CHECKED_SECONDS` after a successful check, the service is not asked again.
        """
        if not self._options.keys_required or time.monotonic() - self._keys_checked < CHECKED_SECONDS:
            return
        token = _CALLER.set("")
        try:
            await self._client.collections()
        except AccessDenied:
            self._keys_checked = time.monotonic()
            return
        finally:
            _CALLER.reset(token)
        settings = self._options.settings
        raise ConfigError(
            f"the REST service accepts requests without an API key, so every client that reaches {settings.mcp_host}"
            " could read all documents: create a key with `qa-cluster keys create`, set mcp_host to 127.0.0.1, or"
            " start `qa-cluster mcp` with --without-keys"
        )


def _client(options: BackendOptions) -> DocumentSource:
    settings = options.settings
    if options.direct:
        return AsyncClusterClient(settings)
    url = service_url(settings)
    seconds = settings.mcp_timeout_ms / 1000
    if not options.over_http:
        return AsyncClient(url, api_key=settings.service_api_key, tls_ca=settings.service_tls_ca, timeout=seconds)
    transport = CallersKey(httpx.AsyncHTTPTransport(verify=trusted(settings.service_tls_ca)))
    return AsyncClient(url, timeout=seconds, transport=transport)
