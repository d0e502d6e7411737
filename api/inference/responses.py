"""Builds responses of the Open Inference Protocol: metadata, tensors, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from qa_cluster.types import LoadedModel

from ..description.inference import BINARY_SIZE, BYTES, INPUTS, OUTPUTS
from ..http.error_map import RawHeaders
from ..http.messages import JSON
from .requests import LENGTH_BYTES, InferenceRequest

OCTETS = b"application/octet-stream"
HEADER_LENGTH = b"inference-header-content-length"
PLATFORM = "qa_cluster"
READY, UNAVAILABLE = "READY", "UNAVAILABLE"
_NUMBERS = {"FP32": "<f4", "INT64": "<i8"}


def server_metadata(version: str) -> dict[str, Any]:
    """Return the metadata of the service. `version` is the version of qa-cluster."""
    return {"name": "qa-cluster", "version": version, "extensions": ["binary_tensor_data"]}


def model_metadata(name: str, models: Iterable[LoadedModel]) -> dict[str, Any]:
    """Return the metadata of a reader with its inputs and outputs. `models` are the reader's loaded revisions."""
    return {
        "name": name,
        "versions": [model.revision for model in models],
        "platform": PLATFORM,
        "inputs": [{"name": each, "datatype": BYTES, "shape": [-1]} for each in INPUTS],
        "outputs": [{"name": each, "datatype": datatype, "shape": [-1]} for each, datatype in OUTPUTS.items()],
    }


def index_entry(model: LoadedModel) -> dict[str, str]:
    """Return the entry of a reader in the repository index.

    A request can use any shard, so a reader is ready if it is ready on at least one shard.
    """
    return {
        "name": model.id,
        "version": model.revision,
        "state": READY if model.warm else UNAVAILABLE,
        "reason": "" if model.warm else f"the reader is not ready on any of the {model.shards} shards",
    }


def inference_response(
    name: str, version: str, request: InferenceRequest, results: Sequence[Mapping[str, Any]]
) -> tuple[RawHeaders, bytes]:
    """Return the headers and the body of a response.

    Args:
        name: the model name in the request.
        version: the revision of the reader that answered.
        request: the request.
        results: the answer to each pair.
    """
    outputs: list[dict[str, Any]] = []
    tensors: list[bytes] = []
    for output, is_binary in request.outputs:
        datatype = OUTPUTS[output]
        tensor: dict[str, Any] = {"name": output, "datatype": datatype, "shape": request.shape}
        values = [result[output] for result in results]
        if is_binary:
            tensors.append(_encoded(values, datatype))
            tensor["parameters"] = {BINARY_SIZE: len(tensors[-1])}
        else:
            tensor["data"] = values if datatype == BYTES else np.array(values, _NUMBERS[datatype])
        outputs.append(tensor)
    document: dict[str, Any] = {"model_name": name, "model_version": version}
    if request.id is not None:
        document["id"] = request.id
    head = orjson.dumps({**document, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not tensors:
        return [(b"content-type", JSON)], head
    return [(b"content-type", OCTETS), (HEADER_LENGTH, b"%d" % len(head))], b"".join((head, *tensors))


def _encoded(values: Sequence[Any], datatype: str) -> bytes:
    if datatype != BYTES:
        return np.array(values, _NUMBERS[datatype]).tobytes()
    texts = [value.encode() for value in values]
    return b"".join(part for text in texts for part in (len(text).to_bytes(LENGTH_BYTES, "little"), text))


def error_response(status: int, headers: RawHeaders, problem: bytes) -> tuple[int, RawHeaders, bytes]:
    """Convert a problem document to an error of the protocol, ``{"error": ..}``. Status 422 becomes 400, as clients
    expect.
    """
    headers = [(name, JSON if name == b"content-type" else value) for name, value in headers]
    error = orjson.dumps({"error": orjson.loads(problem)["detail"]})
    return 400 if status == 422 else status, headers, error
