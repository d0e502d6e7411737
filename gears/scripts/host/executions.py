"""Executions are runs of pipelines, with ids, states and results.

The calls of timers and of `onRegistered` also have executions, but no pipeline.

The context variable `current` has the execution of the running function. The execution determines the rights of the
function's commands. The execution also has the reply that replaces the reply of a hooked command (a client's read of a
missing key, which starts a registered function).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from ...shard import replies
from ...shard.failures import GearsError, error_line
from ..calling.strands import Strand
from ..calling.threads import FunctionPool
from .script_errors import error_text

T = TypeVar("T")
MAX_ERRORS = 1000
MISSING = "execution plan does not exist"
ABORTED = "execution was aborted"
# the value of `Execution.step_future` and `StepSlot.step_future` while no step may create a future
OUTSIDE = object()


class Owner(Protocol):
    """The session of an execution's script. This room needs only its id."""

    id: str


class Execution:
    """One run of a pipeline.

    Args:
        session: the session whose functions run; None if they belong to no session.
        registered: whether an event or a call of a registration has started the run.
        can_override: whether the client of a hooked command waits, so that the functions may set its reply.
        user: the ACL user whose rights the commands of the functions have; empty if they have the worker's rights.
        pool: the pool whose threads run the functions.
        owner: the id of the registration or session whose calls share a part of the pool's threads (`threads.py`). If
            it is empty, the execution itself is the owner.
    """

    def __init__(
        self,
        execution_id: str,
        session: Owner | None,
        *,
        registered: bool = False,
        can_override: bool = False,
        user: str = "",
        pool: FunctionPool = FunctionPool.RUNS,
        owner: str = "",
    ) -> None:
        self.id = execution_id
        self.session = session
        self.registered = registered
        self.can_override = can_override
        self.user = user
        self.pool = pool
        self.owner = owner or execution_id
        self.strand: Strand | None = None
        self.status = "created"
        self.started_at = time.perf_counter()
        self.finished_at: float | None = None
        self.results: list[Any] = []
        self.errors: list[str] = []
        self.first_failure: str | None = None
        self.overriding: bytes | None = None
        # The kind and the name of the function of each step. Only names, because the history must not keep functions
        # alive.
        self.steps: Sequence[tuple[str, str]] = ()
        self.step_seconds: list[float] = []
        self.read_seconds = 0.0
        self.shards_received = 0
        self.shards_completed = 0
        self.aborted = False
        self.abort_reason = ABORTED
        # called at the end, if the history must list this execution only until its end
        self.leave_list: Callable[[], None] | None = None
        # the number of waiting records that have continued, as a sign of progress
        self.beats = 0
        self.task: asyncio.Task[Any] | None = None
        # The value is a weak reference to the future of the running step. It is None if the step has created no future,
        # and OUTSIDE between steps.
        self.step_future: object = OUTSIDE
        self._holds = 0
        self._lock = threading.Lock()
        self._waiters: list[asyncio.Future[None]] = []

    def begin(self, steps: Sequence[tuple[str, str]]) -> None:
        """Record the start of the run. `steps` has a pair for each step: its kind, and the name of its function."""
        self.steps = steps
        self.step_seconds = [0.0] * len(steps)
        self.status = "running"

    def fail(self, error: BaseException) -> None:
        """Record the error of a record or of the source."""
        if self.first_failure is None:
            self.first_failure = error_line(error)
        self.add_error(error_text(error))

    @property
    def failure(self) -> str | None:
        """The first error as one line that starts with a code; None if there is no error."""
        if self.first_failure is not None or not self.errors:
            return self.first_failure
        return f"ERR {self.errors[0]}"

    def add_error(self, text: str) -> None:
        """Record the text of an error. Ignore the error if the execution already has `MAX_ERRORS` errors."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(text)

    def override(self, value: object) -> None:
        """Set the reply that replaces the reply of the hooked command.

        Raise GearsError if no client of a hooked command waits for this execution, or if the reply is already set.
        """
        if not self.can_override:
            raise GearsError("Can not get command ctx")
        if self.overriding is not None:
            raise GearsError("Can only override reply once")
        self.overriding = replies.encode_reply(value)

    @property
    def pending(self) -> bool:
        """Whether the steps of the execution have not begun, and the execution has not ended."""
        return self.status == "created"

    def abort(self, reason: str = ABORTED) -> None:
        """Stop an unfinished run. The run then ends as aborted, with the error `reason`."""
        if self.finished or self.aborted:
            return
        self.aborted = True
        self.abort_reason = reason
        if self.task is not None:
            self.task.cancel()

    def end_if_aborted(self) -> bool:
        """If the run was aborted before its start, record its end; return whether it was aborted."""
        if self.aborted:
            self.add_error(self.abort_reason)
            self.finish("aborted")
        return self.aborted

    def finish(self, status: str = "done") -> None:
        """Record the end of the run, and wake all code that waits for it. `status` is ``done`` or ``aborted``."""
        self.status = status
        self.finished_at = time.perf_counter()
        self.task = None
        if self.leave_list is not None:
            self.leave_list()
            self.leave_list = None
        self._wake()

    def hold(self) -> None:
        """Record that a coroutine or a handle of `getGearsSession` uses this execution outside the steps."""
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        """Record the end of one use (`hold`). Call this method only on the worker's event loop."""
        with self._lock:
            self._holds -= 1
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    @property
    def finished(self) -> bool:
        """Whether the execution has ended (`finish`)."""
        return self.finished_at is not None

    @property
    def duration_ms(self) -> int:
        """The time from the creation of this object to the end of the run, or until now if the run has not ended."""
        return round(((self.finished_at or time.perf_counter()) - self.started_at) * 1000)

    async def wait(self) -> None:
        """Return when the execution has ended (`finish`)."""
        while not self.finished:
            await self._change()

    async def until_ended(self) -> None:
        """Wait until no thread works for the execution. After an abort, threads may end later than the run."""
        if self.strand is not None:
            await self.strand.until_ended()

    async def until_released(self) -> None:
        """Return when every `hold` has been released."""
        while self._holds > 0:
            await self._change()

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


current: ContextVar[Execution | None] = ContextVar("current_execution", default=None)


async def as_worker(work: Awaitable[T]) -> T:
    """Await work that the worker itself does for a user function, and return its result.

    The work belongs to no execution, so its commands have the worker's rights.
    """
    token = current.set(None)
    try:
        return await work
    finally:
        current.reset(token)


def _now_us() -> int:
    return time.time_ns() // 1000


class IdSource:
    """Creates ids of executions, registrations and sessions: the shard's id, a dash, and a number from a counter.

    Executions and registrations share one counter. Sessions have a second counter, and their ids have an ``s`` before
    the number.

    Both counters start at the time in microseconds and grow by at least one for each id. So a new worker does not reuse
    ids of the previous worker, which other shards and clients may still use. For a registration, the shared counter
    first advances to the current time, because shards compare ids of registrations to find the newer of two versions of
    a session.
    """

    def __init__(self, shard_id: str) -> None:
        self._shard_id = shard_id
        self._last = _now_us()
        self._last_session = 0
        self._lock = threading.Lock()

    def next(self) -> str:
        """Return a new id of an execution."""
        return self._after(0)

    def next_dated(self) -> str:
        """Return a new id of a registration. Its number is greater than in all earlier ids of this shard.

        If the clocks of the shards agree, the number is also greater than in earlier ids of registrations of other
        shards.
        """
        return self._after(_now_us() - 1)

    def next_session(self) -> str:
        """Return a new id of a session, from the separate counter of sessions."""
        with self._lock:
            self._last_session = max(self._last_session + 1, _now_us())
            return f"{self._shard_id}-s{self._last_session}"

    def _after(self, least: int) -> str:
        with self._lock:
            self._last = max(self._last, least) + 1
            return f"{self._shard_id}-{self._last}"

    def skip_past(self, used: str) -> None:
        """Make the numbers of all later ids of executions and registrations greater than the number in the id `used`.

        Do nothing if `used` is an id of another shard or of a session.
        """
        shard_id, _, number = used.rpartition("-")
        if shard_id == self._shard_id and number.isdigit():
            with self._lock:
                self._last = max(self._last, int(number))
