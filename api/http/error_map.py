"""Converts errors to RFC 9457 problem documents: decides the status, type and headers of every error.

A `QAError` has its own status. `HttpProblem` is for errors that exist only in HTTP (routes, methods, media types,
conditions). Any other error is a 500: its cause is in the log under the request id, not in the response.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from time import monotonic

import orjson

from qa_cluster.errors import (
    AccessDenied,
    ClusterError,
    CollectionBusy,
    DeadlineExceeded,
    InferenceFailed,
    InputTooLong,
    InvalidInput,
    LimitReached,
    MissingRights,
    ModelError,
    NotFound,
    NoWorker,
    ProtocolError,
    QAError,
    QueueFull,
    VersionConflict,
    WorkerLost,
)

CONTENT_TYPE = b"application/problem+json"
TYPE_PREFIX = "urn:qa-cluster:problem:"
# `Retry-After`, in seconds, of errors with status 503 that name no pause. An operator must usually correct their cause
# first, such as a shard without a model.
LONG_PAUSE_SECONDS = 5.0
# The length limit of `detail`, because error texts may contain values from requests.
MAX_DETAIL_CHARS = 2000
RawHeaders = list[tuple[bytes, bytes]]
# The interval between log entries about the same missing rights, because many requests may fail for the same reason.
RIGHTS_LOG_SECONDS = 60.0

_log = logging.getLogger(__name__)

# For each error, its name in `type` and its title.
_NAMES: Mapping[type[QAError], tuple[str, str]] = {
    InvalidInput: ("validation", "The request is not valid"),
    InputTooLong: ("too-long", "The request exceeds a limit"),
    NotFound: ("not-found", "Not found"),
    AccessDenied: ("forbidden", "The key does not allow this request"),
    QueueFull: ("overloaded", "The service is at its capacity"),
    DeadlineExceeded: ("deadline-exceeded", "The request was not answered in time"),
    LimitReached: ("too-many-requests", "A limit of the key is reached"),
    NoWorker: ("shard-unavailable", "A shard is not ready"),
    WorkerLost: ("shard-unavailable", "A shard lost its worker"),
    InferenceFailed: ("inference", "The model failed"),
    ModelError: ("model", "The model cannot be used"),
    ProtocolError: ("protocol", "A shard sent an invalid response"),
    ClusterError: ("shard-unavailable", "The cluster cannot be reached or is not ready"),
}
# Problems that exist only in HTTP: their status and title.
HTTP_PROBLEMS: Mapping[str, tuple[int, str]] = {
    "malformed-json": (400, "The body is not JSON"),
    "malformed-query": (400, "The query string is malformed"),
    "malformed-multipart": (400, "The body is not valid multipart/form-data"),
    "malformed-request": (400, "The request is not HTTP"),
    "unauthorized": (401, "A valid key is needed"),
    "forbidden": (403, "The key does not allow this request"),
    "cross-site": (403, "The request comes from a web page of another origin"),
    "route-not-found": (404, "The route does not exist"),
    "cache-miss": (404, "The answer is not cached"),
    "result-not-found": (404, "The result does not exist"),
    "method-not-allowed": (405, "The route does not have this method"),
    "body-timeout": (408, "The body did not arrive in time"),
    "head-timeout": (408, "The head of the request did not arrive in time"),
    "conflict": (409, "The request does not fit the state of the resource"),
    "collection-busy": (409, "The collection is being deleted"),
    "version-conflict": (412, "The document has a different version"),
    "body-too-large": (413, "The body exceeds the limit"),
    "unsupported-media-type": (415, "The body has the wrong media type"),
    "misdirected": (421, "The service does not accept requests for this host"),
    "validation": (422, "The request is not valid"),
    "too-many-requests": (429, "A limit of the key is reached"),
    "head-too-large": (431, "The head of the request exceeds the limit"),
    "internal": (500, "The service failed"),
}


class HttpProblem(Exception):
    """An error that exists only in HTTP.

    Attributes:
        name: a key of `HTTP_PROBLEMS`.
        errors: each fault and its position, for the field `errors` of the problem document.
        headers: additional headers of the response.
    """

    def __init__(
        self, name: str, detail: str, *, errors: Sequence[Mapping[str, str]] = (), headers: RawHeaders | None = None
    ) -> None:
        super().__init__(detail)
        self.name = name
        self.errors = list(errors)
        self.headers: RawHeaders = headers or []

    @property
    def code(self) -> str:
        """The `code` of the problem document. For a limit of a key, it is the code of `LimitReached`, the exception
        that clients raise.
        """
        if self.name == "too-many-requests":
            return LimitReached.resp_code
        return self.name.upper().replace("-", "_")


class _RightsLog:
    """Logs which rights the service's user lacks, at most once in `RIGHTS_LOG_SECONDS` for each cause."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def log(self, cause: str, request_id: str) -> None:
        """Log why the request with the id `request_id` failed, unless the same cause was logged a short time ago."""
        now = monotonic()
        self._logged = {text: at for text, at in self._logged.items() if now - at < RIGHTS_LOG_SECONDS}
        if cause not in self._logged:
            self._logged[cause] = now
            _log.error("request %s failed: %s", request_id, cause)


_complaints = _RightsLog()


def problem(error: BaseException, *, request_id: str, instance: str) -> tuple[int, RawHeaders, bytes]:
    """Return the status, headers and body of the response that reports `error`.

    `instance` is the path of the request; empty if the path is not known. An unexpected error is logged under
    `request_id`.
    """
    headers: RawHeaders = []
    errors: list[Mapping[str, str]] = []
    detail = str(error)
    if isinstance(error, HttpProblem):
        status, title = HTTP_PROBLEMS[error.name]
        name, code, errors = error.name, error.code, error.errors
        headers += error.headers
    elif isinstance(error, VersionConflict | CollectionBusy):
        name = "version-conflict" if isinstance(error, VersionConflict) else "collection-busy"
        code = error.resp_code
        status, title = HTTP_PROBLEMS[name]
    elif isinstance(error, QAError):
        name, title = next(
            (_NAMES[kind] for kind in type(error).__mro__ if kind in _NAMES), ("internal", "The service failed")
        )
        status, code = error.http_status, error.resp_code
        if isinstance(error, MissingRights):
            _complaints.log(detail, request_id)
            detail = "the service's user of the cluster lacks rights: the cause is in the service's log"
        pause = error.retry_after_seconds or (LONG_PAUSE_SECONDS if status == 503 else None)
        if pause is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(pause))))
    else:
        name, code = "internal", "INTERNAL"
        status, title = HTTP_PROBLEMS[name]
        detail = f"the log of the service has the cause under request id {request_id}"
        _log.error("request %s failed", request_id, exc_info=error)
    document: dict[str, object] = {
        "type": TYPE_PREFIX + name,
        "title": title,
        "status": status,
        "detail": detail if len(detail) <= MAX_DETAIL_CHARS else f"{detail[:MAX_DETAIL_CHARS]}..",
        "instance": instance,
        "code": code,
        "request_id": request_id,
    }
    if errors:
        document["errors"] = errors
    headers.append((b"content-type", CONTENT_TYPE))
    headers.append((b"cache-control", b"no-store"))
    return status, headers, orjson.dumps(document)
