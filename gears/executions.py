"""Executions: the runs of pipelines, their ids, states and results, and the bounded history that commands read.

The execution a function belongs to is the context variable `current`; it carries what must find its way back to the
job: the overriding reply of a hooked command.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict, deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from . import replies
from .failures import GearsError, error_line, traceback_text

if TYPE_CHECKING:
    from .sessions import Session

MAX_EXECUTIONS = 1000
MAX_EXECUTIONS_PER_REGISTRATION = 100
MAX_ERRORS = 1000
MISSING = "execution plan does not exist"


class Execution:
    """One run of a pipeline."""

    __slots__ = (
        "_waiters",
        "can_override",
        "errors",
        "finished_at",
        "first_failure",
        "id",
        "overriding",
        "registered",
        "results",
        "session",
        "started_at",
        "status",
        "steps",
        "task",
    )

    def __init__(
        self, execution_id: str, session: Session | None, *, registered: bool = False, can_override: bool = False
    ) -> None:
        self.id = execution_id
        self.session = session
        self.registered = registered
        self.can_override = can_override
        self.status = "running"
        self.started_at = time.perf_counter()
        self.finished_at: float | None = None
        self.results: list[Any] = []
        self.errors: list[str] = []
        self.first_failure: str | None = None
        self.overriding: bytes | None = None
        self.steps: list[tuple[str, str]] = []
        self.task: asyncio.Task[Any] | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def fail(self, error: BaseException) -> None:
        """Keep the error of a record or reader."""
        if self.first_failure is None:
            self.first_failure = error_line(error)
        self.add_error(traceback_text(error))

    @property
    def failure(self) -> str | None:
        """The first error as one line, or None."""
        if self.first_failure is not None or not self.errors:
            return self.first_failure
        return f"ERR {self.errors[0]}"

    def add_error(self, text: str) -> None:
        """Keep an error; beyond a thousand only their number matters."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(text)

    def override(self, value: object) -> None:
        """Set the reply of the hooked command."""
        if not self.can_override:
            raise GearsError("Can not get command ctx")
        if self.overriding is not None:
            raise GearsError("Can only override reply once")
        self.overriding = replies.encode_reply(value)

    def finish(self, status: str = "done") -> None:
        """The run is over: wake who waits for it."""
        self.status = status
        self.finished_at = time.perf_counter()
        self.task = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self.finished_at is not None

    @property
    def duration_ms(self) -> int:
        """Time from start to end, or to now."""
        return round(((self.finished_at or time.perf_counter()) - self.started_at) * 1000)

    async def wait(self) -> None:
        """Return when it is over."""
        if not self.finished:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


current: ContextVar[Execution | None] = ContextVar("current_execution", default=None)


class IdSource:
    """Ids of executions, registrations and sessions: the shard's id, a dash and one shared counter."""

    def __init__(self, shard_id: str) -> None:
        self._shard_id = shard_id
        self._counter = itertools.count()

    def next(self) -> str:
        """A new id."""
        return f"{self._shard_id}-{next(self._counter)}"

    def skip_past(self, used: str) -> None:
        """Never hand out `used` or an earlier id again."""
        shard_id, _, number = used.rpartition("-")
        if shard_id == self._shard_id and number.isdigit():
            self._counter = itertools.count(max(next(self._counter), int(number) + 1))


class ExecutionHistory:
    """The executions that are running, and the last ones that ended."""

    def __init__(self) -> None:
        self._executions: OrderedDict[str, Execution] = OrderedDict()
        self._registered: dict[str, deque[Execution]] = {}

    def add(self, execution: Execution) -> None:
        """Remember an execution that a script started; the oldest finished ones make room."""
        self._executions[execution.id] = execution
        excess = len(self._executions) - MAX_EXECUTIONS
        if excess > 0:
            finished = [known.id for known in self._executions.values() if known.finished]
            for old in finished[:excess]:
                del self._executions[old]

    def add_registered(self, registration_id: str, execution: Execution) -> None:
        """Remember an execution of a registration: the last hundred of each are kept."""
        history = self._registered.get(registration_id)
        if history is None:
            history = self._registered[registration_id] = deque(maxlen=MAX_EXECUTIONS_PER_REGISTRATION)
        history.append(execution)

    def forget_registration(self, registration_id: str) -> None:
        """Drop the history of a registration that is gone."""
        self._registered.pop(registration_id, None)

    def all(self) -> list[Execution]:
        """Every execution that is remembered."""
        return [*self._executions.values(), *itertools.chain.from_iterable(self._registered.values())]

    def get(self, execution_id: str) -> Execution | None:
        """The execution with that id."""
        found = self._executions.get(execution_id)
        if found is None:
            found = next((e for history in self._registered.values() for e in history if e.id == execution_id), None)
        return found

    def drop(self, execution_id: str) -> None:
        """Forget a finished execution."""
        execution = self.get(execution_id)
        if execution is None:
            raise GearsError("execution does not exist")
        if not execution.finished:
            raise GearsError("can not drop a not yet finished execution, abort it first.")
        self._executions.pop(execution_id, None)
        for history in self._registered.values():
            if execution in history:
                history.remove(execution)

    def abort(self, execution_id: str) -> None:
        """Cancel a running execution."""
        execution = self.get(execution_id)
        if execution is None:
            raise GearsError("execution does not exist")
        if execution.task is not None and not execution.finished:
            execution.task.cancel()
