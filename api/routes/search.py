"""`GET /search` and `POST /search`: the best sentences, for users with their own reader or language model.

Results are not cached: a search runs no reader, and shows the current documents.
"""

from __future__ import annotations

from dataclasses import replace

from qa_cluster.asking.searcher import SearchOutcome
from qa_cluster.options.questions import ALL_COLLECTIONS, SearchOptions

from ..description.schemas import read_values, search_fields, search_options
from ..http.messages import Receive, Scope, Send, about, permit, send_json, while_connected
from ..service.lifespan import ServiceState


class SearchRoute:
    """Serves `GET /search` and `POST /search`."""

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._parameters = search_fields(state.options.limits, "q", state.options.coverage)
        self._fields = search_fields(state.options.limits, coverage=state.options.coverage)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Search, and stop if the client disconnects."""
        values = await read_values(scope, receive, self._state.options, self._parameters, self._fields)
        query = values["query"] if scope["method"] == "POST" else values["q"]
        metrics = self._state.metrics
        options = search_options(values, self._state.options.coverage)
        outcome = await while_connected(receive, self._search(scope, query, options), metrics.disconnects.inc)
        found, timings = outcome.found, outcome.found.timings_ms
        metrics.searches.inc("hits" if found.hits else "no_hits")
        metrics.partial.inc("search", by=found.index.partial)
        timing = f"rank;dur={timings.rank:.3f}, fetch;dur={timings.fetch:.3f}, total;dur={timings.total:.3f}"
        body = await outcome.encode(scope["state"]["request_id"])
        await send_json(send, body, headers=[(b"server-timing", timing.encode())])

    async def _search(self, scope: Scope, query: str, options: SearchOptions) -> SearchOutcome:
        """Search the collections in the options. Raise HttpProblem if the key does not allow one of them.

        If the options name all collections, search only the collections that the key allows.
        """
        engine = self._state.engine
        if options.collections == (ALL_COLLECTIONS,):
            names = await engine.searcher.collections_of(options, admits=scope["state"]["key"].allows)
            options = replace(options, collection=names)
        for name in options.collections:
            permit(scope, name)
        if len(options.collections) > 1:
            about(scope, collection=" ".join(options.collections))
        return await engine.search(query, options)
