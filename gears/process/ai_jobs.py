"""Does the jobs of the `AI.*` commands: it loads and runs models and scripts, and runs graphs of steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from qa_cluster.errors import InferenceFailed

from ..inference.dag import Dag, DagStep
from ..inference.model_store import ModelStore
from ..inference.served import Batching, TimedOut, within
from ..inference.tensors import Array, read_wire, take_wire, to_wire
from ..shard import replies
from ..shard.failures import GearsError
from ..shard.link import Argument

JobResult = tuple[Argument, ...]


def _batching(size: Any, min_size: Any, min_timeout_ms: Any) -> Batching | None:
    return Batching(int(size), int(min_size), int(min_timeout_ms)) if int(size) > 0 else None


async def load_model(models: ModelStore, arguments: list[Any]) -> JobResult:
    """`model.load`: compile a model; return the names of its inputs and outputs."""
    ref, backend, device, size = arguments
    model = await models.load(int(ref), backend.decode(), device.decode(), int(size))
    names = [[port.name for port in ports] for ports in (model.compiled.inputs, model.compiled.outputs)]
    return ("OK", replies.encode_data(names))


async def load_script(models: ModelStore, arguments: list[Any]) -> JobResult:
    """`script.load`: compile a TorchScript."""
    ref, device, source, _count, *names = arguments
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        raise GearsError("ERR the script is not valid UTF-8") from error
    await models.scripts.load(int(ref), device.decode(), text, [name.decode() for name in names])
    return ("OK",)


async def run_model(models: ModelStore, arguments: list[Any]) -> JobResult:
    """`model.run`: run a model on tensors."""
    ref, _backend, _device, size, min_size, min_timeout_ms, wait_ms, inputs, outputs, *tensors = arguments
    given = list(read_wire(tensors, int(inputs)))
    batching = _batching(size, min_size, min_timeout_ms)
    if batching is None and not int(wait_ms):
        arrays = await models.run(int(ref), given)
    else:
        try:
            run = partial(models.run_batched, int(ref), given, batching)
            arrays, _ = await within(int(wait_ms), run)
        except TimedOut:
            return ("TIMEDOUT",)
    if len(arrays) != int(outputs):
        raise InferenceFailed(f"the model has {len(arrays)} outputs, {int(outputs)} were asked for")
    packed: list[Argument] = []
    for array in arrays:
        packed += to_wire(array)
    return ("TENSORS", len(arrays), *packed)


def _read_list(words: Iterator[Any]) -> list[Any]:
    return [next(words) for _ in range(int(next(words)))]


def _read_texts(words: Iterator[Any]) -> list[str]:
    return [word.decode("utf-8", "surrogateescape") for word in _read_list(words)]


def _read_step(words: Iterator[Any]) -> DagStep:
    kind, ref, _backend, _device = (next(words) for _ in range(4))
    batching = _batching(next(words), next(words), next(words))
    function = next(words).decode()
    keys, arguments = _read_texts(words), _read_texts(words)
    inputs, outputs = [int(slot) for slot in _read_list(words)], [int(slot) for slot in _read_list(words)]
    if kind not in (b"model", b"script") or (kind == b"script") != bool(function):
        raise GearsError(
            f"ERR a step must be a model without a function or a script with one, not {kind!r} with {function!r}"
        )
    return DagStep(int(ref), inputs, outputs, batching, function, keys, arguments)


async def run_dag(models: ModelStore, arguments: list[Any]) -> JobResult:
    """`dag.run`: run steps on slots."""
    words = iter(arguments)
    user, wait_ms = next(words).decode(), int(next(words))
    tensors = [take_wire(words) for _ in range(int(next(words)))]
    steps = [_read_step(words) for _ in range(int(next(words)))]
    wanted = [int(slot) for slot in _read_list(words)]
    dag = Dag(steps, dict(enumerate(tensors)), user)
    try:
        await dag.run(models, wait_ms)
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
