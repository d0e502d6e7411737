"""Errors in the form of OpenAI's interface, for the routes under `/v1` and for the lines of batches."""

from __future__ import annotations

from typing import Any

import orjson

from qa_cluster.batches.store import BatchConflict

from .error_map import HttpProblem, RawHeaders, problem

PREFIX = "/v1/"
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


def openai_error(error: BaseException, *, request_id: str, instance: str) -> tuple[int, RawHeaders, dict[str, Any]]:
    """Return the status, headers and body of the response that reports an error.

    OpenAI's interface uses status 400 where other routes use 422. The name of the wrong field is in `param`.
    """
    if isinstance(error, BatchConflict):
        error = HttpProblem("conflict", str(error))
    status, headers, raw = problem(error, request_id=request_id, instance=instance)
    document = orjson.loads(raw)
    fault: dict[str, str] = next(iter(document.get("errors", [])), {})
    param = fault.get("parameter") or fault.get("pointer", "").removeprefix("#/") or None
    status = 400 if status == 422 else status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    body = {
        "message": document["detail"],
        "type": kind,
        "param": param,
        "code": document["code"].lower(),
        "request_id": request_id,
    }
    headers = [(name, value) for name, value in headers if name != b"content-type"]
    return status, [*headers, (b"content-type", b"application/json")], {"error": body}


def openai_response(error: BaseException, *, request_id: str, instance: str) -> tuple[int, RawHeaders, bytes]:
    """Return the result of `openai_error` with the body as bytes, like `error_map.problem`."""
    status, headers, body = openai_error(error, request_id=request_id, instance=instance)
    return status, headers, orjson.dumps(body)
