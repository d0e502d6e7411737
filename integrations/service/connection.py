"""The clients of an adapter for one service, for use in any thread and in any event loop."""

from __future__ import annotations

import asyncio
import os
from threading import Lock
from weakref import WeakKeyDictionary, finalize

from qa_cluster.client import AsyncClient, Client, RetryPolicy

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_SECONDS = 30.0
# The default environment variable of the API key.
KEY_VARIABLE = "QA_CLUSTER_API_KEY"


class ServiceConnection:
    """Opens one `Client` for all threads, and one `AsyncClient` for each event loop, at the first use.

    If `api_key` is None, the key is the environment variable `KEY_VARIABLE`, if it is set. If `api_key` is empty,
    requests are sent without a key.

    `timeout` is the time limit for a call with all its retries, in seconds. `attempts` is the maximum number of
    attempts for a call; None: as many as the timeout allows.

    >>> connection = ServiceConnection("http://127.0.0.1:8080", timeout=10)
    >>> connection.client.search("first program").hits[0].text
    'Ada Lovelace wrote the first program.'
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = "",
        tls_ca: str = "",
        timeout: float = TIMEOUT_SECONDS,
        attempts: int | None = None,
    ) -> None:
        self._url = base_url
        self._api_key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
        self._tls_ca = tls_ca
        self._timeout = timeout
        self._retry = RetryPolicy(attempts=attempts)
        self._lock = Lock()
        self._client: Client | None = None
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()

    @property
    def client(self) -> Client:
        """The synchronous client that all threads share. It is opened at the first use."""
        with self._lock:
            if self._client is None:
                self._client = Client(
                    self._url, api_key=self._api_key, tls_ca=self._tls_ca, timeout=self._timeout, retry=self._retry
                )
                # Frameworks do not close their retrievers, so `finalize` closes the client when this
                # `ServiceConnection` is deleted or the process exits. Connections of event loops end with their event
                # loops.
                finalize(self, self._client.close)
            return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The asynchronous client of the running event loop. It is opened at the first use in this event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._of_loops.get(loop)
            if found is None:
                found = self._of_loops[loop] = AsyncClient(
                    self._url, api_key=self._api_key, tls_ca=self._tls_ca, timeout=self._timeout, retry=self._retry
                )
            return found

    def close(self) -> None:
        """Close the connections of `client`. The next use of `client` opens new connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of `async_client` for the running event loop. The next use opens new connections."""
        with self._lock:
            client = self._of_loops.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
