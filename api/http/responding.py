"""Processes responses of the service and of the admin listener: records the status, adds a request id, and converts
errors to problems.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from qa_cluster.errors import DeadlineExceeded, InvalidInput

from .error_map import HttpProblem, RawHeaders
from .messages import Scope, Send, method_not_allowed
from .metering import Meter

# The fields of the bodies of PUT and PATCH, which write documents.
_DOCUMENT_FIELDS = frozenset({"text", "title", "metadata", "remove"})
# Fields whose name in the route differs from the name in the code that checks them. The keys are the first part of the
# path, the method and the name in the code; the values are the names in the route.
_OTHER_NAMES = {
    ("search", "GET", "query"): "q",
    ("search", "HEAD", "query"): "q",
    **{("collections", method, "collection"): "name" for method in ("GET", "HEAD", "POST", "DELETE")},
}


class Responder:
    """Sends messages, records the status, and adds the request id, the CORS headers and the limits of the key.

    Attributes:
        status: the status of the response; 0 until the response starts.
        key_id: the id of the API key; None until the service has admitted the request.
        meter: counts the request; None if the key has no limits that count requests.
        cors: the CORS headers of the response.
    """

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.key_id: str | None = None
        self.meter: Meter | None = None
        self.cors: RawHeaders = []

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        """Send a message. At the first message of a response, end the count of `meter` and add the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            limits = []
            if self.meter is not None:
                await self.meter.end()
                limits = self.meter.headers
            message["headers"] = [*message["headers"], *self.cors, *limits, (b"x-request-id", self.request_id.encode())]
        await self._send(message)


def as_problem(error: Exception, scope: Scope) -> Exception:
    """Replace an exception of Starlette or asyncio, or an InvalidInput, by the exception for the problem document.

    Return any other exception unchanged.
    """
    if isinstance(error, HTTPException):
        if error.status_code == 405:
            return method_not_allowed(scope, (error.headers or {}).get("Allow", "GET"))
        return HttpProblem("route-not-found", f"no such route: {scope['path'][:200]}")
    if isinstance(error, TimeoutError):
        return DeadlineExceeded("the request was not answered in time (request_timeout_ms)")
    if isinstance(error, InvalidInput):  # the check of the single fields did not find this error
        return HttpProblem("validation", str(error), errors=_faults(error, scope))
    return error


def _faults(error: InvalidInput, scope: Scope) -> list[dict[str, str]]:
    """Return the fault with its position, in the form that the field check uses. Return an empty list if the position
    is unknown.
    """
    name, _, inside = error.place.partition("/")
    name = _OTHER_NAMES.get((scope["path"].partition("/")[2].partition("/")[0], scope["method"], name), name)
    if not name:
        return []
    in_body = scope["method"] == "POST" or (scope["method"] in ("PUT", "PATCH") and name in _DOCUMENT_FIELDS)
    place = {"pointer": "/".join(("#", name, inside)) if inside else f"#/{name}"} if in_body else {"parameter": name}
    return [{**place, "detail": str(error)}]
