"""The tensors of the Open Inference Protocol, and the OpenAPI description of the routes below `/v2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from qa_cluster.asking.questions import AskLimits
from qa_cluster.huggingface.parameters import Parameters
from qa_cluster.huggingface.request import PipelineLimits

from .results import BOOLEAN, INTEGER, STRING, json_of, object_of, path_parameter

INPUTS = ("question", "context")
# The outputs with their datatypes, in the order of the response.
OUTPUTS = {"answer": "BYTES", "score": "FP32", "start": "INT64", "end": "INT64"}
BYTES = "BYTES"
# The request parameters that are options of the reader, without `top_k`, because an output has only one answer.
READER_PARAMETERS = tuple(item.name for item in fields(Parameters) if item.name != "top_k")
# The parameters that the protocol defines. `timeout` is in microseconds, and `priority` has no effect.
BINARY_OUTPUT, TIMEOUT, PRIORITY = "binary_data_output", "timeout", "priority"
BINARY_SIZE, BINARY = "binary_data_size", "binary_data"

_SHAPE = {"type": "array", "items": INTEGER, "description": "[N] or [N, 1]"}
_METADATA_TENSOR = object_of({"name": STRING, "datatype": STRING, "shape": {"type": "array", "items": INTEGER}})
_OUTPUT = object_of(
    {
        "name": {
            **STRING,
            "enum": list(OUTPUTS),
            "description": "start and end are code point offsets in the context; end is the offset after the last code"
            " point",
        },
        "datatype": {**STRING, "enum": sorted(set(OUTPUTS.values()))},
        "shape": {**_SHAPE, "description": "the shape of the tensor question"},
        "data": {"type": "array", "description": "the elements; missing in the binary form"},
        "parameters": object_of({BINARY_SIZE: INTEGER}),
    },
    ["name", "datatype", "shape"],
)
SCHEMAS = {
    "InferenceError": object_of({"error": STRING}),
    "InferenceServer": object_of({"name": STRING, "version": STRING, "extensions": {"type": "array", "items": STRING}}),
    "InferenceLive": object_of({"live": BOOLEAN}),
    "InferenceReady": object_of({"ready": BOOLEAN}),
    "InferenceModel": object_of(
        {
            "name": {**STRING, "description": "the name in the path"},
            "versions": {"type": "array", "items": STRING, "description": "the loaded revisions"},
            "platform": STRING,
            "inputs": {"type": "array", "items": _METADATA_TENSOR},
            "outputs": {"type": "array", "items": _METADATA_TENSOR},
        }
    ),
    "InferenceModelReady": object_of({"name": STRING, "ready": BOOLEAN}),
    "InferenceIndex": {
        "type": "array",
        "items": object_of(
            {
                "name": {**STRING, "description": "the id of the reader"},
                "version": {**STRING, "description": "the revision of the reader"},
                "state": {**STRING, "enum": ["READY", "UNAVAILABLE"]},
                "reason": STRING,
            }
        ),
    },
    "Inference": object_of(
        {
            "model_name": {**STRING, "description": "the name in the path"},
            "model_version": {**STRING, "description": "the revision of the model that answered"},
            "id": {**STRING, "description": "the id of the request, if it has one"},
            "outputs": {"type": "array", "items": _OUTPUT},
        },
        ["model_name", "model_version", "outputs"],
    ),
}
ERROR_CONTENT = json_of("InferenceError")
_MODEL = path_parameter(
    "id", "`default`, the id of a reader, or id@revision; slashes need no percent-encoding", minLength=1
)
_VERSION = path_parameter("version", "a revision", minLength=1)
_LENGTH = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "binary form: the size of the JSON in bytes; the binary tensors follow it in the body",
    "schema": {**INTEGER, "minimum": 0},
}
_SUMMARIES = {
    "": ("get", "Get the inputs and outputs of a model", "the metadata", "InferenceModel"),
    "/ready": ("get", "Check whether a model is ready", "the model is ready on a shard", "InferenceModelReady"),
    "/infer": ("post", "Answer questions from their contexts", "the answers", "Inference"),
}


def inference_paths(limits: AskLimits, pipeline: PipelineLimits) -> dict[str, Any]:
    """Return the descriptions of the routes, without the responses that all routes share."""
    paths: dict[str, Any] = {
        "/v2": {"get": _operation("Get the metadata of the service", "the metadata", "InferenceServer")},
        "/v2/health/live": {
            "get": _operation("Check whether the service is running", "the service is running", "InferenceLive")
        },
        "/v2/health/ready": {
            "get": _operation(
                "Check whether every shard can answer",
                "every shard can answer",
                "InferenceReady",
                unready="InferenceReady",
            )
        },
        "/v2/repository/index": {
            "post": _operation("List the models", "all models", "InferenceIndex", "401", "413", "422", "429", "504")
        },
    }
    for action, (method, summary, said, schema) in _SUMMARIES.items():
        problems = ["401", "404", "413", "422", "429", "504"]
        more: dict[str, Any] = {}
        if action == "/infer":
            problems.append("415")
            more = {"parameters": [_LENGTH], "requestBody": _request_body(limits, pipeline)}
        unready = "InferenceModelReady" if action == "/ready" else ""
        for version in ((), (_VERSION,)):
            operation = {**_operation(summary, said, schema, *problems, unready=unready), **more}
            path = f"/v2/models/{{id}}{'/versions/{version}' if version else ''}{action}"
            paths[path] = {"parameters": [_MODEL, *version], method: operation}
            if action == "/infer":
                operation["responses"]["200"]["content"]["application/octet-stream"] = {"schema": {"type": "string"}}
    return paths


def _operation(summary: str, said: str, schema: str, *problems: str, unready: str = "") -> dict[str, Any]:
    """Return the description of an operation, with its `problems` for `with_errors`.

    Args:
        summary: what the operation does.
        said: the description of the successful response.
        schema: the name of the schema of the successful response.
        problems: the statuses of the errors of the operation. If it is empty, the operation needs no API key.
        unready: the name of the schema of a response with status 503 that is not an error; empty if the operation has
            no such response.
    """
    responses: dict[str, Any] = {"200": {"description": said, "content": json_of(schema)}}
    if unready:
        responses["503"] = {"description": "not ready, or an error", "content": _either(unready)}
    return {"summary": summary, "responses": responses, "problems": list(problems)}


def _either(schema: str) -> dict[str, Any]:
    names = (schema, "InferenceError")
    return {"application/json": {"schema": {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in names]}}}


def _request_body(limits: AskLimits, pipeline: PipelineLimits) -> dict[str, Any]:
    tensor = object_of(
        {
            "name": {**STRING, "enum": list(INPUTS)},
            "datatype": {**STRING, "enum": [BYTES]},
            "shape": {**_SHAPE, "description": f"[N] or [N, 1]; N is from 1 to {pipeline.pairs}"},
            "data": {"type": "array", "description": f"N strings, or the parameter {BINARY_SIZE} in the binary form"},
            "parameters": {
                "type": ["object", "null"],
                "properties": {BINARY_SIZE: {**INTEGER, "description": "size of the tensor in the body, in bytes"}},
            },
        },
        ["name", "datatype", "shape"],
    )
    output = object_of(
        {
            "name": {**STRING, "enum": list(OUTPUTS)},
            "parameters": {
                "type": ["object", "null"],
                "properties": {BINARY: {**BOOLEAN, "description": "whether the output is sent in the binary form"}},
            },
        },
        ["name"],
    )
    properties = {
        "id": {"type": ["string", "null"], "description": "the response repeats it"},
        "inputs": {"type": "array", "items": tensor, "description": "the tensors question and context"},
        "outputs": {"type": ["array", "null"], "items": output, "description": "the wanted outputs; default: all"},
        "parameters": {"type": ["object", "null"], "properties": _parameters(limits), "additionalProperties": False},
    }
    return {
        "required": True,
        "content": {
            "application/json": {"schema": object_of(properties, ["inputs"])},
            "application/octet-stream": {
                "schema": {"type": "string", "description": "binary form: the JSON, then the binary tensors"}
            },
        },
    }


def _parameters(limits: AskLimits) -> Mapping[str, Any]:
    reader = {
        item.name: {"type": [item.metadata["kind"], "null"], "description": item.metadata["help"]}
        for item in fields(Parameters)
        if item.name in READER_PARAMETERS
    }
    return {
        **reader,
        BINARY_OUTPUT: {"type": ["boolean", "null"], "description": "whether all outputs are sent in the binary form"},
        TIMEOUT: {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": limits.timeout_ms_max * 1000,
            "description": "time limit in microseconds; 0: the default of the service",
        },
        PRIORITY: {"description": "has no effect"},
    }


def with_errors(
    paths: Mapping[str, Any], texts: Mapping[str, str], any_request: Sequence[str], problem: Mapping[str, Any]
) -> dict[str, Any]:
    """Add the responses for errors to the operations of the routes, and return the routes.

    `paths` are the routes from `inference_paths`. `texts` has a description for each status. `any_request` are the
    statuses that any request can get, and `problem` is the content of a problem document.

    Routes of the protocol answer with status 400 where other routes answer with 422. The statuses of `any_request` may
    also have a problem document as body.
    """
    for path in paths.values():
        for operation in path.values():
            if isinstance(operation, list):
                continue
            problems = operation.pop("problems")
            if not problems:
                operation["security"] = []
            statuses = {"400" if status == "422" else status for status in (*problems, *any_request)}
            responses = operation["responses"]
            for status in sorted(statuses):
                described = responses.setdefault(status, {"description": texts[status], "content": {**ERROR_CONTENT}})
                if status in any_request:
                    described["content"] = {**described["content"], **problem}
    return dict(paths)
