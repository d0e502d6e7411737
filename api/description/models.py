"""The OpenAPI description of `POST /models/{id}`, from the table of parameters and the limits of the service."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from qa_cluster.huggingface.parameters import PADDINGS, Parameters
from qa_cluster.huggingface.request import PipelineLimits

from .results import INTEGER, NUMBER, STRING, path_parameter

ANSWER: dict[str, Any] = {
    "type": "object",
    "required": ["score", "start", "end", "answer"],
    "properties": {
        "score": {
            **NUMBER,
            "description": "softmax of the start times softmax of the end over a window, summed over equal answers",
        },
        "start": {**INTEGER, "description": "offset of the first code point in the context"},
        "end": {**INTEGER, "description": "offset after the last code point"},
        "answer": {**STRING, "description": "the answer; empty, with start and end 0, for no answer"},
    },
}
_ONE_OR_SOME = {
    "oneOf": [
        {"$ref": "#/components/schemas/PipelineAnswer"},
        {"type": "array", "items": {"$ref": "#/components/schemas/PipelineAnswer"}},
    ]
}
RESULT: dict[str, Any] = {
    "description": "for one input, its answer or a list of up to top_k answers; for a list of inputs, a list of these",
    "anyOf": [_ONE_OR_SOME, {"type": "array", "items": _ONE_OR_SOME}],
}


MODEL_ID = path_parameter("id", "`default`, an id, or id@revision; slashes need no percent-encoding", minLength=1)


def request_body(limits: PipelineLimits) -> dict[str, Any]:
    """Return the description of the body of `POST /models/{id}`, with these limits."""
    pair = {
        "type": "object",
        "required": ["question", "context"],
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": limits.question_chars},
            "context": {"type": "string", "minLength": 1, "maxLength": limits.context_chars},
        },
        "additionalProperties": False,
    }
    many = {"type": "array", "items": pair, "minItems": 1, "maxItems": limits.pairs}
    properties = {
        "inputs": {"oneOf": [pair, many], "description": "a question with its context, or a list of these"},
        "parameters": {
            "type": ["object", "null"],
            "properties": _parameters(limits),
            "additionalProperties": False,
            "description": "options of the reader",
        },
        "options": {"type": ["object", "null"], "description": "accepted, but has no effect"},
    }
    schema = {"type": "object", "required": ["inputs"], "properties": properties, "additionalProperties": False}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _parameters(limits: PipelineLimits) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in fields(Parameters):
        schema = {"type": [item.metadata["kind"], "null"], "description": item.metadata["help"]}
        if item.metadata["minimum"] is not None:
            schema["minimum"] = item.metadata["minimum"]
        if item.name == "top_k":
            schema["maximum"] = limits.top_k
        if item.default is not None:
            schema["default"] = item.default
        found[item.name] = schema
    found["padding"] = {"enum": [*PADDINGS, True, False, None], "description": "has no effect on answers"}
    return found
