"""Handles the jobs of models: `model.load` and `model.run`."""

from __future__ import annotations

from functools import partial
from typing import Any

from qa_cluster.errors import InferenceFailed

from ..inference.model_store import ModelStore
from ..inference.served import Batching, TimedOut, within
from ..inference.tensors import read_wire, to_wire
from ..shard import replies
from ..shard.link import Argument
from .jobs import JobResult, JobTable


def add_model_jobs(table: JobTable, models: ModelStore) -> None:
    """Add the handlers of jobs and notifications about models."""
    table.add("model.load", lambda job: load_model(models, job.arguments))
    table.add("model.run", lambda job: run_model(models, job.arguments))
    table.on_notification("model.drop", lambda job: models.drop(int(job.arguments[0])))


def batching_of(size: Any, min_size: Any, min_timeout_ms: Any) -> Batching | None:
    """Return the batching options of a job. If `size` is 0, the job has no batching options, and the result is None."""
    return Batching(int(size), int(min_size), int(min_timeout_ms)) if int(size) > 0 else None


async def load_model(models: ModelStore, arguments: list[Any]) -> JobResult:
    """`model.load`: compile a model; return the names of its inputs and outputs."""
    ref, backend, device, size = arguments
    model = await models.load(int(ref), backend.decode(), device.decode(), int(size))
    names = [[port.name for port in ports] for ports in (model.compiled.inputs, model.compiled.outputs)]
    return ("OK", replies.encode_data(names))


async def run_model(models: ModelStore, arguments: list[Any]) -> JobResult:
    """`model.run`: run a model on the tensors of the job; return its outputs.

    If the run has not started after the job's limit of the waiting time, return ``TIMEDOUT``.
    """
    ref, _backend, _device, size, min_size, min_timeout_ms, wait_ms, inputs, outputs, *tensors = arguments
    given = list(read_wire(tensors, int(inputs)))
    batching = batching_of(size, min_size, min_timeout_ms)
    if batching is None and not int(wait_ms):
        arrays = await models.run(int(ref), given)
    else:
        try:
            run = partial(models.run_batched, int(ref), given, batching)
            arrays, _ = await within(int(wait_ms), run)
        except TimedOut:
            return ("TIMEDOUT",)
    if len(arrays) != int(outputs):
        raise InferenceFailed(f"the model has {len(arrays)} outputs, but {int(outputs)} were requested")
    packed: list[Argument] = []
    for array in arrays:
        packed += to_wire(array)
    return ("TENSORS", len(arrays), *packed)
