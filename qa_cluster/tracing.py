"""Records the steps of a traced request, and reads the times that shards report.

The core reports its steps only through this module, which needs no tracing library. A recorder, such as
`api/tracing.py`, sets a `TracedStep` as the current step (`recording`). Code that runs within `recording` reports its
own steps with `step`. Without a recorder, a step costs one read of a context variable, and the shards report no times.

Times are seconds of `time.perf_counter`. A shard reports durations, because the clocks of two hosts may differ.
`ShardTimes.parts` converts them to times of this process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import Any, Protocol

import orjson

Fact = str | int | float | bool
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
# The limit of model runs that a shard reports for one call. A call can have more runs, because it has up to 256
# sentences. The shard then reports the longest runs. The same limit applies to the steps that `ShardTimes.parse` reads.
MAX_RUNS = 32


class TracedStep(Protocol):
    """A step that has started.

    Attributes:
        sent_at: when the step's command was sent, after the wait for a connection; None for a step without a command.
    """

    sent_at: float | None

    @property
    def traceparent(self) -> str:
        """The `traceparent` header that names this step to other processes (W3C Trace Context)."""

    def begin(self, name: str, facts: Mapping[str, Fact], *, is_call: bool) -> TracedStep:
        """Start a part of the step and return the part.

        `facts` are the attributes of the part in the trace. `is_call` says whether another server runs the part.
        """

    def put(self, name: str, begun: float, ended: float, facts: Mapping[str, Fact]) -> None:
        """Add a part of the step that has already ended. `begun` and `ended` are the times of its start and end."""

    def note(self, facts: Mapping[str, Fact]) -> None:
        """Add facts, which are attributes of the step in the trace."""

    def end(self, error: BaseException | None) -> None:
        """End the step; `error` is the error that ended it, or None."""


_current: ContextVar[TracedStep | None] = ContextVar("step", default=None)
_NOTHING: AbstractContextManager[None] = nullcontext()


def current() -> TracedStep | None:
    """Return the current step, of which the next step becomes a part; None if there is no recorder."""
    return _current.get()


@contextmanager
def recording(step: TracedStep | None) -> Iterator[None]:
    """Record the steps of the block, and of the tasks that it starts, as parts of `step`; None: do not record."""
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def step(name: str, facts: Mapping[str, Fact] | None = None, *, is_call: bool = False) -> AbstractContextManager[Any]:
    """Report the block as a step, which is a part of the current step. Without a recorder, report nothing.

    The ``with`` statement gives the block the new step, or None if there is no recorder. The other arguments are those
    of `TracedStep.begin`.

    >>> with step("rank") as ranking:
    ...     if ranking is not None:
    ...         ranking.note({"qa.candidates": 8})
    """
    above = _current.get()
    return _NOTHING if above is None else _Running(above, name, facts or {}, is_call)


class _Running:
    """The context manager of a step."""

    __slots__ = ("_above", "_facts", "_is_call", "_name", "_step", "_token")

    def __init__(self, above: TracedStep, name: str, facts: Mapping[str, Fact], is_call: bool) -> None:
        self._above = above
        self._name = name
        self._facts = facts
        self._is_call = is_call

    def __enter__(self) -> TracedStep:
        self._step = self._above.begin(self._name, self._facts, is_call=self._is_call)
        self._token: Token[TracedStep | None] = _current.set(self._step)
        return self._step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _current.reset(self._token)
        self._step.end(error)


def is_traceparent(value: object) -> bool:
    """Return whether a value has the form of a `traceparent` header, which names a step (`TracedStep.traceparent`).

    A traced call of `qa.read` has this name as its last argument.
    """
    return isinstance(value, str) and _TRACEPARENT.match(value) is not None


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a call on a shard; `begun` and `ended` are times of this process, in seconds."""

    name: str
    begun: float
    ended: float
    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True)
class ShardRun:
    """A run of a model for a call. Times are in microseconds since the call's function started.

    Attributes:
        queued: when the first of the call's texts was queued for the run.
        texts: how many texts of this call were in the run.
        items: how many texts of all calls were in the run.
        rows, length: the shape of the padded batch.
        tokens: the number of tokens in the batch without padding.
    """

    queued: int
    began: int
    ended: int
    texts: int
    items: int
    rows: int
    length: int
    tokens: int

    @property
    def facts(self) -> dict[str, Fact]:
        """The attributes of the run in a trace."""
        shape = {"qa.batch.rows": self.rows, "qa.batch.length": self.length, "qa.batch.tokens": self.tokens}
        return {"qa.batch.items": self.items, "qa.batch.own_items": self.texts, **shape}


@dataclass(frozen=True, slots=True)
class ShardTimes:
    """The times that a shard reports for a traced call, in microseconds.

    Attributes:
        traceparent: the name of the call (`TracedStep.traceparent`).
        waited: the time from the command's arrival at the server to the start of the function in the worker.
        took: the time from the start to the end of the function.
        steps: the name, start and end of each step in the function. Start and end count from the start of the function.
        runs: the runs of models for the call.
    """

    traceparent: str
    waited: int
    took: int
    steps: Sequence[tuple[str, int, int]] = ()
    runs: Sequence[ShardRun] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-ready form that `parse` reads. It has only the longest `MAX_RUNS` runs."""
        longest = sorted(self.runs, key=lambda run: run.began - run.ended)[:MAX_RUNS]
        runs = [astuple(run) for run in sorted(longest, key=lambda run: run.began)]
        head = {"traceparent": self.traceparent, "waited_us": self.waited, "took_us": self.took}
        return {**head, "steps": list(self.steps), "runs": runs}

    @classmethod
    def parse(cls, value: object, traceparent: str) -> ShardTimes | None:
        """Return the times of the call with the name `traceparent`, from the JSON text or parsed JSON `value`.

        Return None if `value` is damaged or has the times of a call with a different name.
        """
        try:
            found = orjson.loads(value) if isinstance(value, bytes | str) else value
            if not isinstance(found, dict) or found["traceparent"] != traceparent:
                return None
            steps = [(str(name)[:50], int(begun), int(ended)) for name, begun, ended in found["steps"][:MAX_RUNS]]
            runs = [ShardRun(*(int(number) for number in run)) for run in found["runs"][:MAX_RUNS]]
            return cls(traceparent, max(0, int(found["waited_us"])), max(0, int(found["took_us"])), steps, runs)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return None

    def parts(self, begun: float, ended: float) -> list[CallPart]:
        """Return the shard's times as parts of a call that lasted from `begun` to `ended` on the clock of this process.

        The call takes longer than the shard reports, because of the network and the servers' event loops. Half of this
        extra time is placed before the shard's times, and half after them. If the shard reports more time than the call
        took, its times are scaled down.
        """
        claimed, there = (self.waited + self.took) / 1e6, max(0.0, ended - begun)
        scale = min(1.0, there / claimed) if claimed else 0.0
        first = begun + (there - claimed * scale) / 2

        def at(microseconds: float) -> float:
            return min(ended, first + min(max(0.0, microseconds), claimed * 1e6) / 1e6 * scale)

        def part(name: str, start: int, end: int, facts: Mapping[str, Fact]) -> CallPart:
            opened = at(self.waited + max(0, start))
            return CallPart(name, opened, max(opened, at(self.waited + end)), facts)

        found = [CallPart("queue", at(0), at(self.waited), {})]
        found += [part(name, start, end, {}) for name, start, end in self.steps]
        for run in self.runs:
            found.append(part("batch", run.queued, run.began, {"qa.batch.own_items": run.texts}))
            found.append(part("model", run.began, run.ended, run.facts))
        return found
