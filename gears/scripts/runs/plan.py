"""The plan of a run: the source of its records, and the steps that the records go through.

A plan is data. It is pickled, with its functions, for the other shards and in stored registrations. It is divided into
stages at its *boundaries*: steps that move records between shards (repartition, collect).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .sources import RecordSource


class StepKind(enum.Enum):
    """What a step does; the value is its name in `RG.GETEXECUTION`."""

    MAP = "map"
    FILTER = "filter"
    FLATMAP = "flatmap"
    FOREACH = "foreach"
    ACCUMULATE = "accumulate"
    GROUP = "accumulatebykey"
    LIMIT = "limit"
    REPARTITION = "repartition"
    COLLECT = "collect"


BOUNDARIES = frozenset({StepKind.REPARTITION, StepKind.COLLECT})


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `key` extracts the key of GROUP and REPARTITION; `start` and `length` are those of LIMIT."""

    kind: StepKind
    function: Callable[..., Any] | None = None
    key: Callable[[Any], Any] | None = None
    start: int = 0
    length: int = 0

    # (kind, name of the function), which an execution keeps; computed once, because events run plans often
    outline: tuple[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = getattr(self.function or self.key, "__name__", "") if self.function or self.key else ""
        object.__setattr__(self, "outline", (self.kind.value, name))


def split_stages(steps: Sequence[Step]) -> list[tuple[list[Step], Step | None]]:
    """Return the stages of a plan: for each stage its steps, and the boundary that ends it or None."""
    stages: list[tuple[list[Step], Step | None]] = []
    stage: list[Step] = []
    for step in steps:
        if step.kind in BOUNDARIES:
            stages.append((stage, step))
            stage = []
        else:
            stage.append(step)
    stages.append((stage, None))
    return stages


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """The plan that `run()` or an event of a registration runs."""

    source: RecordSource
    steps: tuple[Step, ...]
    mode: str
    description: str = ""
