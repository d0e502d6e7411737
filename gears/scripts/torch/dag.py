"""Runs a graph of models and scripts. A step starts on its device when its inputs exist.

A slot is a numbered place for one tensor, and is written once. After the first failure, no other step starts, but
running steps continue to their end. `AI.DAGEXECUTE`, `AI.SCRIPTEXECUTE` and the DAG runner for functions use this
module.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from qa_cluster.errors import InferenceFailed

from ...inference.model_store import ModelStore
from ...inference.served import Batching, WaitLimit, within
from ...inference.tensors import Array
from ...shard.failures import error_line
from .script_caller import TorchScriptCall
from .script_store import ScriptStore


@dataclass(frozen=True, slots=True)
class DagStep:
    """One run of a model (`function` is empty), or one call of a script's function.

    Attributes:
        ref: the reference number of the model or of the script.
        inputs, outputs: the numbers of the slots that the step reads and writes.
        batching: the batching options for the run of a model; None: no options.
        function: the name of the script's function; empty for a model.
        keys, arguments: the texts that an entry point of the script gets; empty for a model.
    """

    ref: int
    inputs: Sequence[int]
    outputs: Sequence[int]
    batching: Batching | None = None
    function: str = ""
    keys: Sequence[str] = ()
    arguments: Sequence[str] = ()


@dataclass(slots=True)
class DagStepResult:
    """The outcome of a step.

    Attributes:
        state: ``OK``, ``ERR``, or ``NA`` if the step has not run.
        took_us: the duration of the step in microseconds.
        samples: the size of the first dimension of the first output; 1 if this output has no dimensions, 0 without
            outputs.
        error: one line; empty unless the state is ``ERR``.
    """

    state: str = "NA"
    took_us: int = 0
    samples: int = 0
    error: str = ""


@dataclass(slots=True)
class Dag:
    """A graph: steps, and the slots that the steps read and write.

    Attributes:
        slots: the tensors by the numbers of their slots. At first, `slots` has the inputs of the graph. Each step adds
            its outputs.
        user: the ACL user whose rights the scripts have; empty: the worker's rights.
        results: the outcome of each step, in the order of `steps`.
    """

    steps: Sequence[DagStep]
    slots: dict[int, Array]
    user: str = ""
    results: list[DagStepResult] = field(default_factory=list)

    @property
    def failure(self) -> str | None:
        """The error of the first failed step in the order of `steps`, or None if no step has failed."""
        return next((result.error for result in self.results if result.state == "ERR"), None)

    async def run(self, models: ModelStore, scripts: ScriptStore, wait_ms: int = 0) -> None:
        """Run all steps, and store their outcomes in `results` and their outputs in `slots`.

        Raises TimedOut if no step has started after `wait_ms` milliseconds (0: no limit). The error of a step is only
        stored.
        """
        self.results = [DagStepResult() for _ in self.steps]
        await within(wait_ms, partial(self._run, models, scripts))

    async def _run(self, models: ModelStore, scripts: ScriptStore, limit: WaitLimit | None) -> None:
        waiting = list(range(len(self.steps)))
        running: dict[asyncio.Task[tuple[list[Array], int]], tuple[int, WaitLimit]] = {}
        try:
            while True:
                ready = [n for n in waiting if all(slot in self.slots for slot in self.steps[n].inputs)]
                for number in ready if self.failure is None else ():
                    waiting.remove(number)
                    may_begin = WaitLimit(limit)
                    task = asyncio.ensure_future(self._step(models, scripts, self.steps[number], may_begin))
                    running[task] = (number, may_begin)
                if not running:
                    return
                finished, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    self._finished(running.pop(task)[0], task)
                if self.failure is not None:
                    for task, (_, may_begin) in running.items():
                        if may_begin.expire():
                            task.cancel()
        finally:
            await _end(list(running))

    async def _step(
        self, models: ModelStore, scripts: ScriptStore, step: DagStep, limit: WaitLimit
    ) -> tuple[list[Array], int]:
        inputs = [self.slots[slot] for slot in step.inputs]
        if step.function:
            call = TorchScriptCall(step.function, inputs, step.keys, step.arguments, self.user, len(step.outputs))
            return await scripts.run(step.ref, call, limit)
        outputs, took_us = await models.run_batched(step.ref, inputs, step.batching, limit)
        if len(outputs) != len(step.outputs):
            raise InferenceFailed(f"the model has {len(outputs)} outputs, but {len(step.outputs)} were requested")
        return outputs, took_us

    def _finished(self, number: int, task: asyncio.Task[tuple[list[Array], int]]) -> None:
        result = self.results[number]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            result.state, result.error = "ERR", error_line(error)
            return
        outputs, result.took_us = task.result()
        result.state = "OK"
        result.samples = _samples(outputs)
        for slot, output in zip(self.steps[number].outputs, outputs, strict=True):
            self.slots[slot] = output


async def _end(tasks: Sequence[asyncio.Task[tuple[list[Array], int]]]) -> None:
    """Cancel steps and wait until all have ended, even if the run is cancelled again in the meantime."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(pending)


def _samples(outputs: Sequence[Array]) -> int:
    if not outputs:
        return 0
    return int(outputs[0].shape[0]) if outputs[0].ndim else 1
