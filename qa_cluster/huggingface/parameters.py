"""The parameters of the question-answering pipeline of transformers: names, defaults and limits.

The local pipeline, the REST service, its OpenAPI description and the shards all use this one table.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from qa_cluster.errors import InvalidInput

PADDINGS = ("longest", "max_length", "do_not_pad")
_LARGEST = 1 << 31


def _integer(default: int | None, minimum: int, help: str) -> Any:
    return field(default=default, metadata={"kind": "integer", "minimum": minimum, "help": help})


def _flag(default: bool, help: str) -> Any:
    return field(default=default, metadata={"kind": "boolean", "minimum": None, "help": help})


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters for reading a context. `Parameters.of` checks and creates them."""

    top_k: int = _integer(1, 1, "limit of answers")
    doc_stride: int | None = _integer(
        None, 0, "tokens that neighbouring windows share; default: half of max_seq_len, at most 128"
    )
    max_answer_len: int = _integer(15, 1, "limit of tokens in an answer")
    max_seq_len: int | None = _integer(
        None, 1, "limit of tokens in a window, with question and special tokens; default: 384, or the model's limit"
    )
    max_question_len: int | None = _integer(None, 1, "tokens after which a question is cut off; default: no cut")
    handle_impossible_answer: bool = _flag(False, "whether the result may be the empty answer")
    align_to_words: bool = _flag(True, "whether answers start and end at whole words")

    @classmethod
    def of(cls, given: Mapping[str, Any], *, default: Self | None = None) -> Self:
        """Return the parameters in `given`; InvalidInput names the first wrong parameter.

        A parameter that is missing or None has its value from `default`. Without `default`, it has the default of this
        class.
        """
        known = {item.name: item for item in fields(cls)}
        values = {name: getattr(default, name) for name in known} if default is not None else {}
        for name, value in given.items():
            if name not in known:
                raise InvalidInput(f"unknown parameter {_shown(name)}, known are {', '.join(known)}")
            if value is not None:
                values[name] = _checked(name, value, known[name].metadata)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters that differ from the defaults."""
        return {
            item.name: getattr(self, item.name) for item in fields(self) if getattr(self, item.name) != item.default
        }


def _checked(name: str, value: Any, row: Mapping[str, Any]) -> Any:
    if row["kind"] == "boolean":
        if not isinstance(value, int | np.bool_) or value not in (0, 1):
            raise InvalidInput(f"{name} must be true or false, got {_shown(value)}")
        return bool(value)
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidInput(f"{name} must be an integer, got {_shown(value)}")
    if not row["minimum"] <= number < _LARGEST:
        raise InvalidInput(f"{name} must be from {row['minimum']} to {_LARGEST - 1}, got {number}")
    return number


def check_padding(value: object) -> None:
    """Check a value of `padding`, which has no effect on answers.

    Raises InvalidInput if transformers did not accept the value.
    """
    if value is not None and not isinstance(value, bool) and value not in PADDINGS:
        raise InvalidInput(f"padding must be one of {', '.join(PADDINGS)}, True or False, got {_shown(value)}")


def _shown(value: object) -> str:
    return reprlib.repr(value)[:100]  # `repr` raises RecursionError on deeply nested lists
