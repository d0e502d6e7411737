"""The jobs of TorchScripts and graphs of models and scripts: `script.load` and `dag.run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...inference.model_store import ModelStore
from ...inference.served import TimedOut
from ...inference.tensors import Array, take_wire, to_wire
from ...process.jobs import JobResult
from ...process.model_jobs import batching_of
from ...shard.failures import GearsError
from ...shard.link import Argument
from ..torch.dag import Dag, DagStep
from ..torch.script_store import ScriptStore


async def load_script(scripts: ScriptStore, arguments: list[Any]) -> JobResult:
    """Do a `script.load` job: compile a TorchScript and keep it under its reference.

    The arguments are the script's reference, its device, its source, the number of its entry points, and their names.
    """
    ref, device, source, _count, *names = arguments
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        raise GearsError("ERR the script is not valid UTF-8") from error
    await scripts.load(int(ref), device.decode(), text, [name.decode() for name in names])
    return ("OK",)


def _read_list(words: Iterator[Any]) -> list[Any]:
    return [next(words) for _ in range(int(next(words)))]


def _read_texts(words: Iterator[Any]) -> list[str]:
    return [word.decode("utf-8", "surrogateescape") for word in _read_list(words)]


def _read_step(words: Iterator[Any]) -> DagStep:
    kind, ref, _backend, _device = (next(words) for _ in range(4))
    batching = batching_of(next(words), next(words), next(words))
    function = next(words).decode()
    keys, arguments = _read_texts(words), _read_texts(words)
    inputs, outputs = [int(slot) for slot in _read_list(words)], [int(slot) for slot in _read_list(words)]
    if kind not in (b"model", b"script") or (kind == b"script") != bool(function):
        raise GearsError(
            f"ERR a step must be a model without a function or a script with one, not {kind!r} with {function!r}"
        )
    return DagStep(int(ref), inputs, outputs, batching, function, keys, arguments)


async def run_dag(models: ModelStore, scripts: ScriptStore, arguments: list[Any]) -> JobResult:
    """Do a `dag.run` job: run the steps of a graph. Steps read and write tensors by the numbers of their slots (`Dag`).

    The result has the outcome of each step, and then the requested tensors. It is ``TIMEDOUT`` if no step has started
    within the `wait_ms` milliseconds of the job.
    """
    words = iter(arguments)
    user, wait_ms = next(words).decode(), int(next(words))
    tensors = [take_wire(words) for _ in range(int(next(words)))]
    steps = [_read_step(words) for _ in range(int(next(words)))]
    wanted = [int(slot) for slot in _read_list(words)]
    dag = Dag(steps, dict(enumerate(tensors)), user)
    try:
        await dag.run(models, scripts, wait_ms)
    except TimedOut:
        return ("TIMEDOUT",)
    reply: list[Argument] = ["DAG", len(steps)]
    for result in dag.results:
        reply += (result.state, result.took_us, result.samples, result.error)
    reply.append(len(wanted))
    for slot in wanted:
        reply += _packed(dag.slots.get(slot))
    return tuple(reply)


def _packed(array: Array | None) -> tuple[Argument, ...]:
    return ("NA",) if array is None else to_wire(array)
