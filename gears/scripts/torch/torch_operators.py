"""Provides `redis.execute`, `redis.asList` and `redisAI.model_execute` to TorchScripts, as operators of torch.

A call reaches the shard on the thread that runs the script, with the rights of the script's caller. Because TorchScript
has no variable argument lists, `redis.execute` is one operator per number of arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...inference.backends.torch import to_array, to_torch
from ...inference.served import ServedModel
from ...shard.failures import GearsError
from ...shard.forbidden import refuse_forbidden
from ...shard.link import Argument, Reply
from ..host.script_host import ScriptHost

MAX_ARGUMENTS = 32
_FAILED = "Redis command returned an error: "
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class _Caller:
    """The user whose script the current thread runs, and how the script reaches the shard."""

    host: ScriptHost
    find_model: Callable[[int], ServedModel]
    user: str


_local = threading.local()


@contextmanager
def calling_for(host: ScriptHost, find_model: Callable[[int], ServedModel], user: str) -> Iterator[None]:
    """Let the operators work on this thread, for `user` (empty: with the worker's own rights)."""
    _local.caller = _Caller(host, find_model, user)
    try:
        yield
    finally:
        _local.caller = None


def _caller() -> _Caller:
    caller: _Caller | None = getattr(_local, "caller", None)
    if caller is None:
        raise GearsError("ERR commands can be run by the functions of a stored script only, on their own thread")
    return caller


def _command(caller: _Caller, words: Sequence[Argument]) -> Reply:
    refuse_forbidden(str(words[0]))
    whole = ("QA.AS", caller.user, *words) if caller.user else tuple(words)
    return caller.host.links.link().execute(*whole)


def _words(values: Sequence[Any]) -> Iterator[Argument]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _words(value)
        elif isinstance(value, (str, int, float)):
            yield str(value)
        else:
            raise GearsError(f"an argument must be a string, a number or a list of them, not {type(value).__name__}")


def _value(reply: Reply) -> Any:
    """A reply as a value for torch; lists become tuples, whose parts may differ in type."""
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return tuple(_value(part) for part in reply)
    return str(reply) if isinstance(reply, Exception) else reply


def _execute(command: str, *arguments: Any) -> Any:
    caller = _caller()
    try:
        return _value(_command(caller, [command, *_words(arguments)]))
    except GearsError as error:
        raise GearsError(f"{_FAILED}{error}") from error
    except UnicodeDecodeError as error:
        raise GearsError(f"{_FAILED}ERR the reply to {command} is not UTF-8 text") from error


def _as_list(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise GearsError(f"redis.asList takes a reply that is a list, not {type(value).__name__}")
    return list(value)


def _model_execute(key: str, inputs: list[torch.Tensor], n_outputs: int) -> list[torch.Tensor]:
    caller = _caller()
    try:
        if caller.user:
            _command(caller, ("AI.MODELGET", key, "META"))  # may this user use the model?
        ref = int(caller.host.links.link().execute("QA.MODELREF", key)[0])
    except GearsError as error:
        raise GearsError(f"{_FAILED}{error}") from error
    model = caller.find_model(ref)
    # it runs on this thread: the model's device may be the script's own, which the script occupies
    outputs = model.compiled.run(model.check([to_array(tensor) for tensor in inputs]))
    if len(outputs) != n_outputs:
        raise GearsError(f"ERR model {key} has {len(outputs)} outputs, but {n_outputs} were requested")
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
        # without this, torch drops calls whose result is not used
        library.define(name + signature, alias_analysis="CONSERVATIVE")
        library.impl(name, function, "CompositeImplicitAutograd")
    return [redis, redis_ai]


# torch forgets the operators of a library when its object is deleted
_libraries = _define()
