"""Parses requests of the Open Inference Protocol: two tensors, in JSON or in Triton's binary form.

In the binary form, JSON is the first part of the body, and the header ``Inference-Header-Content-Length`` has its size.
The tensors follow in the order of `inputs`. Each element of a BYTES tensor is its size in four bytes (little-endian),
followed by its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qa_cluster.asking.questions import AskLimits
from qa_cluster.errors import InputTooLong
from qa_cluster.huggingface.request import InvalidRequest, PipelineLimits, PipelineRequest, parse_request

from ..description.inference import (
    BINARY,
    BINARY_OUTPUT,
    BINARY_SIZE,
    BYTES,
    INPUTS,
    OUTPUTS,
    PRIORITY,
    READER_PARAMETERS,
    TIMEOUT,
)
from ..description.schemas import load_json
from ..http.error_map import HttpProblem

QUESTION, CONTEXT = INPUTS
LENGTH_BYTES = 4
PARAMETERS = (*READER_PARAMETERS, BINARY_OUTPUT, TIMEOUT, PRIORITY)
_PAIR = re.compile(r"inputs/(\d+)/(question|context)\b")
_PARAMETER = re.compile(r"parameters/\w+ ")
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A checked request.

    Attributes:
        id: the id of the request, which the response repeats; None: the request has no id.
        shape: the shape of the tensor `question`. The outputs have the same shape.
        pairs: the questions with their contexts.
        outputs: the wanted outputs, each with a flag that says whether it is sent in the binary form.
        timeout_seconds: the time limit; None means the default of the service.
    """

    id: str | None
    shape: tuple[int, ...]
    pairs: PipelineRequest
    outputs: tuple[tuple[str, bool], ...]
    timeout_seconds: float | None


def parse_inference(
    body: bytes, header_length: bytes | None, pipeline: PipelineLimits, limits: AskLimits
) -> InferenceRequest:
    """Parse and check a request. Raise HttpProblem if the request is wrong, or InputTooLong if it exceeds a limit.

    Args:
        body: the whole body.
        header_length: the value of ``Inference-Header-Content-Length``; None: the body is JSON.
        pipeline: the limits of the pairs.
        limits: the limits of timeouts.
    """
    size = len(body) if header_length is None else _header_size(header_length, len(body))
    document = load_json(body[:size])
    if not isinstance(document, dict):
        raise _invalid(f"the request must be a JSON object, got {_kind(document)}")
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise _invalid(f"id must be a string, got {_kind(request_id)}")
    parameters = _parameters(document, "the request")
    if unknown := [name for name in parameters if name not in PARAMETERS]:
        raise _invalid(f"parameter {_shown(unknown[0])} is unknown; the known parameters are {', '.join(PARAMETERS)}")
    tensors = _tensors(document.get("inputs"), body[size:], is_binary=header_length is not None, most=pipeline.pairs)
    shape = tensors[QUESTION][0]
    texts = {name: elements for name, (_, elements) in tensors.items()}
    if len(texts[QUESTION]) != len(texts[CONTEXT]):
        raise _invalid(
            f"tensor 'question' has {len(texts[QUESTION])} elements and tensor 'context' has {len(texts[CONTEXT])}:"
            " both need the same number"
        )
    return InferenceRequest(
        request_id,
        shape,
        _pairs(texts, {name: parameters[name] for name in READER_PARAMETERS if name in parameters}, pipeline),
        _outputs(document.get("outputs"), _flag(parameters, BINARY_OUTPUT)),
        _timeout(parameters.get(TIMEOUT), limits),
    )


def _header_size(header_length: bytes, most: int) -> int:
    text = header_length.decode("latin-1").strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) > most:
        raise _invalid(
            f"Inference-Header-Content-Length is {text[:_MAX_SHOWN]!r}, but must be the size of the JSON in bytes, at"
            f" most the {most} bytes of the body"
        )
    return int(text)


def _tensors(
    inputs: object, binary: bytes, *, is_binary: bool, most: int
) -> dict[str, tuple[tuple[int, ...], list[str]]]:
    """Return the shape and the elements of each input, by its name.

    Args:
        inputs: the field `inputs` of the request.
        binary: the part of the body after the JSON, which has the tensors in the binary form.
        is_binary: whether the request has the header of the binary form.
        most: the limit of elements in a tensor.
    """
    if not isinstance(inputs, list) or not inputs:
        raise _invalid("inputs must be a list with the tensors 'question' and 'context'")
    found: dict[str, tuple[tuple[int, ...], list[str]]] = {}
    at = 0
    for tensor in inputs:
        name = tensor.get("name") if isinstance(tensor, dict) else None
        if name not in INPUTS:
            raise _invalid(f"inputs has tensor {_shown(name)}, but the model has the inputs 'question' and 'context'")
        if name in found:
            raise _invalid(f"inputs has tensor {name!r} twice")
        if tensor.get("datatype") != BYTES:
            raise _invalid(f"tensor {name!r} has datatype {_shown(tensor.get('datatype'))}, but must have BYTES")
        shape = _shape(tensor.get("shape"), name, most)
        parameters = _parameters(tensor, f"tensor {name!r}")
        if unknown := [each for each in parameters if each != BINARY_SIZE]:
            raise _invalid(
                f"tensor {name!r} has the parameter {_shown(unknown[0])}, which is unknown: use {BINARY_SIZE}"
            )
        size = parameters.get(BINARY_SIZE)
        if size is None:
            elements = _json_elements(tensor.get("data"), shape, name)
        else:
            elements = _binary_elements(binary, at, size, shape[0], name, is_binary=is_binary)
            at += size
        found[name] = (shape, elements)
    if missing := [name for name in INPUTS if name not in found]:
        raise _invalid(f"inputs has no tensor {missing[0]!r}")
    if at != len(binary):
        raise _invalid(f"the binary part of the body has {len(binary)} bytes, but the tensors have {at}")
    return found


def _shape(shape: object, name: str, most: int) -> tuple[int, ...]:
    numbers = shape if isinstance(shape, list) else []
    if (
        len(numbers) not in (1, 2)
        or any(type(number) is not int for number in numbers)
        or numbers[0] < 1
        or numbers[1:] not in ([], [1])
    ):
        raise _invalid(f"tensor {name!r} has shape {_shown(shape)}, but must have [N] or [N, 1] with N of at least 1")
    if numbers[0] > most:
        raise InputTooLong(f"tensor {name!r} has {numbers[0]} elements, the limit is {most} (pipeline_pairs_max)")
    return tuple(numbers)


def _json_elements(data: object, shape: tuple[int, ...], name: str) -> list[str]:
    if data is None:
        raise _invalid(f"tensor {name!r} has neither data nor the parameter {BINARY_SIZE}")
    elements: list[Any] = data if isinstance(data, list) else [data]
    if len(shape) == 2 and elements and all(isinstance(row, list) and len(row) == 1 for row in elements):
        elements = [row[0] for row in elements]
    if len(elements) != shape[0]:
        raise _invalid(f"tensor {name!r} has {len(elements)} elements, but its shape has {shape[0]}")
    for number, element in enumerate(elements):
        if not isinstance(element, str):
            raise _invalid(f"element {number} of tensor {name!r} must be a string, got {_kind(element)}")
    return elements


def _binary_elements(binary: bytes, at: int, size: object, count: int, name: str, *, is_binary: bool) -> list[str]:
    if not is_binary:
        raise _invalid(f"tensor {name!r} is binary, but the request has no header Inference-Header-Content-Length")
    if type(size) is not int or not 0 <= size <= len(binary) - at:
        raise _invalid(
            f"{BINARY_SIZE} of tensor {name!r} is {_shown(size)}, but the body has {len(binary) - at} bytes left"
        )
    elements: list[str] = []
    end = at + size
    while at < end and len(elements) < count:
        start = at + LENGTH_BYTES
        length = int.from_bytes(binary[at:start], "little")
        if start + length > end:
            raise _invalid(f"element {len(elements)} of tensor {name!r} is longer than the rest of the tensor")
        at = start + length
        try:
            elements.append(binary[start:at].decode())
        except UnicodeDecodeError as error:
            raise _invalid(f"element {len(elements)} of tensor {name!r} is not UTF-8: {error}") from error
    if len(elements) != count or at != end:
        more = "more" if at != end else str(len(elements))
        raise _invalid(f"tensor {name!r} has {more} elements, but its shape has {count}")
    return elements


def _pairs(texts: Mapping[str, list[str]], parameters: dict[str, Any], limits: PipelineLimits) -> PipelineRequest:
    inputs = [
        {QUESTION: question, CONTEXT: context}
        for question, context in zip(texts[QUESTION], texts[CONTEXT], strict=True)
    ]
    try:
        return parse_request({"inputs": inputs, "parameters": parameters}, limits)
    except InvalidRequest as error:
        raise _invalid(_PARAMETER.sub("parameter ", _named(str(error)))) from error
    except InputTooLong as error:
        raise InputTooLong(_named(str(error))) from error


def _named(fault: str) -> str:
    """Rewrite a fault of a pair as a fault of an element of a tensor.

    >>> _named("inputs/3/context must not be empty")
    "element 3 of tensor 'context' must not be empty"
    """
    return _PAIR.sub(r"element \1 of tensor '\2'", fault)


def _outputs(outputs: object, binary: bool) -> tuple[tuple[str, bool], ...]:
    """Return the name of each wanted output, and whether it is sent in the binary form.

    If `outputs`, the field of the request, is missing or empty, all outputs are wanted. `binary` says whether outputs
    that do not name a form are sent in the binary form.
    """
    if outputs is None or outputs == []:
        return tuple((name, binary) for name in OUTPUTS)
    if not isinstance(outputs, list):
        raise _invalid(f"outputs must be a list, got {_kind(outputs)}")
    found: dict[str, bool] = {}
    for output in outputs:
        name = output.get("name") if isinstance(output, dict) else None
        if name not in OUTPUTS:
            raise _invalid(f"outputs has {_shown(name)}, but the model has the outputs {', '.join(OUTPUTS)}")
        if name in found:
            raise _invalid(f"outputs has {name!r} twice")
        parameters = _parameters(output, f"output {name!r}")
        if unknown := [each for each in parameters if each != BINARY]:
            raise _invalid(f"output {name!r} has the parameter {_shown(unknown[0])}, which is unknown: use {BINARY}")
        found[name] = _flag(parameters, BINARY) if parameters.get(BINARY) is not None else binary
    return tuple(found.items())


def _timeout(given: object, limits: AskLimits) -> float | None:
    if given is None or given == 0:
        return None
    most = limits.timeout_ms_max * 1000
    if type(given) is not int or not 1 <= given <= most:
        raise _invalid(f"parameter timeout is {_shown(given)}, but must be from 1 to {most} microseconds")
    return given / 1e6


def _parameters(holder: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    given = holder.get("parameters")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise _invalid(f"parameters of {what} must be an object, got {_kind(given)}")
    return given


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise _invalid(f"parameter {name} must be true or false, got {_shown(value)}")
    return bool(value)


def _invalid(detail: str) -> HttpProblem:
    return HttpProblem("validation", detail)


def _shown(value: object) -> str:
    if isinstance(value, dict | list) and not (isinstance(value, list) and all(type(each) is int for each in value)):
        return _kind(value)
    return "none" if value is None else repr(value)[:_MAX_SHOWN]


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "a string", int: "an integer", float: "a number", dict: "an object", list: "a list"}
    return kinds.get(type(value), "null")
