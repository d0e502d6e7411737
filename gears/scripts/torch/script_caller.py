"""The call of a TorchScript, and the requests of the running script to its shard, with the rights of its caller.

A script in a separate process sends these requests to the worker as arrays: first JSON, and then tensors (`pack`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...inference.served import ServedModel
from ...inference.tensors import Array
from ...shard.failures import GearsError
from ...shard.forbidden import refuse_forbidden
from ...shard.link import Argument, Reply
from ..host.script_host import ScriptHost

_FAILED = "Redis command returned an error: "


@dataclass(frozen=True, slots=True)
class TorchScriptCall:
    """One call of a script's function with the rights of `user` (empty: the worker's own rights).

    `n_outputs` is the required number of outputs; None: any number.
    """

    function: str
    tensors: Sequence[Array]
    keys: Sequence[str] = ()
    arguments: Sequence[str] = ()
    user: str = ""
    n_outputs: int | None = None


class ScriptCaller(Protocol):
    """Runs the requests of a script on the shard."""

    def command(self, words: Sequence[str]) -> Any:
        """Run a command; return its reply as a value for torch, with tuples instead of lists."""

    def run_model(self, key: str, inputs: list[Array], n_outputs: int) -> list[Array]:
        """Run the model at a key of the shard. Raise an error if it does not have exactly `n_outputs` outputs."""


class ShardCaller:
    """Runs requests in the worker, on the calling thread, with the rights of `user` (empty: the worker's rights).

    `find_model` returns the loaded model of a reference, and may block.
    """

    def __init__(self, host: ScriptHost, find_model: Callable[[int], ServedModel], user: str) -> None:
        self._host = host
        self._find_model = find_model
        self._user = user

    def command(self, words: Sequence[str]) -> Any:
        """Run a command; return its reply as a value for torch. Raise GearsError if the command fails."""
        try:
            return _value(self._execute(words))
        except GearsError as error:
            raise GearsError(f"{_FAILED}{error}") from error
        except UnicodeDecodeError as error:
            raise GearsError(f"{_FAILED}ERR the reply to {words[0]} is not UTF-8 text") from error

    def run_model(self, key: str, inputs: list[Array], n_outputs: int) -> list[Array]:
        """Run a model on this thread, not in a device's queue, because the script may be using the model's device."""
        try:
            if self._user:
                self._execute(("AI.MODELGET", key, "META"))  # checks the user's right to use the model
            ref = int(self._host.links.link().execute("QA.MODELREF", key)[0])
        except GearsError as error:
            raise GearsError(f"{_FAILED}{error}") from error
        model = self._find_model(ref)
        outputs = model.compiled.run(model.check(inputs))
        if len(outputs) != n_outputs:
            raise GearsError(f"ERR model {key} has {len(outputs)} outputs, but {n_outputs} were requested")
        return outputs

    def _execute(self, words: Sequence[Argument]) -> Reply:
        refuse_forbidden(str(words[0]))
        whole = ("QA.AS", self._user, *words) if self._user else tuple(words)
        return self._host.links.link().execute(*whole)


def _value(reply: Reply) -> Any:
    """Convert a reply to a value for torch. Lists become tuples, because their items may have different types."""
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return tuple(_value(part) for part in reply)
    return str(reply) if isinstance(reply, Exception) else reply


def pack(value: Any) -> Array:
    """Return a value of JSON types as an array of bytes. The JSON head of a message between the worker and a process
    has a size limit, but the arrays of the message have none.
    """
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def unpack(array: Array) -> Any:
    """Return the value that `pack` has converted to an array."""
    return json.loads(array.tobytes())
