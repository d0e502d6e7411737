"""Which handler does jobs of which kind, and the jobs of qa-cluster's own functions.

A handler returns the arguments of `QA.DONE` after the id; for a notification, it returns nothing. The wing of users'
scripts adds the handlers of its kinds.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..functions.calls import TriggerCall
from ..functions.own_functions import OwnFunctions, OwnKeyFunction, OwnTrigger
from ..shard.failures import GearsError
from ..shard.link import Argument
from ..shard.replies import decode_reply, encode_reply

JobResult = tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A job from a reply of `QA.NEXT`; `came_us` is when its command came, by the monotonic clock of the host."""

    id: int
    kind: str
    attempt: int
    timeout_ms: int
    came_us: int
    arguments: list[Any]

    @classmethod
    def parse(cls, reply: list[Any]) -> Job:
        """Read a job's array."""
        job_id, kind, attempt, timeout_ms, came_us, *arguments = reply
        return cls(int(job_id), kind.decode(), int(attempt), int(timeout_ms), int(came_us), arguments)

    @property
    def has_client(self) -> bool:
        """Whether a client waits for it; only events may have no client."""
        return self.kind != "event" or self.arguments[3:] not in ([0], [b"0"])

    @property
    def registration(self) -> str:
        """The id of the registration of a trigger, event or `onregistered` job."""
        found: str = self.arguments[0].decode()
        return found


class Capacity(enum.Enum):
    """The limits that jobs count against: functions of users must not keep other jobs from being fetched."""

    OWN = "own"
    FUNCTIONS = "functions"
    BACKGROUND = "background"


Handler = Callable[[Job], Awaitable[JobResult]]
Notified = Callable[[Job], None]


def _counts_as_own(_job: Job) -> Capacity:
    return Capacity.OWN


class JobTable:
    """The handlers of all kinds; jobs of own functions come before the handlers of users' functions."""

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
        """Set the handler of a kind; `capacity` says what its jobs count against."""
        self.handlers[kind] = handler
        self._capacities[kind] = capacity

    def on_notification(self, kind: str, handler: Notified) -> None:
        """Call `handler` for each notification of a kind, after those that were added before."""
        self.notifications.setdefault(kind, []).append(handler)

    def handler(self, job: Job) -> Handler:
        """The handler of a job."""
        if self._is_own(job):
            return self._own[job.kind]
        found = self.handlers.get(job.kind)
        if found is None:
            raise GearsError(f"ERR the worker does not know jobs of kind {job.kind}")
        return found

    def capacity(self, job: Job) -> Capacity:
        """What a job counts against."""
        return Capacity.OWN if self._is_own(job) else self._capacities.get(job.kind, _counts_as_own)(job)

    def _is_own(self, job: Job) -> bool:
        return job.kind in self._own and self._functions.registered(job.registration) is not None

    # ---- Jobs of own functions ----

    async def _trigger(self, job: Job) -> JobResult:
        function = self._functions.registered(job.registration)
        if not isinstance(function, OwnTrigger):
            return ("ERR", f"ERR registration {job.registration} is not called by a trigger")
        # the arguments are the registration, the calling user, the trigger's name and the call's own arguments
        arguments = [decode_reply(argument) for argument in job.arguments[3:]]
        waited = max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - job.came_us / 1e6) if job.came_us else 0.0
        value = await function.call(TriggerCall(arguments, waited))
        return ("OK", encode_reply(value if isinstance(value, list) else [value]))

    async def _event(self, job: Job) -> JobResult:
        function = self._functions.registered(job.registration)
        if not isinstance(function, OwnKeyFunction):
            return ("ERR", f"ERR registration {job.registration} takes no key events")
        reply = await function.call(decode_reply(job.arguments[2]))
        return ("OK",) if reply is None or not job.has_client else ("OVERRIDE", encode_reply(reply))

    async def _events_were_dropped(self, job: Job) -> JobResult:
        function = self._functions.registered(job.registration)
        if isinstance(function, OwnKeyFunction) and function.checks_all:
            self._functions.check_all()
        return ("OK",)
