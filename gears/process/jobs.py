"""Fetches jobs from the module, finds their handlers and reports the results. Also runs the jobs of own functions.

`QA.NEXT` fetches jobs, and one `QA.NEXT` is always pending. `QA.DONE` reports the result of a job, and the worker does
not wait for the reply to `QA.DONE`. Every job runs in an asyncio task of its own. The worker also enforces a job's time
limit, so that the job ends even if the worker cannot fetch the module's `cancel`. An exception in a function ends its
job, never the worker.

*Own functions* are the functions of `gears/functions`, which are part of qa-cluster. A handler returns the arguments of
`QA.DONE` that follow the id of the job. A notification is a job with the id 0, which has no result. The handler of a
notification returns nothing. The scripts wing adds the handlers of jobs for user scripts.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..functions.calls import TriggerCall
from ..functions.own_functions import OwnFunctions, OwnKeyFunction, OwnTrigger
from ..shard.failures import GearsError, error_line
from ..shard.link import Argument, AsyncLink, Reply
from ..shard.loop_watch import LoopWatch
from ..shard.replies import decode_reply, encode_reply

logger = logging.getLogger(__name__)
MAX_RUNNING = 512  # the maximum number of running jobs that count against each `Capacity`
MAX_PER_FETCH = 64
WAIT_MS = 1000
FULL_WAIT_MS = 20
RETRY_SECONDS = 0.2

JobResult = tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A job from a reply of `QA.NEXT`.

    Attributes:
        id: the number of the job; 0 for a notification.
        attempt: 1; 2 if the worker that had the job before has died.
        timeout_ms: the time limit of the job; 0: no limit.
        arrived_us: the time when the job arrived at the module, in microseconds of the monotonic clock; 0: unknown.
        arguments: the arguments of the job, which depend on its kind.
    """

    id: int
    kind: str
    attempt: int
    timeout_ms: int
    arrived_us: int
    arguments: list[Any]

    @classmethod
    def parse(cls, reply: list[Any]) -> Job:
        """Read a job from its array, an item of the reply of `QA.NEXT`."""
        job_id, kind, attempt, timeout_ms, arrived_us, *arguments = reply
        return cls(int(job_id), kind.decode(), int(attempt), int(timeout_ms), int(arrived_us), arguments)

    @property
    def has_client(self) -> bool:
        """Whether a client may wait for the result of the job. False only for an event that no client waits for."""
        return self.kind != "event" or self.arguments[3:] not in ([0], [b"0"])

    @property
    def registration(self) -> str:
        """The id of the registration of a trigger, event or `onregistered` job."""
        found: str = self.arguments[0].decode()
        return found


class Capacity(enum.Enum):
    """The three limits of running jobs. Each job counts against one of them, and each limit is `MAX_RUNNING` jobs.

    Jobs of user functions have separate limits, so that the worker can always fetch other jobs: `FUNCTIONS` for jobs
    with a waiting client, and `BACKGROUND` for jobs without a waiting client. All other jobs count against `OWN`.
    """

    OWN = "own"
    FUNCTIONS = "functions"
    BACKGROUND = "background"


Handler = Callable[[Job], Awaitable[JobResult]]
Notified = Callable[[Job], None]


def _counts_as_own(_job: Job) -> Capacity:
    return Capacity.OWN


class JobTable:
    """The handlers of all kinds of jobs. If a job belongs to an own function, that function handles it."""

    def __init__(self, functions: OwnFunctions) -> None:
        self._functions = functions
        self._own: dict[str, Handler] = {
            "trigger": self._trigger,
            "event": self._event,
            "onregistered": self._events_were_dropped,
        }
        self.handlers: dict[str, Handler] = {}
        self.notifications: dict[str, list[Notified]] = {}
        self._capacities: dict[str, Callable[[Job], Capacity]] = {}

    def add(self, kind: str, handler: Handler, capacity: Callable[[Job], Capacity] = _counts_as_own) -> None:
        """Set the handler of a kind of jobs. `capacity` returns the limit against which a job counts."""
        self.handlers[kind] = handler
        self._capacities[kind] = capacity

    def on_notification(self, kind: str, handler: Notified) -> None:
        """Call `handler` for each notification of a kind, after earlier handlers of this kind."""
        self.notifications.setdefault(kind, []).append(handler)

    def handler(self, job: Job) -> Handler:
        """Return the handler of a job. Raise GearsError if no handler was added for this kind of jobs."""
        if self._is_own(job):
            return self._own[job.kind]
        found = self.handlers.get(job.kind)
        if found is None:
            raise GearsError(f"ERR the worker does not know jobs of kind {job.kind}")
        return found

    def capacity(self, job: Job) -> Capacity:
        """Return the limit against which a job counts."""
        return Capacity.OWN if self._is_own(job) else self._capacities.get(job.kind, _counts_as_own)(job)

    def _is_own(self, job: Job) -> bool:
        return job.kind in self._own and self._functions.registered(job.registration) is not None

    # ---- Jobs of own functions ----

    async def _trigger(self, job: Job) -> JobResult:
        function = self._functions.registered(job.registration)
        if not isinstance(function, OwnTrigger):
            return ("ERR", f"ERR registration {job.registration} is not called by a trigger")
        # the arguments are the registration, the calling user, the trigger's name and the arguments of the call
        arguments = [decode_reply(argument) for argument in job.arguments[3:]]
        waited = max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - job.arrived_us / 1e6) if job.arrived_us else 0.0
        value = await function.call(TriggerCall(arguments, waited))
        return ("OK", encode_reply(value if isinstance(value, list) else [value]))

    async def _event(self, job: Job) -> JobResult:
        function = self._functions.registered(job.registration)
        if not isinstance(function, OwnKeyFunction):
            return ("ERR", f"ERR registration {job.registration} does not handle key events")
        reply = await function.call(decode_reply(job.arguments[2]))
        return ("OK",) if reply is None or not job.has_client else ("OVERRIDE", encode_reply(reply))

    async def _events_were_dropped(self, job: Job) -> JobResult:
        function = self._functions.registered(job.registration)
        if isinstance(function, OwnKeyFunction) and function.checks_all:
            self._functions.check_all()
        return ("OK",)


class JobLoop:
    """Moves jobs between the module and their handlers."""

    def __init__(self, jobs: JobTable, watch: LoopWatch, fetching: AsyncLink, reporting: AsyncLink) -> None:
        self._jobs = jobs
        self._watch = watch
        self._fetching = fetching
        self._reporting = reporting
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._taken: Counter[Capacity] = Counter()
        self._limited = 0  # the number of running jobs with a time limit
        self._asking = False
        self._last_error = ""

    def ask(self) -> None:
        """Send `QA.NEXT` if none is pending.

        While `MAX_RUNNING` jobs of `Capacity.OWN` run, request 0 jobs. The reply then has only notifications, such as
        messages of other workers and cancellations, because running jobs may need these.
        """
        if not self._asking:
            self._asking = True
            free = [min(MAX_PER_FETCH, max(0, MAX_RUNNING - self._taken[capacity])) for capacity in Capacity]
            wait_ms = WAIT_MS if all(free) else FULL_WAIT_MS
            self._fetching.call(self._jobs_arrived, b"QA.NEXT", free[0], wait_ms, *free[1:])

    def _jobs_arrived(self, reply: Reply) -> None:
        self._asking = False
        if isinstance(reply, Exception):
            if str(reply) != self._last_error:
                self._last_error = str(reply)
                logger.error("QA.NEXT failed: %s", reply)
            self._loop.call_later(RETRY_SECONDS, self.ask)
            return
        self._last_error = ""
        for entry in reply or ():
            self._start(entry)
        self.ask()

    def _start(self, entry: list[Reply]) -> None:
        try:
            job = Job.parse(entry)
        except (ValueError, TypeError, AttributeError) as error:
            logger.error("a job cannot be read: %s", error_line(error))
            return
        if job.kind == "cancel":
            self._cancel(int(job.arguments[0]))
        elif job.id == 0:
            self._notify(job)
        else:
            capacity = self._jobs.capacity(job)
            self._taken[capacity] += 1
            self._count_limited(job, 1)
            self._running[job.id] = self._loop.create_task(self._run(job, capacity))

    def _count_limited(self, job: Job, change: int) -> None:
        self._limited += change if job.timeout_ms > 0 else 0
        self._watch.jobs = self._limited

    def _notify(self, job: Job) -> None:
        handlers = self._jobs.notifications.get(job.kind)
        if handlers is None:
            logger.error("the worker does not know notifications of kind %s", job.kind)
            return
        try:
            for handler in handlers:
                handler(job)
        except Exception as error:  # no client waits for a notification, so the worker only logs the error
            logger.error("notification %s failed: %s", job.kind, error_line(error))

    def _cancel(self, job_id: int) -> None:
        task = self._running.get(job_id)
        if task is not None:
            task.cancel()

    async def _run(self, job: Job, capacity: Capacity) -> None:
        task = self._running[job.id]
        limit = self._loop.call_later(job.timeout_ms / 1000, task.cancel) if job.timeout_ms > 0 else None
        try:
            outcome = await self._outcome(job)
        finally:
            if limit is not None:
                limit.cancel()
            del self._running[job.id]
            self._taken[capacity] -= 1
            self._count_limited(job, -1)
        # Report at once if a client waits. Also report a second attempt at once, because the job fails if the worker
        # dies before the report.
        report = self._reporting.gather if not job.has_client and job.attempt == 1 else self._reporting.call
        report(_reported(job), b"QA.DONE", job.id, *map(_sendable, outcome))
        self.ask()

    async def _outcome(self, job: Job) -> JobResult:
        try:
            return await self._jobs.handler(job)(job)
        except asyncio.CancelledError:
            return ("ERR", "DEADLINE the job was cancelled: its time was up or its client left")
        except BaseException as error:  # SystemExit or KeyboardInterrupt of a function ends only its job
            return ("ERR", error_line(error))


def _sendable(part: Argument) -> Argument:
    """Return a part of a job's result in a form that can be sent.

    In a text, escapes replace characters that UTF-8 cannot encode, because an error may contain such characters.
    """
    return part.encode("utf-8", "backslashreplace") if isinstance(part, str) else part


def _reported(job: Job) -> Callable[[Reply], None]:
    def check(reply: Reply) -> None:
        if isinstance(reply, Exception) and not str(reply).startswith("NOJOB"):
            logger.error("the module refused the result of a %s job: %s", job.kind, reply)

    return check
