"""The plan of a run: the source of its records, and the steps for the records.

A plan is data. It is pickled with its functions for the other shards and for stored registrations. *Boundaries* divide
a plan into stages. A boundary is a step that moves records between shards (repartition, collect).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .sources import RecordSource


class StepKind(enum.Enum):
    """The kind of a step. The value is its name in `RG.GETEXECUTION`."""

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
    """One step of a plan.

    Attributes:
        function: the user function; None for the kinds LIMIT, REPARTITION and COLLECT.
        key: for GROUP and REPARTITION, the extractor: the user function that returns the key of a record.
        start: for LIMIT, the number of records that the step drops first.
        length: for LIMIT, the number of records that pass after them.
    """

    kind: StepKind
    function: Callable[..., Any] | None = None
    key: Callable[[Any], Any] | None = None
    start: int = 0
    length: int = 0

    # The kind of the step and the name of its function or extractor, as executions list them. The name is empty if no
    # function or name exists. The pair is computed once, because events run plans often.
    outline: tuple[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = getattr(self.function or self.key, "__name__", "") if self.function or self.key else ""
        object.__setattr__(self, "outline", (self.kind.value, name))


def split_stages(steps: Sequence[Step]) -> list[tuple[list[Step], Step | None]]:
    """Return the stages of a plan: for each stage its steps, and the boundary at its end (None: no boundary)."""
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
    """The plan for `run()`, or for the events of a registration.

    Attributes:
        mode: ``async`` if other shards may take part in the run, or ``async_local``.
        description: the text that the script has given to its `GearsBuilder`.
    """

    source: RecordSource
    steps: tuple[Step, ...]
    mode: str
    description: str = ""
