"""`POST /models/{id}`: questions with contexts, in the form of Hugging Face's question-answering task.

This process only checks the request and sends it to a shard, whose worker reads the contexts. `GET /models`, the list
of models, is in `status.py`.
"""

from __future__ import annotations

from time import perf_counter
from urllib.parse import quote

from qa_cluster.asking.questions import MAX_MODEL_BYTES
from qa_cluster.errors import InputTooLong
from qa_cluster.huggingface.request import InvalidRequest, PipelineRequest, parse_request
from qa_cluster.off_loop import off_loop

from ..description.schemas import load_json, parse_query, timeout_parameters
from ..http.error_map import HttpProblem
from ..http.messages import (
    Receive,
    Scope,
    Send,
    decoded,
    raw_path,
    read_body,
    require_json,
    require_method,
    send_json,
    while_connected,
)
from ..service.lifespan import ServiceState

PREFIX = b"/models/"
DEFAULT = "default"


class ModelRoute:
    """Serves one model by its id, which is the rest of the path: ``owner/name@revision``. Slashes may be plain or
    encoded.
    """

    def __init__(self, state: ServiceState) -> None:
        self._state = state
        self._parameters = timeout_parameters(state.options.limits)
        self._timeout_ms = state.options.limits.timeout_ms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the questions in the body from their contexts."""
        begun = perf_counter()
        model = _model(scope)
        require_method(scope, "POST")
        timeout_ms = parse_query(scope["query_string"], self._parameters).get("timeout_ms") or self._timeout_ms
        require_json(scope)
        request = await self._request(await read_body(scope, receive, self._state.options))
        pipeline = self._state.engine.pipeline
        reading = pipeline.read("" if model == DEFAULT else model, request, timeout_seconds=timeout_ms / 1000)
        name, results = await while_connected(receive, reading, self._state.metrics.disconnects.inc)
        self._state.metrics.pipeline_pairs.inc(by=len(results))
        taken = (perf_counter() - begun) * 1000
        headers = [(b"server-timing", b"total;dur=%.3f" % taken), (b"x-model", quote(name, safe="/@:+").encode())]
        await send_json(send, results[0] if request.single else results, headers=headers)

    async def _request(self, body: bytes) -> PipelineRequest:
        try:
            return await off_loop(len(body), lambda: parse_request(load_json(body), self._state.options.pipeline))
        except InvalidRequest as error:
            found = [{"pointer": pointer, "detail": fault} for pointer, fault in error.errors]
            raise HttpProblem("validation", str(error), errors=found) from error


def _model(scope: Scope) -> str:
    model = decoded(raw_path(scope).removeprefix(PREFIX), "model id")
    if not model:
        raise HttpProblem(
            "route-not-found", "the path has no model id: use /models/default for the default model, or /models/{id}"
        )
    if len(model.encode()) > MAX_MODEL_BYTES:
        raise InputTooLong(f"model id has {len(model.encode())} bytes, the limit is {MAX_MODEL_BYTES}")
    return model
