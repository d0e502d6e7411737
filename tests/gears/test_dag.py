"""Runs of several steps: parallel steps, the effect of a failure, and the job of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.gears.inference.served import Batching, TimedOut
from qa_cluster.gears.scripts.jobs.graph_jobs import run_dag
from qa_cluster.gears.scripts.torch.dag import Dag, DagStep
from tests.gears.runtimes import POISON, AddModel, add, assert_ended_only_with_its_run, pair


def states(dag: Dag) -> list[str]:
    return [result.state for result in dag.results]


NO_SCRIPTS: Any = None


async def test_steps_run_when_their_inputs_exist(store: ModelStore) -> None:
    await add(store, 1, AddModel())
    a = pair(3)[0]
    # in reverse order: the first step needs the output of the second step
    dag = Dag([DagStep(1, [2, 2], [3]), DagStep(1, [0, 1], [2])], {0: a, 1: a})
    await dag.run(store, NO_SCRIPTS)
    assert states(dag) == ["OK", "OK"] and dag.failure is None
    assert dag.slots[3].tolist() == [[4.0, 4.0]] * 3
    assert [result.samples for result in dag.results] == [3, 3]
    assert all(result.took_us >= 0 for result in dag.results)


async def test_independent_steps_run_at_the_same_time(store: ModelStore) -> None:
    slow, quick = await add(store, 1, AddModel()), await add(store, 2, AddModel(), "CPU:1")
    slow.gate.clear()
    a = pair(1)[0]
    dag = Dag([DagStep(1, [0, 0], [1]), DagStep(2, [0, 0], [2])], {0: a})
    run = asyncio.ensure_future(dag.run(store, NO_SCRIPTS))
    assert await asyncio.to_thread(quick.entered.wait, 30), "the second step waited for the first"
    assert not run.done()
    slow.gate.set()
    await run
    assert states(dag) == ["OK", "OK"]


async def test_the_first_failure_prevents_later_steps(store: ModelStore) -> None:
    slow, other = await add(store, 1, AddModel()), await add(store, 2, AddModel(), "CPU:1")
    slow.gate.clear()
    other.gate.clear()
    a, bad = pair(1)[0], pair(1, POISON)[0]
    steps = [
        DagStep(1, [0, 0], [2]),  # runs while the next step fails
        DagStep(2, [1, 1], [3]),  # fails
        DagStep(1, [0, 0], [4]),  # is queued behind the first step
        DagStep(1, [3, 3], [5]),  # never gets its inputs
    ]
    dag = Dag(steps, {0: a, 1: bad})
    run = asyncio.ensure_future(dag.run(store, NO_SCRIPTS))
    assert await asyncio.to_thread(slow.entered.wait, 30), "a step that fails first prevents the start of this step"
    other.gate.set()
    while dag.failure is None:
        await asyncio.sleep(0.01)
    slow.gate.set()
    await run
    assert states(dag) == ["OK", "ERR", "NA", "NA"]
    assert dag.failure == "INFERENCE poison" and other.shapes and slow.shapes == [(1, 2)]


async def test_a_run_that_has_not_started_times_out(store: ModelStore) -> None:
    model = await add(store, 1, AddModel())
    dag = Dag([DagStep(1, [0, 0], [1], Batching(4, 4, 60_000))], {0: pair(1)[0]})
    with pytest.raises(TimedOut):
        await dag.run(store, NO_SCRIPTS, 50)
    assert not model.shapes


async def test_a_cancelled_run_waits_for_the_step_that_runs(store: ModelStore) -> None:
    model = await add(store, 1, AddModel())
    await assert_ended_only_with_its_run(model, Dag([DagStep(1, [0, 0], [1])], {0: pair(1)[0]}).run(store, NO_SCRIPTS))


def model_step(ref: int, inputs: list[int], outputs: list[int]) -> list[Any]:
    step: list[Any] = [b"model", ref, b"ONNX", b"CPU", 0, 0, 0, b"", 0, 0]
    return [*step, len(inputs), *inputs, len(outputs), *outputs]


async def test_the_job_of_a_dag(store: ModelStore) -> None:
    await add(store, 1, AddModel())
    tensor = [b"FLOAT", 1, 2, np.array([1, 2], "<f4").tobytes()]
    steps = [model_step(1, [0, 0], [1]), model_step(1, [1], [2]), model_step(1, [2, 2], [3])]
    job = [b"", 0, 1, *tensor, 3, *steps[0], *steps[1], *steps[2], 3, 1, 2, 3]
    reply = await run_dag(store, NO_SCRIPTS, job)
    assert reply[:3] == ("DAG", 3, "OK")
    assert reply[4:6] == (2, "")
    assert reply[6:10] == ("ERR", 0, 0, "ERR the model has 2 inputs, got 1")
    assert reply[10:14] == ("NA", 0, 0, "")
    total = np.array([2, 4], "<f4").tobytes()
    assert reply[14:] == (3, "FLOAT", 1, 2, total, "NA", "NA")
    held = model_step(1, [0, 0], [1])
    held[4:7] = [4, 4, 60_000]
    assert await run_dag(store, NO_SCRIPTS, [b"", 50, 1, *tensor, 1, *held, 1, 1]) == ("TIMEDOUT",)
