"""The service as an ASGI application: routing, admission, request ids, problem documents and request metrics.

For `GET /qa`, a fast path checks only the host, the origin and the key, and looks up the near cache. Starlette serves
the status routes; all other routes are plain ASGI. One place converts the exceptions of all routes to problem
documents.
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

from .admission import resources
from .admission.auditing import note
from .admission.guard import Guard
from .admission.hosts import Hosts
from .admission.origins import Origins, preflight
from .admission.resources import Resource
from .http.error_map import problem
from .http.messages import METHODS, ClientGone, Receive, Scope, Send, header, send_response
from .http.metering import Meter
from .http.openai_errors import PREFIX as OPENAI_PREFIX
from .http.openai_errors import openai_response
from .http.responding import Responder, as_problem
from .routes.batches import BatchesRoute, BatchFilesRoute
from .routes.branding import load_logo
from .routes.collections import CollectionRoute
from .routes.documents import DocumentListRoute, DocumentRoute
from .routes.editors.guidance import GuidanceRoute
from .routes.inference import InferenceRoute
from .routes.models import ModelRoute
from .routes.page import page_routes
from .routes.qa import QuestionRoute
from .routes.search import SearchRoute
from .routes.status import StatusPages
from .routes.submissions import SubmissionRoute
from .routes.uploads import UploadRoute
from .service.lifespan import ServiceOptions, ServiceState

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,64}\Z")


class CompanionListener(Protocol):
    """A listener that starts before the service and stops after it."""

    async def start(self) -> None:
        """Start answering requests."""

    async def stop(self) -> None:
        """Stop answering requests."""


class Application:
    """The ASGI application that `uvicorn` runs (`python -m qa_cluster.api`).

    Attributes:
        status: the pages about the service itself, which the admin listener also serves.
        companion: the admin listener; None without it.
    """

    def __init__(self, options: ServiceOptions) -> None:
        self.state = ServiceState(options)
        self.status = StatusPages(self.state)
        submissions = SubmissionRoute(self.state)
        self._questions = QuestionRoute(self.state, submissions)
        inference = InferenceRoute(self.state, self.status.readiness)
        listing, collections = DocumentListRoute(self.state), CollectionRoute(self.state)
        files, batches = BatchFilesRoute(self.state), BatchesRoute(self.state)
        self._routes: dict[Resource, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            resources.QUESTIONS: self._questions,
            resources.RESULT: submissions,
            resources.SEARCHES: SearchRoute(self.state),
            resources.DOCUMENTS: listing,
            resources.COUNT: listing,
            resources.DOCUMENT: DocumentRoute(self.state),
            resources.UPLOAD: UploadRoute(self.state),
            resources.COLLECTIONS: collections,
            resources.COLLECTION: collections,
            resources.FIELDS: collections,
            resources.MODEL: ModelRoute(self.state),
            **dict.fromkeys(resources.FILE_ROUTES, files),
            **dict.fromkeys(resources.BATCH_ROUTES, batches),
            **dict.fromkeys(resources.INFERENCE_ROUTES, inference),
            **dict.fromkeys(resources.GUIDANCE_ROUTES, GuidanceRoute(self.state)),
        }
        self._others = Router(
            routes=[
                *self.status.routes(),
                *page_routes(options.page_questions, options.page_title, load_logo(options.page_logo)),
            ],
            redirect_slashes=False,
        )
        self._hosts = Hosts(options.hosts)
        self._origins = Origins(options.cors_origins)
        self._guard = Guard(self.state, keys_required=options.keys_required)
        self.companion: CompanionListener | None = None
        self._id_prefix = os.urandom(4).hex()
        self._ids = count(1)
        self._in_progress: Counter[str] = Counter()  # the number of requests in progress for each id of an API key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or handle the start and the stop of the process (ASGI's scope `lifespan`)."""
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
                    if self.companion is not None:
                        await self.companion.start()
                    await self.state.start()
                except Exception as error:  # the process ends with this message
                    text = f"the service cannot start: {type(error).__name__}: {error}"
                    await send({"type": "lifespan.startup.failed", "message": text})
                    raise
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.state.stop()
                if self.companion is not None:
                    await self.companion.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = perf_counter()
        request_id = self._request_id(scope)
        metrics = self.state.metrics
        path, method = scope["path"], scope["method"]
        if path == "/qa" and method == "GET" and self._hosts.knows(scope) and self._origins.is_plain(scope):
            key = self._guard.at_hand(scope)
            # There must be no `await` between `at_hand` and `near`, because `near` relies on the key that `at_hand` has
            # just checked.
            status = None if key is None else await self._questions.near(scope, request_id, send, key)
            if status is not None:
                metrics.requests.inc("/qa", "GET", str(status))
                metrics.seconds.observe(perf_counter() - begun, "/qa")
                return
        resource = resources.resource_of(scope)
        metrics.active += 1
        responder = Responder(send, request_id)
        try:
            await self._guarded(scope, receive, responder, resource)
        finally:
            metrics.active -= 1
            note(self.state.audit, scope, resource, responder.status, request_id)
            metrics.requests.inc(resource.name, method if method in METHODS else "other", str(responder.status))
            metrics.seconds.observe(perf_counter() - begun, resource.name)

    async def _guarded(
        self, scope: Scope, receive: Receive, responder: Responder, resource: resources.Resource
    ) -> None:
        """Serve a request about `resource`. An exception becomes a problem document, or the resource's form of errors.

        If the response has already started, the exception is raised.
        """
        request_id = responder.request_id
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        scope["app"] = self  # makes Starlette's router raise instead of sending a plain-text error
        try:
            self._hosts.check(scope)
            responder.cors = self._origins.check(scope, is_file=resource.is_file)
            if responder.cors and (allowed := preflight(scope)) is not None:
                await send_response(responder, 204, allowed, b"")
                return
            self._check_capacity(scope, 2 * self.state.options.max_requests)
            key = scope["state"]["key"] = await self._guard.admit(scope, resource)
            self._admit(scope, key.id)
            responder.key_id = key.id
            if key.limits.counted:
                responder.meter = Meter(key)
                await responder.meter.begin(self.state.engine.key_use)
            await self._routes.get(resource, self._others)(scope, receive, responder)
        except ClientGone:
            responder.status = 499
        except Exception as error:  # every error becomes a problem document, unless the response has started
            if responder.status:
                raise
            respond = openai_response if scope["path"].startswith(OPENAI_PREFIX) else problem
            status, headers, body = respond(as_problem(error, scope), request_id=request_id, instance=scope["path"])
            if resource.error_form is not None:
                status, headers, body = resource.error_form(status, headers, body)
            await send_response(responder, status, headers, body)
        finally:
            if responder.key_id is not None:
                self._release(responder.key_id)
            if responder.meter is not None:
                await responder.meter.end()

    def _check_capacity(self, scope: Scope, limit: int) -> None:
        if self.state.metrics.active > limit and scope["path"] not in resources.UNBOUNDED_PATHS:
            self.state.metrics.refused.inc()
            raise QueueFull(
                f"the service is at its limit of {self.state.options.max_requests} concurrent requests"
                " (http_max_requests): try again later"
            )

    def _admit(self, scope: Scope, key_id: str) -> None:
        """Count a request of an API key, and attribute its work to the key.

        The limit of concurrent requests is `http_max_requests`. Raises QueueFull if the service is above this limit and
        the key already uses an equal share of the limit. Up to twice the limit, the service still admits a key that
        uses less than an equal share. Without this rule, a key with a thousand requests would block all other keys.
        """
        limit = self.state.options.max_requests
        keys = len(self._in_progress) + (key_id not in self._in_progress)
        if self._in_progress[key_id] >= max(1, limit // keys):
            self._check_capacity(scope, limit)
        self._in_progress[key_id] += 1
        work_for(key_id)

    def _release(self, key_id: str) -> None:
        self._in_progress[key_id] -= 1
        if not self._in_progress[key_id]:
            del self._in_progress[key_id]

    def _request_id(self, scope: Scope) -> str:
        given = header(scope, b"x-request-id")
        if given is not None and _REQUEST_ID.match(given):
            return given.decode()
        return f"{self._id_prefix}-{next(self._ids):x}"
