"""Turns all input forms of transformers' question-answering pipeline into samples.

The module accepts and refuses the same inputs as transformers. Its exceptions have two base classes: `InvalidInput`, as
everywhere in this package, and the class that transformers raised, `ValueError` or `KeyError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

from qa_cluster.errors import InvalidInput

_FIELDS = ("question", "context")


class InvalidValue(InvalidInput, ValueError):
    """An argument has a value that the pipeline cannot use."""


class InvalidKey(InvalidInput, KeyError):
    """A name is unknown to the pipeline, or a required name is missing."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # `KeyError.__str__` would quote the message


@dataclass(frozen=True, slots=True)
class Sample:
    """A question and a context, with the field names of a `SquadExample` of transformers."""

    question_text: str
    context_text: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The samples of one call.

    Attributes:
        lazy: whether the pipeline yields results instead of returning a list.
        single: whether the pipeline returns the only result without a list.
    """

    samples: Iterable[Sample]
    lazy: bool = False
    single: bool = False


def inputs_of(args: tuple[Any, ...], named: Mapping[str, Any]) -> Inputs:
    """Return the samples of a call. `args` are its positional arguments, `named` its X, data, question and context."""
    given = _given(args, named)
    if isinstance(given, GeneratorType) or _is_dataset(given):
        return Inputs((_sample(item) for item in _items(given)), lazy=True)
    if isinstance(given, Mapping):
        given = [given]
    elif isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidValue(
            f"cannot find questions and contexts in {_shown(given)}: give question= and context=, or "
            "dictionaries with these keys"
        )
    items = [_samples(item) for item in given]
    if len(items) == 1:
        only = items[0]
        return Inputs(only) if isinstance(only, list) else Inputs([only], single=True)
    samples = []
    for number, item in enumerate(items):
        if isinstance(item, list):
            raise InvalidValue(f"item {number} contains lists of questions and contexts: give one dictionary for each")
        samples.append(item)
    return Inputs(samples)


def create_sample(question: str | list[str], context: str | list[str]) -> Sample | list[Sample]:
    """Return one sample for two strings, or a list of samples for a list of questions.

    For a list of questions, `context` is a list of the same length, or one context for all questions.
    """
    if not isinstance(question, list):
        return _checked(question, context)
    contexts = [context] * len(question) if isinstance(context, str) else context
    if not isinstance(contexts, list):
        raise InvalidValue(f"context must be a string or a list of them, got {_shown(context)}")
    if len(question) != len(contexts):
        raise InvalidValue(f"{len(question)} questions and {len(contexts)} contexts: their numbers must be the same")
    return [_checked(one, other) for one, other in zip(question, contexts, strict=True)]


def _given(args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return the inputs of a call: the positional arguments, the argument `X` or `data`, or samples from `question`
    and `context`.
    """
    if len(args) == 2 and all(isinstance(item, str) for item in args):
        return dict(zip(_FIELDS, args, strict=True))
    if args:
        return args[0] if len(args) == 1 else list(args)
    for name in ("X", "data"):
        if name in named:
            return named[name]
    missing = [name for name in _FIELDS if name not in named]
    if missing:
        raise InvalidValue(f"{' and '.join(missing)} missing: give question= and context=")
    question, context = named["question"], named["context"]
    if isinstance(question, str) and isinstance(context, str):
        return {"question": question, "context": context}
    if isinstance(question, list) and isinstance(context, str | list):
        return create_sample(question, context)
    raise InvalidValue(
        f"question is {_shown(question)} and context is {_shown(context)}: give two strings, two lists of the same "
        "length, or a list of questions and one context"
    )


def _samples(item: Any) -> Sample | list[Sample]:
    """Return the sample of one item, or the samples of a dictionary of lists."""
    if isinstance(item, Sample):
        return item
    if hasattr(item, "question_text") and hasattr(item, "context_text"):
        return _checked(item.question_text, item.context_text)
    if not isinstance(item, Mapping):
        raise InvalidValue(f"{_shown(item)} must be a dictionary with question and context, or a SquadExample")
    for name in _FIELDS:
        if name not in item:
            raise InvalidKey(f"a dictionary lacks the key {name!r}: it must have question and context")
        if item[name] is None:
            raise InvalidValue(f"`{name}` cannot be None")
    return create_sample(item["question"], item["context"])


def _sample(item: Any) -> Sample:
    found = _samples(item)
    if isinstance(found, list):
        raise InvalidValue("an item contains lists of questions and contexts: yield one dictionary for each")
    return found


def _checked(question: Any, context: Any) -> Sample:
    for name, value in zip(_FIELDS, (question, context), strict=True):
        if not isinstance(value, str):
            raise InvalidValue(f"`{name}` must be a string, got {_shown(value)}")
        if not value:
            raise InvalidValue(f"`{name}` cannot be empty")
    return Sample(question, context)


def _is_dataset(value: Any) -> bool:
    """Return whether the value is a dataset of torch. The check is by name, because torch may not be installed."""
    return any(
        base.__name__ in ("Dataset", "IterableDataset") and base.__module__.startswith("torch.utils.data")
        for base in type(value).__mro__
    )


def _items(given: Any) -> Iterator[Any]:
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return (given[index] for index in range(len(given)))  # iter() needs an IndexError at the end
    return iter(given)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {ascii(value)[:80]}"
