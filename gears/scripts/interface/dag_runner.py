"""The DAG runner of `redisAI`. It connects tensors, models and scripts by name, like `AI.DAGEXECUTE`.

>>> import redisAI  # doctest: +SKIP
>>> runner = redisAI.createDAGRunner()  # doctest: +SKIP
>>> runner.Input("a", tensor).ModelRun(name="model{06S}", inputs=["a"], outputs=["b"]).TensorGet("b")  # doctest: +SKIP
>>> (b,) = await runner.Run()  # doctest: +SKIP
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from ...inference.tensors import Array, Tensor, parse_values
from ...shard.failures import GearsError
from ..torch.dag import Dag, DagStep
from .model_runners import caller
from .runtime import current_runtime


class DAGRunner:
    """One run of several steps. After a second write of a name, later steps use the second tensor."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._count = 0
        self._given: dict[int, Array] = {}
        self._steps: list[DagStep] = []
        self._wanted: list[int] = []
        self._used = False

    def _open(self) -> None:
        if self._used:
            raise GearsError("PyDAGRunner is invalid")

    def _write(self, name: str) -> int:
        slot = self._names[name] = self._count
        self._count += 1
        return slot

    def _read(self, name: str) -> int:
        slot = self._names.get(name)
        if slot is None:
            raise GearsError(f"ERR INPUT key cannot be found in DAG: {name}")
        return slot

    def Input(self, name: str, tensor: Tensor) -> DAGRunner:
        """Add an input tensor of the run, which later steps can read by its name."""
        self._open()
        if not isinstance(tensor, Tensor):
            raise GearsError(f"ERR {name} must be a tensor, got {type(tensor).__name__}")
        self._given[self._write(name)] = tensor.array
        return self

    def TensorSet(self, name: str, tensor: Tensor) -> DAGRunner:
        """Do the same as `Input`."""
        return self.Input(name, tensor)

    def TensorGet(self, name: str) -> DAGRunner:
        """Make `Run` return the tensor that has this name now. A later write of the name does not change the choice.

        Raises GearsError if no input or earlier step has written the name.
        """
        self._open()
        self._wanted.append(self._read(name))
        return self

    def ModelRun(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> DAGRunner:
        """Add a run of the model at the key `name`.

        The model gets the tensors with the names `inputs`, and its outputs get the names `outputs`. Raises GearsError
        if an input has no tensor yet, or if the key has no model.
        """
        self._open()
        given = [self._read(item) for item in inputs]
        runtime = current_runtime()
        ref = runtime.host.on_loop(runtime.model_keys.reference, name).ref
        self._steps.append(DagStep(ref, given, [self._write(item) for item in outputs]))
        return self

    def ScriptRun(
        self,
        name: str,
        func: str,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        *,
        keys: Sequence[str] = (),
        args: Sequence[str] = (),
    ) -> DAGRunner:
        """Add a call of the function `func` of the script at the key `name`.

        The function gets the tensors with the names `inputs`, the texts `keys` and the texts `args`. Its outputs get
        the names `outputs`. Raises GearsError if an input has no tensor yet, or if the key has no script.
        """
        self._open()
        given = [self._read(item) for item in inputs]
        ref = current_runtime().torch_scripts.reference(name)
        written = [self._write(item) for item in outputs]
        self._steps.append(DagStep(ref, given, written, None, func, list(keys), list(args)))
        return self

    def OpsFromString(self, operations: str) -> DAGRunner:
        """Add operations in the syntax of `AI.DAGEXECUTE`: `|> AI.TENSORSET .. |> AI.MODELEXECUTE ..`."""
        for operation in operations.split("|>"):
            words = operation.split()
            if words:
                self._add(words[0].upper(), iter(words[1:]))
        return self

    def _add(self, command: str, words: Iterator[str]) -> None:
        handler = {
            "AI.TENSORSET": self._tensor_set,
            "AI.TENSORGET": lambda words: self.TensorGet(next(words)),
            "AI.MODELEXECUTE": self._model_execute,
            "AI.SCRIPTEXECUTE": self._script_execute,
        }.get(command)
        if handler is None:
            raise GearsError(f"ERR Unsupported command within DAG: {command}")
        try:
            handler(words)
        except StopIteration:
            raise GearsError(f"ERR wrong number of arguments for '{command}' command") from None

    def _tensor_set(self, words: Iterator[str]) -> None:
        name, dtype = next(words), next(words)
        dims: list[str] = []
        for word in words:
            if word.upper() == "VALUES":
                break
            dims.append(word)
        self.TensorSet(name, Tensor(parse_values(dtype, dims, list(words))))

    def _model_execute(self, words: Iterator[str]) -> None:
        key = next(words)
        scopes = _scopes("AI.MODELEXECUTE", words, ("INPUTS", "OUTPUTS"))
        self.ModelRun(key, scopes["INPUTS"], scopes["OUTPUTS"])

    def _script_execute(self, words: Iterator[str]) -> None:
        key, function = next(words), next(words)
        scopes = _scopes("AI.SCRIPTEXECUTE", words, ("KEYS", "INPUTS", "ARGS", "OUTPUTS"))
        self.ScriptRun(key, function, scopes["INPUTS"], scopes["OUTPUTS"], keys=scopes["KEYS"], args=scopes["ARGS"])

    def Run(self) -> asyncio.Future[list[Tensor]]:
        """Run all steps. The awaited result is the list of the requested tensors, in the order of `TensorGet`.

        A runner can run only once. If a step fails, awaiting the result raises GearsError.
        """
        self._open()
        if not self._steps and not self._wanted:
            raise GearsError("ERR DAG is empty")
        self._used = True
        return current_runtime().host.await_on_loop(self._run())

    async def _run(self) -> list[Tensor]:
        dag, runtime = Dag(self._steps, self._given, caller()), current_runtime()
        await dag.run(runtime.models, runtime.torch_scripts)
        if dag.failure is not None:
            raise GearsError(dag.failure)
        return [Tensor(dag.slots[slot]) for slot in self._wanted]


def _scopes(command: str, words: Iterator[str], names: Sequence[str]) -> dict[str, list[str]]:
    scopes: dict[str, list[str]] = {name: [] for name in names}
    for word in words:
        name = word.upper()
        if name not in scopes:
            raise GearsError(f"ERR Invalid {command} command. Unexpected argument: {word}")
        count = next(words)
        if not count.isdigit():
            raise GearsError(f"ERR Invalid argument for {name.lower()} count in {command}: {count}")
        scopes[name] = [next(words) for _ in range(int(count))]
    return scopes


def createDAGRunner() -> DAGRunner:
    """Prepare a run of several steps."""
    return DAGRunner()
