"""The body of `POST /models/{id}`: the form of Hugging Face's question-answering task, checked against limits.

The form is ``{"inputs": {"question", "context"}, "parameters": {..}}``. The value of `inputs` may also be a list of
such objects. The REST service and the shards check the body with the same code, which reports up to 50 faults and not
only the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from qa_cluster.documents.unicode import is_unicode
from qa_cluster.errors import InputTooLong, InvalidInput

from .inputs import Sample
from .parameters import Parameters, check_padding

_MEMBERS = ("inputs", "parameters", "options")
_FIELDS = ("question", "context")
_MOST_ERRORS = 50


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """The limits of one request.

    Attributes:
        pairs: limit of pairs of question and context.
        question_chars, context_chars: limits of code points in a question and in a context.
        top_k: limit of answers for a pair.
        windows: limit of windows of a pair.
    """

    pairs: int = 64
    question_chars: int = 1000
    context_chars: int = 200_000
    top_k: int = 100
    windows: int = 1024


# The limits of the shards for every client; a service may set lower limits.
SHARD_LIMITS = PipelineLimits(pairs=1024, question_chars=100_000, context_chars=10_000_000, top_k=1000, windows=1024)


class InvalidRequest(InvalidInput):
    """An invalid request; `errors` has the JSON pointer and the fault of each value."""

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        self.errors = list(errors[:_MOST_ERRORS])
        super().__init__("; ".join(f"{pointer.removeprefix('#/')} {fault}" for pointer, fault in errors[:5]))


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """A checked request. If `single` is true, the inputs were one object, and the response is one result."""

    samples: list[Sample]
    parameters: Parameters
    single: bool

    def to_json(self) -> bytes:
        """Return the request as the JSON text that is sent to the shards."""
        inputs = [{"question": one.question_text, "context": one.context_text} for one in self.samples]
        return orjson.dumps({"inputs": inputs, "parameters": self.parameters.to_dict()})


def parse_request(document: object, limits: PipelineLimits) -> PipelineRequest:
    """Check the decoded JSON of a request body.

    Raises:
        InvalidRequest: the body has faults; the exception has the first 50 faults.
        InputTooLong: a text or list exceeds its limit; the message names the first such value.
    """
    if not isinstance(document, Mapping):
        raise InvalidRequest([("#", f"must be an object with inputs, got {_kind(document)}")])
    faults = [(_pointer(name), f"is unknown, known are {', '.join(_MEMBERS)}") for name in _unknown(document, _MEMBERS)]
    inputs = document.get("inputs")
    items: list[Any] = inputs if isinstance(inputs, list) else [inputs]
    if "inputs" not in document:
        faults.append(("#/inputs", "is required"))
    elif not items:
        faults.append(("#/inputs", "must not be empty"))
    elif len(items) > limits.pairs:
        raise InputTooLong(f"inputs has {len(items)} pairs, the limit is {limits.pairs}")
    else:
        for number, item in enumerate(items):
            faults += _faults(item, "#/inputs" if item is inputs else f"#/inputs/{number}", limits)
    # `options` are accepted and ignored, because clients of Hugging Face send them.
    given = {name: {} if document.get(name) is None else document[name] for name in ("parameters", "options")}
    faults += [
        (f"#/{name}", f"must be an object, got {_kind(value)}")
        for name, value in given.items()
        if not isinstance(value, Mapping)
    ]
    parameters = given["parameters"]
    if isinstance(parameters, Mapping):
        faults += _parameter_faults(parameters, limits)
    if faults:
        raise InvalidRequest(faults)
    samples = [Sample(item["question"], item["context"]) for item in items]
    checked = Parameters.of({name: value for name, value in parameters.items() if name != "padding"})
    return PipelineRequest(samples, checked, not isinstance(inputs, list))


def _faults(item: object, where: str, limits: PipelineLimits) -> list[tuple[str, str]]:
    if not isinstance(item, Mapping):
        return [(where, f"must be an object with question and context, got {_kind(item)}")]
    faults = [
        (f"{where}{_pointer(name)[1:]}", "is unknown, known are question and context")
        for name in _unknown(item, _FIELDS)
    ]
    for name, most in zip(_FIELDS, (limits.question_chars, limits.context_chars), strict=True):
        text = item.get(name)
        if name not in item:
            faults.append((f"{where}/{name}", "is required"))
        elif not isinstance(text, str):
            faults.append((f"{where}/{name}", f"must be a string, got {_kind(text)}"))
        elif not text:
            faults.append((f"{where}/{name}", "must not be empty"))
        elif not is_unicode(text):
            faults.append((f"{where}/{name}", "is not valid Unicode"))
        elif len(text) > most:
            raise InputTooLong(f"{where.removeprefix('#/')}/{name} has {len(text)} characters, the limit is {most}")
    return faults


def _parameter_faults(given: Mapping[str, Any], limits: PipelineLimits) -> list[tuple[str, str]]:
    faults = []
    for name, value in given.items():
        try:
            if name == "padding":
                check_padding(value)
            elif name == "top_k" and isinstance(value, int) and value > limits.top_k:
                raise InvalidInput(f"top_k must be from 1 to {limits.top_k}, got {value}")
            else:
                Parameters.of({name: value})
        except InvalidInput as error:
            faults.append((f"#/parameters{_pointer(name)[1:]}", str(error)))
            if len(faults) == _MOST_ERRORS:
                break
    return faults


def _unknown(given: Mapping[Any, Any], known: Sequence[str]) -> list[Any]:
    """Return the first `_MOST_ERRORS` unknown names. A body can contain a million unknown names."""
    return list(islice((name for name in given if name not in known), _MOST_ERRORS))


def _pointer(name: object) -> str:
    return "#/" + str(name)[:100].replace("~", "~0").replace("/", "~1")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return {str: "string", int: "integer", float: "number", dict: "object", list: "array"}.get(type(value), "null")
