"""Answers one request of a batch like the route of its endpoint, with the API key of the batch."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import Any

import orjson

from qa_cluster.access.records import ASK, SCOPES, SEARCH, ApiKey
from qa_cluster.asking.answers.caching import CacheMiss
from qa_cluster.asking.engine import Engine
from qa_cluster.batches.lines import LineRequest
from qa_cluster.batches.records import ANONYMOUS_OWNER, QA
from qa_cluster.errors import CapacityError, DeadlineExceeded, InferenceFailed, QAError, WorkerLost
from qa_cluster.options.questions import ALL_COLLECTIONS, FULL

from ..description.schemas import ask_fields, ask_options, parse_body, search_fields, search_options
from ..http.error_map import HttpProblem
from ..http.messages import permit_key
from ..http.openai_errors import openai_error
from ..http.responding import as_problem

# Errors that the request itself may cause. After `_TRIES` such errors, the request is not retried any more.
_OWN_ERRORS = (WorkerLost, InferenceFailed, DeadlineExceeded)
_TRIES = 3
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.25, 5.0
_ANONYMOUS = ApiKey("", "", "", SCOPES)


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of one request, as a line of the output file or of the error file.

    Attributes:
        good: whether the line belongs in the output file. If false, it belongs in the error file.
        text: the line with its line feed.
    """

    good: bool
    text: bytes


@dataclass(slots=True)
class RequestRate:
    """Limits how many requests start in a second, by the limit `requests_per_second` of an API key."""

    _next: float = field(default=0.0)

    async def turn(self, rate: int | None) -> None:
        """Wait until the next request may start. `rate` is in requests per second; None means that there is no wait."""
        if rate is None:
            return
        now = monotonic()
        start = max(now, self._next)
        self._next = start + 1 / rate
        if start > now:
            await asyncio.sleep(start - now)


class BatchAnswers:
    """Answers the requests of one owner's batches to one endpoint.

    `owner` is the id of an API key, or `ANONYMOUS_OWNER`. A request is retried for at most `retry_seconds`.

    The default of `coverage` is ``full``. So a batch waits for a shard that is down, because no person checks each
    answer.
    """

    def __init__(self, engine: Engine, owner: str, endpoint: str, retry_seconds: float) -> None:
        self._engine = engine
        self._owner = owner
        self._endpoint = endpoint
        self._retry_seconds = retry_seconds
        self._rate = RequestRate()
        limits = engine.asker.limits
        self._ask_fields = ask_fields(limits, FULL)
        self._search_fields = search_fields(limits, coverage=FULL)

    async def key(self) -> ApiKey:
        """Return the current API key of the owner; for `ANONYMOUS_OWNER`, a key with all rights.

        Raise HttpProblem (401) if the key is missing or not valid, or if the owner is `ANONYMOUS_OWNER` and the cluster
        has keys.
        """
        known = await self._engine.api_keys.current()
        if self._owner == ANONYMOUS_OWNER:
            if known.closed:
                raise HttpProblem("unauthorized", "the batch was created without an API key, and the cluster has keys")
            return _ANONYMOUS
        key = known.keys.get(self._owner)
        state = "missing" if key is None else key.state(time())
        if key is None or state != "valid":
            raise HttpProblem("unauthorized", f"the key {self._owner} of the batch is {state}")
        return key

    async def concurrency(self, most: int) -> int:
        """Return how many requests may run at the same time: `most`, or the key's limit `concurrent` if it is lower.

        Return `most` also if the key cannot be read or is not valid, because each request then checks the key again.
        """
        try:
            return min(most, (await self.key()).limits.concurrent or most)
        except (HttpProblem, QAError):
            return most

    async def answer(self, request: LineRequest) -> LineResult:
        """Return the result of a request; an error is a result, too.

        After an error of the cluster, retry the request for at most `retry_seconds`. After `_TRIES` errors that the
        request itself may cause, do not retry it.
        """
        request_id = f"batch_req_{secrets.token_hex(12)}"
        until, pause, own = monotonic() + self._retry_seconds, _FIRST_PAUSE_SECONDS, 0
        while True:
            try:
                body = await self._once(request, request_id)
            except Exception as error:  # every error of a request becomes a line of the error file
                own += isinstance(error, _OWN_ERRORS)
                if _may_pass(error) and own < _TRIES and monotonic() + pause < until:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, _LAST_PAUSE_SECONDS)
                    continue
                return _failed(request, request_id, error, self._endpoint)
            return LineResult(True, result_line(request_id, request.custom_id, 200, body))

    async def _once(self, request: LineRequest, request_id: str) -> bytes:
        raw = orjson.dumps(request.body)
        key = await self.key()
        await self._rate.turn(key.limits.requests_per_second)
        if self._endpoint == QA:
            values = parse_body(raw, self._ask_fields)
            asked = ask_options(values, FULL)
            _permit(key, ASK, asked.collection)
            return (await self._engine.ask(values["question"], asked)).encode(request_id)
        values = parse_body(raw, self._search_fields)
        searched = search_options(values, FULL)
        if searched.collections == (ALL_COLLECTIONS,):
            names = await self._engine.searcher.collections_of(searched, admits=key.allows)
            searched = replace(searched, collection=names)
        for name in searched.collections:
            _permit(key, SEARCH, name)
        return await (await self._engine.search(values["query"], searched)).encode(request_id)


def _permit(key: ApiKey, scope: str, collection: str) -> None:
    if scope not in key.scopes:
        raise HttpProblem("forbidden", f"key {key.id} has scope {', '.join(key.scopes)}, but the request needs {scope}")
    permit_key(key, collection)


def _may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed, because the cluster is not ready or at its capacity."""
    return isinstance(error, CapacityError | TimeoutError) or (
        isinstance(error, QAError) and (error.retryable or error.http_status in (502, 503, 504))
    )


def _failed(request: LineRequest, request_id: str, error: Exception, endpoint: str) -> LineResult:
    if isinstance(error, CacheMiss):
        error = HttpProblem("cache-miss", str(error))
    shown = as_problem(error, {"type": "http", "method": "POST", "path": endpoint, "headers": []})
    status, _, body = openai_error(shown, request_id=request_id, instance=endpoint)
    return LineResult(False, result_line(request_id, request.custom_id, status, orjson.dumps(body)))


def result_line(request_id: str, custom_id: str, status: int, body: bytes) -> bytes:
    """Return a line of a result file: the response to the request `custom_id`.

    `status` is the HTTP status of the response, and `body` is its JSON.
    """
    head = {"id": request_id, "custom_id": custom_id}
    inner = orjson.dumps({"status_code": status, "request_id": request_id})
    return b'%b,"response":%b,"body":%b},"error":null}\n' % (orjson.dumps(head)[:-1], inner[:-1], body)


def expired_line(custom_id: str) -> bytes:
    """Return the line of the error file for a request that did not run before the batch expired."""
    line: dict[str, Any] = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": None,
        "error": {
            "code": "batch_expired",
            "message": "This request could not be executed before the completion window expired.",
        },
    }
    return orjson.dumps(line) + b"\n"
