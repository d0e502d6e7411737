"""The service as one ASGI application: routing, admission, request ids, error documents and request metrics.

For `GET /qa`, the near cache is tried before anything else is done but a look at the request's key. The status routes
are Starlette's, all others are plain ASGI; an exception in either becomes a problem document in one place.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from time import perf_counter
from typing import Protocol

from starlette.routing import Router

from qa_cluster.errors import QueueFull
from qa_cluster.routing.on_behalf import work_for

from .admission.auditing import note
from .admission.guard import Guard
from .admission.hosts import Hosts
from .admission.resources import (
    COLLECTION,
    COLLECTIONS,
    COUNT,
    DOCUMENT,
    DOCUMENTS,
    MODEL,
    QUESTIONS,
    SEARCHES,
    UNBOUNDED_PATHS,
    Resource,
    resource_of,
)
from .http.error_map import problem
from .http.messages import ClientGone, Receive, Scope, Send, header, send_response
from .http.metering import Meter
from .http.responding import Responder, as_problem
from .routes.collections import CollectionRoute
from .routes.documents import DocumentListRoute, DocumentRoute
from .routes.models import ModelRoute
from .routes.page import page_routes
from .routes.qa import QuestionRoute
from .routes.search import SearchRoute
from .routes.status import StatusPages
from .service.lifespan import ServiceOptions, ServiceState

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,64}\Z")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class Beside(Protocol):
    """What begins before the service and ends after it: a listener of its own."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""


class Application:
    """The application. `uvicorn` runs it; see `python -m qa_cluster.api`.

    Attributes:
        status: the pages about the service itself, which the listener of the administration has, too.
        beside: what lives as long as the service.
    """

    def __init__(self, options: ServiceOptions) -> None:
        self.state = ServiceState(options)
        self._questions = QuestionRoute(self.state)
        listing, collections = DocumentListRoute(self.state), CollectionRoute(self.state)
        self._routes: dict[Resource, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            QUESTIONS: self._questions,
            SEARCHES: SearchRoute(self.state),
            DOCUMENTS: listing,
            COUNT: listing,
            DOCUMENT: DocumentRoute(self.state),
            COLLECTIONS: collections,
            COLLECTION: collections,
            MODEL: ModelRoute(self.state),
        }
        self.status = StatusPages(self.state)
        self._others = Router(
            routes=[*self.status.routes(), *page_routes(options.page_questions)], redirect_slashes=False
        )
        self._hosts = Hosts(options.hosts)
        self._guard = Guard(self.state, keys_required=options.keys_required)
        self.beside: Beside | None = None
        self._id_prefix = os.urandom(4).hex()
        self._ids = count(1)
        self._under_way: Counter[str] = Counter()  # requests, by the id of their API key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan of the process."""
        kind = scope["type"]
        if kind == "http":
            await self._request(scope, receive, send)
        elif kind == "lifespan":
            await self._lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    if self.beside is not None:
                        await self.beside.start()
                    await self.state.start()
                except Exception as error:  # the process ends with this message
                    text = f"the service cannot start: {type(error).__name__}: {error}"
                    await send({"type": "lifespan.startup.failed", "message": text})
                    raise
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.state.stop()
                if self.beside is not None:
                    await self.beside.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = perf_counter()
        request_id = self._request_id(scope)
        metrics = self.state.metrics
        path, method = scope["path"], scope["method"]
        if path == "/qa" and method == "GET" and self._hosts.knows(scope):
            key = self._guard.at_hand(scope)
            # nothing may be awaited in between: `near` sees whether the keys are still those that they were
            status = None if key is None else await self._questions.near(scope, request_id, send, key)
            if status is not None:
                metrics.requests.inc("/qa", "GET", str(status))
                metrics.seconds.observe(perf_counter() - begun, "/qa")
                return
        resource = resource_of(scope)
        metrics.active += 1
        responder = Responder(send, request_id)
        try:
            await self._guarded(scope, receive, responder, resource)
        finally:
            metrics.active -= 1
            note(self.state.audit, scope, resource, responder.status, request_id)
            metrics.requests.inc(resource.name, method if method in _METHODS else "other", str(responder.status))
            metrics.seconds.observe(perf_counter() - begun, resource.name)

    async def _guarded(self, scope: Scope, receive: Receive, responder: Responder, resource: Resource) -> None:
        """Serve a request; an exception becomes a problem document."""
        request_id = responder.request_id
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        scope["app"] = self  # makes Starlette's router raise instead of sending a plain-text error
        try:
            self._hosts.check(scope)
            self._check_crowd(scope, 2 * self.state.options.max_requests)
            key = scope["state"]["key"] = await self._guard.admit(scope, resource)
            responder.asker = self._let_in(scope, key.id)
            if key.limits.counted:
                responder.meter = Meter(key)
                await responder.meter.begin(self.state.engine.key_use)
            await self._routes.get(resource, self._others)(scope, receive, responder)
        except ClientGone:
            responder.status = 499
        except Exception as error:  # the one place where any error becomes a response
            if responder.status:
                raise
            status, headers, body = problem(as_problem(error, scope), request_id=request_id, instance=scope["path"])
            await send_response(responder, status, headers, body)
        finally:
            if responder.asker is not None:
                self._leave(responder.asker)
            if responder.meter is not None:
                await responder.meter.end()

    def _check_crowd(self, scope: Scope, limit: int) -> None:
        if self.state.metrics.active > limit and scope["path"] not in UNBOUNDED_PATHS:
            self.state.metrics.refused.inc()
            raise QueueFull(f"{self.state.options.max_requests} requests are under way, the limit (http_max_requests)")

    def _let_in(self, scope: Scope, asker: str) -> str:
        """Count a request of an API key, for which all further work is done; QueueFull when there are too many.

        Beyond the limit a key is let in as long as it has less than an equal share of it, or one with a thousand
        requests would keep all others out.
        """
        most = self.state.options.max_requests
        askers = len(self._under_way) + (asker not in self._under_way)
        if self._under_way[asker] >= max(1, most // askers):
            self._check_crowd(scope, most)
        self._under_way[asker] += 1
        work_for(asker)
        return asker

    def _leave(self, asker: str) -> None:
        self._under_way[asker] -= 1
        if not self._under_way[asker]:
            del self._under_way[asker]

    def _request_id(self, scope: Scope) -> str:
        given = header(scope, b"x-request-id")
        if given is not None and _REQUEST_ID.match(given):
            return given.decode()
        return f"{self._id_prefix}-{next(self._ids):x}"
