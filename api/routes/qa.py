"""`GET /qa` and `POST /qa` as plain ASGI. An answer from the near cache costs little more than reading the request.

The service recognises the bytes of a query string that it has answered before, and then looks up the near cache without
parsing the query string. When a client disconnects, its question is cancelled.
"""

from __future__ import annotations

from time import perf_counter, time

from qa_cluster.access.records import ApiKey
from qa_cluster.asking.answers.answering import milliseconds
from qa_cluster.asking.answers.caching import CacheMiss
from qa_cluster.asking.asker import Outcome
from qa_cluster.tracing import current
from qa_cluster.types import CacheUse, Timings, answer_json

from ..description.schemas import ask_fields, ask_options, read_values
from ..http.aliases import Alias, Aliases
from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import JSON, Receive, Scope, Send, has_version, header, permit, send_response, while_connected
from ..service.lifespan import ServiceState
from .submissions import SubmissionRoute, prefers_async


class QuestionRoute:
    """Serves `GET /qa` and `POST /qa`."""

    def __init__(self, state: ServiceState, submissions: SubmissionRoute) -> None:
        self._state = state
        self._submissions = submissions
        self._fields = ask_fields(state.options.limits, state.options.coverage)
        self._aliases = Aliases()

    async def near(self, scope: Scope, request_id: str, send: Send, key: ApiKey) -> int | None:
        """Answer a GET from the near cache and return the status; return None if the near cache has no valid answer.

        Also return None if the query string is not known, if the request has the header `Prefer`, or if `key` does not
        allow the collection. The caller has checked that `key` is valid and may ask questions.
        """
        begun = perf_counter()
        alias = self._aliases.get(scope["query_string"])
        engine = self._state.engine_or_none
        if alias is None or engine is None or header(scope, b"prefer") is not None:
            return None
        digest, head, coverage, collection = alias
        if not key.allows(collection):
            return None
        found = engine.asker.near_hit(digest, coverage)
        if found is None:
            return None
        self._state.metrics.questions.inc("near", "answer" if found.answerable else "no_answer")
        taken = milliseconds(perf_counter() - begun)
        if (recorded := current()) is not None:
            recorded.put("cache", begun, perf_counter(), {"qa.cache.tier": "near", "qa.cache.hit": True})
        headers = [
            *_cache_headers(found.etag, found.cache),
            (b"server-timing", b"cache;dur=%.3f, total;dur=%.3f" % (taken, taken)),
            (b"x-request-id", request_id.encode()),
        ]
        if has_version(scope, found.etag):
            await send_response(send, 304, headers, b"")
            return 304
        headers.append((b"content-type", JSON))
        timings = Timings(cache=taken, total=taken)
        whole = answer_json(request_id, int(time()), head, found.body, cache=found.cache, timings=timings)
        await send_response(send, 200, headers, whole)
        return 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that the near cache did not answer: `near` returned None, or `near` was not called."""
        method = scope["method"]
        values = await read_values(scope, receive, self._state.options, self._fields, self._fields)
        options = ask_options(values, self._state.options.coverage)
        permit(scope, options.collection)
        if method != "HEAD" and self._state.options.async_results_max and prefers_async(scope):
            await self._submissions.submit(scope, send, values)
            return
        asking = self._state.engine.asker.ask(values["question"], options)
        try:
            outcome = await while_connected(receive, asking, self._state.metrics.disconnects.inc)
        except CacheMiss as error:
            raise HttpProblem("cache-miss", str(error)) from error
        if method == "GET":
            self._remember(scope["query_string"], outcome)
        await self._respond(scope, send, outcome)

    async def _respond(self, scope: Scope, send: Send, outcome: Outcome) -> None:
        use, timings = outcome.cache, outcome.timings
        self._state.metrics.question(use, timings, outcome.answerable)
        self._state.metrics.partial.inc("qa", by=outcome.partial)
        headers = [*_cache_headers(outcome.etag, use), (b"server-timing", _server_timing(timings))]
        if scope["method"] != "POST" and has_version(scope, outcome.etag):
            await send_response(send, 304, headers, b"")
            return
        headers.append((b"content-type", JSON))
        await send_response(send, 200, headers, outcome.encode(scope["state"]["request_id"]))

    def _remember(self, query: bytes, outcome: Outcome) -> None:
        """Make `near` recognise this query string, if the options of the question allow an answer from the cache."""
        options = outcome.question.options
        if options.cache in ("use", "only"):
            self._aliases.put(query, Alias(outcome.digest, outcome.head, options.coverage, options.collection))


def _cache_headers(etag: str, use: CacheUse) -> RawHeaders:
    """Return the headers ETag, Cache-Control and Cache-Status (RFC 9211) of an answer."""
    if use.status == "hit":
        status = b"qa-cluster; hit; ttl=%d; detail=%b" % (use.ttl_s, use.tier.encode())
    else:
        stored = b"; stored" if use.ttl_s else b""
        status = b"qa-cluster; fwd=%b%b" % (b"miss" if use.status == "miss" else b"bypass", stored)
    return [(b"etag", etag.encode()), (b"cache-control", b"private, no-cache"), (b"cache-status", status)]


def _server_timing(timings: Timings) -> bytes:
    parts = [f"cache;dur={timings.cache:.3f}", f"rank;dur={timings.rank:.3f}"]
    parts += [f"read{number};dur={wave:.3f}" for number, wave in enumerate(timings.read, 1)]
    return ", ".join([*parts, f"total;dur={timings.total:.3f}"]).encode()
