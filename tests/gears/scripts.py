"""Scripts that run in the test's own process, but only describe their pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qa_cluster.gears.scripts.interface.builder import GearsBuilder
from qa_cluster.gears.scripts.registrations.script_source import ScriptRun, script_run
from qa_cluster.gears.scripts.registrations.sessions import ScriptSession
from qa_cluster.gears.scripts.runs.plan import ExecutionPlan


@contextmanager
def script() -> Iterator[ScriptRun]:
    """Within the block, calls belong to a script."""
    running = ScriptRun(ScriptSession("s", "", ""))
    token = script_run.set(running)
    try:
        yield running
    finally:
        script_run.reset(token)


def plan_of(describe: Callable[[GearsBuilder], object], convert: bool = False) -> ExecutionPlan:
    """The plan of a script that describes a pipeline and runs it."""
    builder = GearsBuilder("ShardsIDReader")
    describe(builder)
    with script() as running:
        builder.run(convertToStr=convert)
    assert running.plan is not None
    return running.plan
