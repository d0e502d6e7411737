"""The worker's interface to a TorchScript in a separate process (`inference.workers.isolated`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial

from ...inference.backends.base import RuntimeLimits
from ...inference.model_file import memory_file
from ...inference.tensors import Array
from ...inference.workers.isolated import IsolatedModel, IsolatedProcesses
from ...inference.workers.process import InferenceProcess
from ...shard.failures import error_line
from .script_caller import ScriptCaller, TorchScriptCall, pack, unpack

_PROGRAM = "qa_cluster.gears.scripts.torch.child"


class IsolatedScript(IsolatedModel):
    """A script that a separate process compiles and calls. It has the interface of `TorchScript`."""

    def __init__(
        self,
        processes: IsolatedProcesses,
        ref: int,
        *,
        device: str,
        source: str,
        entry_points: Sequence[str],
        limits: RuntimeLimits,
    ) -> None:
        self.device = device
        file = f"{json.dumps(list(entry_points))}\n{source}".encode()
        load = {"backend": "SCRIPT", "device": device, "limits": astuple(limits)}
        super().__init__(processes, ref, load, lambda: memory_file([file]), noun="script", program=_PROGRAM)

    def call(self, call: TorchScriptCall, caller: ScriptCaller) -> list[Array]:
        """Call a function in the separate process, and wait for its outputs.

        Meanwhile, `caller` runs the commands and models that the script requests, on this thread.
        """
        request = pack([call.function, list(call.keys), list(call.arguments), call.n_outputs])
        return self.ask({"op": "call"}, [request, *call.tensors], partial(_answer, caller))


def _answer(caller: ScriptCaller, process: InferenceProcess, number: int, arrays: list[Array]) -> None:
    """Answer a request of a running script to run a command or a model.

    `number` is the number of the script's call. `arrays` are the request (`pack`) and the input tensors of a model. An
    error is sent to the script as the answer.
    """
    request = unpack(arrays[0])
    outputs: list[Array] = []
    value = error = None
    try:
        if "words" in request:
            value = caller.command(request["words"])
        else:
            outputs = caller.run_model(request["model"], arrays[1:], request["outputs"])
    except Exception as failure:  # the script must get every error
        error = error_line(failure)
    process.tell({"op": "reply", "to": number}, [pack([value, error]), *outputs])
