"""Submitted questions: ``Prefer: respond-async`` (RFC 7240), and `GET` and `DELETE /qa/results/{id}`."""

from __future__ import annotations

from time import time
from typing import Any

import orjson

from qa_cluster.access.records import ApiKey
from qa_cluster.asking.answers.submissions import DONE, MISSING
from qa_cluster.asking.questions import check_question

from ..description.schemas import ask_options
from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import READ, Receive, Scope, Send, require_method, send_json, send_response
from ..service.lifespan import ServiceState
from .background import BackgroundAnswers

PREFIX = "/qa/results/"
SUBMISSION = "qa.submission"
POLL_SECONDS = 1
_RESPOND_ASYNC = b"respond-async"


def prefers_async(scope: Scope) -> bool:
    """Return whether the client asks for an asynchronous answer.

    >>> prefers_async({"headers": [(b"prefer", b"wait=5, respond-async")]})
    True
    """
    return any(
        word.partition(b";")[0].strip().lower() == _RESPOND_ASYNC
        for name, value in scope["headers"]
        if name == b"prefer"
        for word in value.split(b",")
    )


class SubmissionRoute:
    """Accepts submitted questions, and serves their results."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._background = BackgroundAnswers(state)

    async def submit(self, scope: Scope, send: Send, values: dict[str, Any]) -> None:
        """Store a question, start to answer it, and respond with 202.

        `values` are the checked fields of the request: the question and its options. The caller has checked that the
        key allows the collection.
        """
        options = self._state.options
        check_question(values["question"], ask_options(values, options.coverage), options.limits)
        request_id = scope["state"]["request_id"]
        name, expires = await self._background.submit(_key(scope), request_id, orjson.dumps(values))
        headers = [(b"location", f"{PREFIX}{name}".encode()), (b"preference-applied", _RESPOND_ASYNC)]
        await _pending(send, name, expires, "", headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or delete a result."""
        name = scope["path"].removeprefix(PREFIX)
        require_method(scope, *READ, "DELETE")
        if scope["method"] == "DELETE":
            if not await self._background.remove(_key(scope), name):
                raise _missing(name)
            await send_response(send, 204, [], b"")
            return
        found = await self._background.poll(_key(scope), name)
        if found.state == MISSING:
            raise _missing(name)
        if found.state == DONE and found.response is not None:
            status, kept, body = found.response
            headers = [(each.encode(), value.encode()) for each, value in orjson.loads(kept).items()]
            await send_response(send, status, [*headers, (b"cache-control", b"no-store")], body)
            return
        await _pending(send, name, time() + found.seconds_left, found.detail, [])


async def _pending(send: Send, name: str, expires: float, detail: str, headers: RawHeaders) -> None:
    """Send 202 for a question that has no result yet.

    `expires` is the time when the question expires, in seconds since 1970. `detail` is the last error of the question;
    it is empty if there was no error.
    """
    pending = {"object": SUBMISSION, "id": name, "state": "pending", "expires": int(expires), "detail": detail}
    await send_json(send, pending, 202, [*headers, (b"retry-after", b"%d" % POLL_SECONDS)])


def _missing(name: str) -> HttpProblem:
    return HttpProblem(
        "result-not-found",
        f"no such result: {name[:100]!r}; it has expired, was deleted, or belongs to another API key",
    )


def _key(scope: Scope) -> ApiKey:
    key: ApiKey = scope["state"]["key"]
    return key
