"""`/v2`: the Open Inference Protocol (KServe v2), for clients of KServe and Triton.

A reader is a model with two inputs, `question` and `context`. A batch of pairs is one request to a shard, as for `POST
/models/{id}`. The id of a reader is the name of the model, and its revision is the version.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter
from typing import Any

from qa_cluster.asking.questions import MAX_MODEL_BYTES
from qa_cluster.errors import InputTooLong, NotFound
from qa_cluster.manifest_fields import ENCODER_KIND
from qa_cluster.off_loop import off_loop
from qa_cluster.types import LoadedModel

from ..description.schemas import load_json
from ..http.error_map import HttpProblem
from ..http.messages import (
    JSON,
    READ,
    Receive,
    Scope,
    Send,
    decoded,
    header,
    raw_path,
    read_body,
    require_media_type,
    require_method,
    send_json,
    send_response,
    while_connected,
)
from ..inference.requests import parse_inference
from ..inference.responses import (
    HEADER_LENGTH,
    OCTETS,
    READY,
    index_entry,
    inference_response,
    model_metadata,
    server_metadata,
)
from ..service.lifespan import ServiceState
from ..service.readiness import Readiness
from .models import DEFAULT

SERVER_PATH = "/v2"
LIVE_PATH, READY_PATH, INDEX_PATH = "/v2/health/live", "/v2/health/ready", "/v2/repository/index"
PREFIX = "/v2/"
MODELS_PREFIX = "/v2/models/"
_VERSIONS = "/versions/"


@dataclass(frozen=True, slots=True)
class _Target:
    """The model in a path below `MODELS_PREFIX`, and what the request asks of it.

    Attributes:
        model: the id or the name of a reader, or `DEFAULT`.
        version: the revision of the reader; empty if the path names no version.
        action: ``ready``, ``infer``, or empty for the metadata.
    """

    model: str
    version: str
    action: str

    def matches(self, loaded: LoadedModel) -> bool:
        """Return whether the path names this loaded model. A path without a version matches all revisions.

        An encoder never matches.
        """
        if loaded.kind == ENCODER_KIND or self.version not in ("", loaded.revision):
            return False
        return loaded.default if self.model == DEFAULT else self.model in (loaded.id, loaded.name)


class InferenceRoute:
    """Serves `/v2` and all paths below it."""

    def __init__(self, state: ServiceState, readiness: Readiness) -> None:
        self._state = state
        self._readiness = readiness
        self._server = server_metadata(version("qa-cluster"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        path: str = scope["path"]
        if path == SERVER_PATH:
            require_method(scope, *READ)
            await send_json(send, self._server)
        elif path == LIVE_PATH:
            require_method(scope, *READ)
            await send_json(send, {"live": True})
        elif path == READY_PATH:
            require_method(scope, *READ)
            ready = (await self._readiness.verdict())["ready"]
            await _send_ready(send, {"ready": ready})
        elif path == INDEX_PATH:
            require_method(scope, "POST")
            await self._index(scope, receive, send)
        elif path.startswith(MODELS_PREFIX):
            await self._model(scope, receive, send)
        else:
            raise HttpProblem("route-not-found", f"no such route: {path[:200]}")

    async def _index(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, self._state.options)
        wanted = load_json(body) if body.strip() else {}
        only_ready = wanted.get("ready", False) if isinstance(wanted, dict) else None
        if not isinstance(only_ready, bool):
            raise HttpProblem("validation", 'the body must be empty or a JSON object such as {"ready": true}')
        entries = [index_entry(model) for model in await self._state.engine.models() if model.kind != ENCODER_KIND]
        await send_json(send, [entry for entry in entries if not only_ready or entry["state"] == READY])

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        target = _target_of(scope)
        if target.action == "infer":
            require_method(scope, "POST")
            await self._infer(target, scope, receive, send)
            return
        require_method(scope, *READ)
        found = [model for model in await self._state.engine.models() if target.matches(model)]
        if not found:
            of = f" version {target.version[:200]!r}" if target.version else ""
            raise NotFound(f"model {target.model[:200]!r}{of} is not loaded: POST {INDEX_PATH} lists the loaded models")
        if target.action:
            ready = any(model.warm for model in found)
            await _send_ready(send, {"name": target.model, "ready": ready})
        else:
            await send_json(send, model_metadata(target.model, found))

    async def _infer(self, target: _Target, scope: Scope, receive: Receive, send: Send) -> None:
        begun = perf_counter()
        options = self._state.options
        _check_media_type(scope)
        body = await read_body(scope, receive, options)
        request = await off_loop(
            len(body), parse_inference, body, header(scope, HEADER_LENGTH), options.pipeline, options.limits
        )
        reading = self._state.engine.pipeline.read(
            await self._reader(target),
            request.pairs,
            timeout_seconds=request.timeout_seconds or options.limits.timeout_ms / 1000,
        )
        name, results = await while_connected(receive, reading, self._state.metrics.disconnects.inc)
        self._state.metrics.pipeline_pairs.inc(by=len(results))
        headers, content = inference_response(target.model, name.rpartition("@")[2], request, results)
        taken = (perf_counter() - begun) * 1000
        headers += [(b"cache-control", b"no-store"), (b"server-timing", b"total;dur=%.3f" % taken)]
        await send_response(send, 200, headers, content)

    async def _reader(self, target: _Target) -> str:
        """Return the name with which the shards find the reader.

        The name is empty for the default reader if the path has no version.
        """
        if not target.version:
            return "" if target.model == DEFAULT else target.model
        model = target.model
        if model == DEFAULT:
            model = (await self._state.engine.readers.find("")).model_id
        return model if model.endswith(f"@{target.version}") else f"{model}@{target.version}"


def _target_of(scope: Scope) -> _Target:
    """Return the model in the path. Raise HttpProblem if the path has none, or InputTooLong if its name is too long.

    Slashes in the id of the model may be plain or percent-encoded. The other parts of the path must be plain.
    """
    text = raw_path(scope).decode("latin-1")
    if not text.startswith(MODELS_PREFIX):
        raise HttpProblem("route-not-found", f"the path must start with {MODELS_PREFIX}, without percent-encoding")
    text = text.removeprefix(MODELS_PREFIX)
    action = next((each for each in ("ready", "infer") if text.endswith(f"/{each}")), "")
    if action:
        text = text.removesuffix(f"/{action}")
    model, found, revision = text.rpartition(_VERSIONS)
    if not found:
        model, revision = text, ""
    model, revision = (decoded(part.encode("latin-1"), "model") for part in (model, revision))
    if not model or (found and not revision):
        what = "version" if model else "model"
        raise HttpProblem(
            "route-not-found", f"the path has no {what}: use {MODELS_PREFIX}default for the default model"
        )
    if (size := len(f"{model}@{revision}".encode())) > MAX_MODEL_BYTES:
        raise InputTooLong(f"the model with its version has {size} bytes, the limit is {MAX_MODEL_BYTES}")
    return _Target(model, revision, action)


def _check_media_type(scope: Scope) -> None:
    """Raise HttpProblem for a media type or a compression that the service does not support. The headers Content-Type
    and Content-Encoding may be missing.
    """
    require_media_type(scope, JSON, OCTETS, missing=JSON)
    encoding = (header(scope, b"content-encoding") or b"identity").strip().lower()
    if encoding != b"identity":
        raise HttpProblem(
            "unsupported-media-type",
            f"content-encoding is {encoding.decode('latin-1')[:80]}, but the service reads no compressed requests: send"
            " the request without compression",
        )


async def _send_ready(send: Send, content: dict[str, Any]) -> None:
    """Send the state of the service or of a model. The status is 503 if ``ready`` in `content` is false."""
    if content["ready"]:
        await send_json(send, content)
    else:
        await send_json(send, content, 503, [(b"retry-after", b"1")])
