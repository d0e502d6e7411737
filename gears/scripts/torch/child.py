"""The program of a TorchScript's separate process: ``python -m qa_cluster.gears.scripts.torch.child``.

It is a model process (`InferenceChild`) that also compiles and calls scripts. A script may run commands and models. The
process sends these requests to the shard's worker, which runs them with the rights of the script's caller.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from qa_cluster.errors import InferenceFailed

from ...inference.backends.base import CompiledModel, OutOfMemory, Port, RuntimeLimits
from ...inference.backends.choose import torch_missing
from ...inference.model_file import ModelFile
from ...inference.tensors import Array
from ...inference.workers.child import InferenceChild, main
from ...inference.workers.frames import Head
from ...shard.failures import GearsError
from ...shard.memory import is_exhaustion
from .script_caller import ScriptCaller, TorchScriptCall, pack, unpack


class _LoadedScript:
    """A compiled script with the interface of a model, but without inputs and outputs."""

    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()

    def __init__(self, device: str, source: str, entry_points: Sequence[str], limits: RuntimeLimits) -> None:
        try:
            from ...inference.backends.torch import set_threads
            from .torch_scripts import TorchScript
        except ImportError as error:
            raise torch_missing(error) from error
        set_threads(limits)
        self._script = TorchScript(device, source, entry_points)

    def call(self, call: TorchScriptCall, caller: ScriptCaller) -> list[Array]:
        return self._script.call(call, caller)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        raise InferenceFailed("a script has no run: call one of its functions")


class ScriptChild(InferenceChild):
    """The script of this process, and its connection to the shard's worker.

    The worker calls functions of the script. For each running call, `_answers` has a queue of the worker's replies to
    the requests of the script.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._answers: dict[int, SimpleQueue[list[Array]]] = {}

    def _compiled(self, backend: str, device: str, file: ModelFile, limits: RuntimeLimits) -> CompiledModel:
        source, entry_points = unpack_script(Path(file.path).read_bytes())
        return _LoadedScript(device, source, entry_points, limits)

    def _other(self, head: Head, arrays: Sequence[Array]) -> None:
        if head["op"] == "call":
            self._runners.submit(self._answer, head, partial(self._call, head, arrays))
        elif head["op"] == "reply" and (waiting := self._answers.get(head["to"])) is not None:
            waiting.put(list(arrays))

    def _call(self, head: Head, arrays: Sequence[Array]) -> tuple[Head, Sequence[Array]]:
        script = self._models[head["model"]]
        assert isinstance(script, _LoadedScript)
        function, keys, arguments, n_outputs = unpack(arrays[0])
        call = TorchScriptCall(function, arrays[1:], keys, arguments, n_outputs=n_outputs)
        number: int = head["id"]
        self._answers[number] = SimpleQueue()
        try:
            return {}, script.call(call, _WorkerCaller(self, number))
        except GearsError as error:
            if is_exhaustion(error):
                raise OutOfMemory(str(error)) from error
            raise
        finally:
            del self._answers[number]

    def ask(self, number: int, request: Any, arrays: Sequence[Array] = ()) -> tuple[Any, list[Array]]:
        """Send a request of the running call `number` to the worker; wait for the reply and return it.

        The reply has a value of JSON types, and arrays. Raises GearsError if the worker replies with an error.
        """
        self._send({"id": number, "command": True}, [pack(request), *arrays])
        reply = self._answers[number].get()
        value, error = unpack(reply[0])
        if error is not None:
            raise GearsError(error)
        return value, reply[1:]


class _WorkerCaller:
    """Sends the requests of the script's call `number` to the worker."""

    def __init__(self, child: ScriptChild, number: int) -> None:
        self._child = child
        self._number = number

    def command(self, words: Sequence[str]) -> Any:
        return _as_tuples(self._child.ask(self._number, {"words": list(words)})[0])

    def run_model(self, key: str, inputs: list[Array], n_outputs: int) -> list[Array]:
        return self._child.ask(self._number, {"model": key, "outputs": n_outputs}, inputs)[1]


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def unpack_script(data: bytes) -> tuple[str, list[str]]:
    """Return the source and the entry points of a script's file.

    The first line of the file has the entry points as JSON.
    """
    entry_points, _, source = data.decode().partition("\n")
    return source, json.loads(entry_points)


if __name__ == "__main__":
    sys.exit(main(ScriptChild))
