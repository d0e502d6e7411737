"""Tells qa-cluster's own functions from those of users: its own never block, so they run on the worker's event loop."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from .plan import ExecutionPlan, Step
from .sources import KeysOnlySource, PythonSource

_PACKAGE = "qa_cluster.gears.functions."


def is_own(function: object) -> bool:
    """Whether a function is qa-cluster's own, or none at all."""
    if isinstance(function, partial):
        function = function.func
    return function is None or function is str or str(getattr(function, "__module__", "")).startswith(_PACKAGE)


def are_own(steps: Iterable[Step]) -> bool:
    """Whether all functions of these steps are qa-cluster's own."""
    return all(is_own(step.function) and is_own(step.key) for step in steps)


def is_own_plan(plan: ExecutionPlan) -> bool:
    """Whether all functions of a plan are qa-cluster's own."""
    source = plan.source
    if isinstance(source, PythonSource) and not is_own(source.generator):
        return False
    if isinstance(source, KeysOnlySource) and not is_own(source.pattern_generator):
        return False
    return are_own(plan.steps)
