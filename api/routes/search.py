"""`GET /search` and `POST /search`: the best sentences, for users with their own reader or language model.

Results are not cached: a search runs no reader, and shows the current documents.
"""

from __future__ import annotations

from dataclasses import replace

from qa_cluster.asking.searcher import SearchOutcome
from qa_cluster.off_loop import off_loop
from qa_cluster.options.questions import ALL_COLLECTIONS, SearchOptions

from ..description.schemas import parse_body, parse_query, search_fields, search_options
from ..http.error_map import HttpProblem, RawHeaders
from ..http.messages import (
    JSON,
    Receive,
    Scope,
    Send,
    about,
    permit,
    read_body,
    require_json,
    send_response,
    while_connected,
)
from ..service.lifespan import ServiceState


class SearchRoute:
    """Serves `GET /search` and `POST /search`."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._parameters = search_fields(state.options.limits, "q", state.options.coverage)
        self._fields = search_fields(state.options.limits, coverage=state.options.coverage)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Search, and stop if the client disconnects."""
        method = scope["method"]
        if method in ("GET", "HEAD"):
            values = parse_query(scope["query_string"], self._parameters)
            query = values["q"]
        elif method == "POST":
            if scope["query_string"]:
                raise HttpProblem("validation", "POST /search takes its fields in the body, not in the query string")
            require_json(scope)
            body = await read_body(scope, receive, self._state.options)
            values = await off_loop(len(body), parse_body, body, self._fields)
            query = values["query"]
        else:
            raise HttpProblem(
                "method-not-allowed",
                f"/search has GET and POST, not {method}",
                headers=[(b"allow", b"GET, HEAD, POST")],
            )
        metrics = self._state.metrics
        options = search_options(values, self._state.options.coverage)
        found = await while_connected(receive, self._search(scope, query, options), metrics.disconnects.inc)
        metrics.searches.inc("hits" if found.hits else "no_hits")
        metrics.partial.inc("search", by=found.index.partial)
        timings = found.timings
        timing = f"rank;dur={timings.rank:.3f}, fetch;dur={timings.fetch:.3f}, total;dur={timings.total:.3f}"
        headers: RawHeaders = [
            (b"content-type", JSON),
            (b"cache-control", b"no-store"),
            (b"server-timing", timing.encode()),
        ]
        await send_response(send, 200, headers, await found.encode(scope["state"]["request_id"]))

    async def _search(self, scope: Scope, query: str, options: SearchOptions) -> SearchOutcome:
        """Search the collections that the key allows."""
        engine = self._state.engine
        if options.collections == (ALL_COLLECTIONS,):
            names = await engine.searcher.collections_of(options, admits=scope["state"]["key"].allows)
            options = replace(options, collection=names)
        for name in options.collections:
            permit(scope, name)
        if len(options.collections) > 1:
            about(scope, collection=" ".join(options.collections))
        return await engine.search(query, options)
