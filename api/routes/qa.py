"""`GET /qa` and `POST /qa`, as plain ASGI: a cached answer must cost little more than reading the request.

A query string that was answered before is recognised by its bytes, so it need not be parsed again before the near cache
is asked. When a client disconnects, its question is cancelled.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, time

import orjson

from qa_cluster.access.records import ApiKey
from qa_cluster.asking.asker import CacheMiss, Outcome
from qa_cluster.asking.questions import AskOptions
from qa_cluster.tracing import current
from qa_cluster.types import Timings

from ..description.schemas import ask_fields, ask_options, parse_body, parse_query
from ..http.aliases import Alias, Aliases
from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import (
    JSON,
    ClientGone,
    Receive,
    Scope,
    Send,
    header,
    permit,
    read_body,
    require_json,
    send_response,
)
from ..service.lifespan import ServiceState


class QuestionRoute:
    """Serves `GET /qa` and `POST /qa`."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._fields = ask_fields(state.options.limits, state.options.coverage)
        self._aliases = Aliases()

    async def near(self, scope: Scope, request_id: str, send: Send, key: ApiKey) -> int | None:
        """Answer a GET from the near cache and return the status, or do nothing and return None.

        `key` is valid and may ask; whether about this collection is found out here.
        """
        begun = perf_counter()
        alias = self._aliases.get(scope["query_string"])
        engine = self._state.engine_or_none
        if alias is None or engine is None:
            return None
        digest, head, coverage, collection = alias
        if not key.allows(collection):
            return None
        found = engine.asker.near_hit(digest, coverage)
        if found is None:
            return None
        body, etag, use, answerable = found
        self._state.metrics.questions.inc("near", "answer" if answerable else "no_answer")
        taken = (perf_counter() - begun) * 1000
        if (recorded := current()) is not None:
            recorded.put("cache", begun, perf_counter(), {"qa.cache.tier": "near", "qa.cache.hit": True})
        headers = [
            (b"etag", etag.encode()),
            (b"cache-control", b"private, no-cache"),
            (b"cache-status", b"qa-cluster; hit; ttl=%d; detail=near" % use.ttl_s),
            (b"server-timing", b"cache;dur=%.3f, total;dur=%.3f" % (taken, taken)),
            (b"x-request-id", request_id.encode()),
        ]
        if _matches(scope, etag):
            await send_response(send, 304, headers, b"")
            return 304
        whole = (
            b'{"id":"%b","object":"qa.result","created":%d,%b,%b,"cache":{"status":"hit","tier":"near","age_s":%d,"ttl_s":%d},'
            b'"timings_ms":{"cache":%.3f,"rank":0.0,"read":[],"total":%.3f}}'
        ) % (request_id.encode(), int(time()), head, body[1:-1], use.age_s, use.ttl_s, taken, taken)
        headers.append((b"content-type", JSON))
        await send_response(send, 200, headers, whole)
        return 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for which `near` returned None."""
        method = scope["method"]
        if method in ("GET", "HEAD"):
            values = parse_query(scope["query_string"], self._fields)
        elif method == "POST":
            if scope["query_string"]:
                raise HttpProblem("validation", "POST /qa takes its fields in the body, not in the query string")
            require_json(scope)
            body = await read_body(scope, receive, self._state.options)
            values = parse_body(body, self._fields)
        else:
            raise HttpProblem(
                "method-not-allowed", f"/qa has GET and POST, not {method}", headers=[(b"allow", b"GET, HEAD, POST")]
            )
        options = ask_options(values, self._state.options.coverage)
        permit(scope, options.collection)
        outcome = await self._ask_while_connected(receive, values["question"], options)
        if method == "GET":
            self._remember(scope["query_string"], outcome)
        await self._respond(scope, send, outcome)

    async def _ask_while_connected(self, receive: Receive, text: str, options: AskOptions) -> Outcome:
        engine = self._state.engine
        asking = asyncio.ensure_future(engine.ask(text, options))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                self._state.metrics.disconnects.inc()
                raise ClientGone
            return await asking
        except CacheMiss as error:
            raise HttpProblem("cache-miss", str(error)) from error
        finally:
            leaving.cancel()
            asking.cancel()

    async def _respond(self, scope: Scope, send: Send, outcome: Outcome) -> None:
        use, timings = outcome.cache, outcome.timings
        self._state.metrics.question(use, timings, outcome.answerable)
        self._state.metrics.partial.inc("qa", by=outcome.partial)
        if use.status == "hit":
            status = b"qa-cluster; hit; ttl=%d; detail=%b" % (use.ttl_s, use.tier.encode())
        else:
            stored = b"; stored" if use.ttl_s else b""
            status = b"qa-cluster; fwd=%b%b" % (b"miss" if use.status == "miss" else b"bypass", stored)
        headers: RawHeaders = [
            (b"etag", outcome.etag.encode()),
            (b"cache-control", b"private, no-cache"),
            (b"cache-status", status),
            (b"server-timing", _server_timing(timings)),
        ]
        if scope["method"] != "POST" and _matches(scope, outcome.etag):
            await send_response(send, 304, headers, b"")
            return
        headers.append((b"content-type", JSON))
        await send_response(send, 200, headers, outcome.encode(scope["state"]["request_id"]))

    def _remember(self, query: bytes, outcome: Outcome) -> None:
        """Make `near` recognise this query string, if its answer may come from the near cache."""
        question = outcome.question
        if question.options.cache not in ("use", "only"):
            return
        head = orjson.dumps({"question": question.text, "normalized_question": question.folded})[1:-1]
        options = question.options
        self._aliases.put(query, Alias(outcome.digest, head, options.coverage, options.collection))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _matches(scope: Scope, etag: str) -> bool:
    wanted = header(scope, b"if-none-match")
    if wanted is None:
        return False
    opaque = etag.removeprefix("W/")
    return any(tag.strip().removeprefix("W/") in (opaque, "*") for tag in wanted.decode("latin-1").split(","))


def _server_timing(timings: Timings) -> bytes:
    parts = [f"cache;dur={timings.cache:.3f}", f"rank;dur={timings.rank:.3f}"]
    parts += [f"read{number};dur={wave:.3f}" for number, wave in enumerate(timings.read, 1)]
    return ", ".join([*parts, f"total;dur={timings.total:.3f}"]).encode()
