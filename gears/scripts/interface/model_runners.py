"""Runners of `redisAI`: one run of a model, or one call of a TorchScript's function. A runner can be used once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...inference.tensors import Array, Tensor
from ...shard.failures import GearsError
from ..host.executions import current
from ..torch.script_caller import TorchScriptCall
from .runtime import Runtime, current_runtime


def caller() -> str:
    """Return the ACL user that determines the calling function's rights; empty: the worker's own rights."""
    execution = current.get()
    return execution.user if execution is not None else ""


def _waiting_runtime() -> Runtime:
    """Return the runtime for a function that waits for a run on its own thread. Raise GearsError inside an atomic
    block.
    """
    runtime = current_runtime()
    if runtime.host.atomic.entered_here:
        raise GearsError("ERR models and scripts can not be run inside an atomic block: run them before it")
    return runtime


class _Runner:
    """The common part of runners. Callers add inputs and outputs, and then run the runner.

    Outputs are only counted. Without added outputs, a run returns all outputs of the model or the function.
    """

    _kind = "PyGraphRunner"

    def __init__(self) -> None:
        self._inputs: list[Array] | None = []
        self._outputs = 0

    def _open(self) -> list[Array]:
        if self._inputs is None:
            raise GearsError(f"{self._kind} is invalid")
        return self._inputs

    def _close(self) -> list[Array]:
        inputs = self._open()
        self._inputs = None
        return inputs

    def add_input(self, tensor: object) -> None:
        """Add the next input. Raise GearsError if the value is not a tensor, or if the runner was already used."""
        if not isinstance(tensor, Tensor):
            raise GearsError(f"ERR an input must be a tensor, got {type(tensor).__name__}")
        self._open().append(tensor.array)

    def add_output(self) -> None:
        """Request one more output. Raise GearsError if the runner was already used."""
        self._open()
        self._outputs += 1


class ModelRunner(_Runner):
    """One run of a model."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key
        runtime = current_runtime()
        self._model = runtime.host.on_loop(runtime.model_keys.reference, key)

    async def run(self) -> list[Tensor]:
        """Run the model and return the requested outputs. Other work of the shard continues meanwhile."""
        return self._chosen(await current_runtime().models.run(self._model.ref, self._close()))

    def run_blocking(self) -> list[Tensor]:
        """Run the model while the calling thread waits, and return the requested outputs.

        Raises GearsError if the model's backend is not TORCH, or if the caller is inside an atomic block.
        In a coroutine, this call also blocks all other coroutines.
        """
        if self._model.backend.upper() != "TORCH":
            raise GearsError("Cannot execute onnxruntime model synchronously, use async execution instead")
        return self._chosen(_waiting_runtime().models.run_blocking(self._model.ref, self._close()))

    def _chosen(self, arrays: Sequence[Array]) -> list[Tensor]:
        if self._outputs > len(arrays):
            raise GearsError(f"ERR model {self.key} has {len(arrays)} outputs, but {self._outputs} were requested")
        return [Tensor(array) for array in arrays[: self._outputs or len(arrays)]]


class ScriptRunner(_Runner):
    """One call of a function of a script."""

    _kind = "PyTorchScriptRunner"

    def __init__(self, key: str, function: str) -> None:
        super().__init__()
        self._ref = current_runtime().torch_scripts.reference(key)
        self._function = function

    async def run(self) -> list[Tensor]:
        """Call the function and return its outputs. Other work of the shard continues meanwhile."""
        arrays, _ = await current_runtime().torch_scripts.run(self._ref, self._call())
        return [Tensor(array) for array in arrays]

    def run_blocking(self) -> list[Tensor]:
        """Call the function while the calling thread waits, and return its outputs.

        Raises GearsError if the caller is inside an atomic block.
        """
        arrays = _waiting_runtime().torch_scripts.run_blocking(self._ref, self._call())
        return [Tensor(array) for array in arrays]

    def _call(self) -> TorchScriptCall:
        return TorchScriptCall(self._function, self._close(), user=caller(), n_outputs=self._outputs or None)


def createModelRunner(key: str) -> ModelRunner:
    """Prepare a run of the model at `key`."""
    return ModelRunner(key)


def modelRunnerAddInput(runner: ModelRunner, name: str | Tensor, tensor: Tensor | str) -> int:
    """Add the next input; return 1. The name is ignored, because the order of the calls determines the input. The
    tensor may come before the name.
    """
    runner.add_input(tensor if isinstance(tensor, Tensor) else name)
    return 1


def modelRunnerAddOutput(runner: ModelRunner, name: str = "") -> int:
    """Request the next output; return 1. The name is ignored, because outputs are returned in the model's order."""
    runner.add_output()
    return 1


def modelRunnerRun(runner: ModelRunner) -> list[Tensor]:
    """Run a TORCH model, wait for the end of the run, and return the outputs.

    For all other models, use `modelRunnerRunAsync`.
    """
    return runner.run_blocking()


def modelRunnerRunAsync(runner: ModelRunner) -> asyncio.Future[list[Tensor]]:
    """Start to run the model; return a future of the outputs, which the caller must await."""
    return current_runtime().host.await_on_loop(runner.run())


def createScriptRunner(key: str, function: str) -> ScriptRunner:
    """Prepare a call of a function of the script at `key`."""
    return ScriptRunner(key, function)


def scriptRunnerAddInput(runner: ScriptRunner, tensor: Tensor) -> int:
    """Add the next input tensor of the function; return 1."""
    runner.add_input(tensor)
    return 1


def scriptRunnerAddInputList(runner: ScriptRunner, tensors: Sequence[Tensor]) -> int:
    """Add the tensors of the function's last parameter, which is a list; return 1."""
    for tensor in tensors:
        runner.add_input(tensor)
    return 1


def scriptRunnerAddOutput(runner: ScriptRunner) -> int:
    """Request one more output of the function; return 1.

    If outputs were requested, the function must return exactly this number of outputs. Otherwise the call fails.
    """
    runner.add_output()
    return 1


def scriptRunnerRun(runner: ScriptRunner) -> list[Tensor]:
    """Call the function of the script, wait for the end of the call, and return the outputs."""
    return runner.run_blocking()


def scriptRunnerRunAsync(runner: ScriptRunner) -> asyncio.Future[list[Tensor]]:
    """Start to call the function; return a future of the outputs, which the caller must await."""
    return current_runtime().host.await_on_loop(runner.run())
