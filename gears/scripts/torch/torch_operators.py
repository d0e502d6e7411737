"""Provides `redis.execute`, `redis.asList` and `redisAI.model_execute` to TorchScripts, as operators of torch.

The script's caller (`script_caller`) runs each call on the shard, on the thread of the script. TorchScript has no
variable argument lists, so there is a `redis.execute` operator for each number of arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...inference.backends.torch import to_array, to_torch
from ...shard.failures import GearsError
from .script_caller import ScriptCaller

MAX_ARGUMENTS = 32
_CPU = torch.device("cpu")
_local = threading.local()


@contextmanager
def calling_for(caller: ScriptCaller) -> Iterator[None]:
    """A context in which the operators on this thread send the script's requests to `caller`."""
    _local.caller = caller
    try:
        yield
    finally:
        _local.caller = None


def _caller() -> ScriptCaller:
    caller: ScriptCaller | None = getattr(_local, "caller", None)
    if caller is None:
        raise GearsError("ERR commands can be run by the functions of a stored script only, on their own thread")
    return caller


def _words(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _words(value)
        elif isinstance(value, (str, int, float)):
            yield str(value)
        else:
            raise GearsError(f"an argument must be a string, a number or a list of them, not {type(value).__name__}")


def _execute(command: str, *arguments: Any) -> Any:
    return _caller().command([command, *_words(arguments)])


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise GearsError(f"redis.asList takes a reply that is a list, not {type(value).__name__}")
    return list(value)


def _model_execute(key: str, inputs: list[torch.Tensor], n_outputs: int) -> list[torch.Tensor]:
    outputs = _caller().run_model(key, [to_array(tensor) for tensor in inputs], n_outputs)
    return [to_torch(output, _CPU) for output in outputs]


def _define() -> list[torch.library.Library]:
    redis, redis_ai = torch.library.Library("redis", "DEF"), torch.library.Library("redisAI", "DEF")
    signatures: list[tuple[torch.library.Library, str, str, Callable[..., Any]]] = [
        (redis, f"execute.args{n}", f"(str command{''.join(f', Any a{i}' for i in range(n))}) -> Any", _execute)
        for n in range(MAX_ARGUMENTS + 1)
    ]
    signatures.append((redis, "asList", "(Any value) -> Any[]", _as_list))
    signatures.append(
        (redis_ai, "model_execute", "(str key, Tensor[] inputs, int n_outputs) -> Tensor[]", _model_execute)
    )
    for library, name, signature, function in signatures:
        # without this, torch drops calls with unused results
        library.define(name + signature, alias_analysis="CONSERVATIVE")
        library.impl(name, function, "CompositeImplicitAutograd")
    return [redis, redis_ai]


# a reference, because torch removes a library's operators when the library is deleted
_libraries = _define()
