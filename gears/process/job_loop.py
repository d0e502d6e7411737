"""Fetches jobs and reports their results. One `QA.NEXT` is always pending, and reports are sent without waiting.

Every job is a task with its own context. A job's time limit is enforced here too, so that the job ends even if the
module's `cancel` cannot be fetched. An exception in a function ends its job, never the worker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from ..shard.failures import error_line
from ..shard.link import Argument, AsyncLink, Reply
from ..shard.loop_watch import LoopWatch
from .jobs import Capacity, Job, JobResult, JobTable

logger = logging.getLogger(__name__)
MAX_RUNNING = 512  # jobs of each kind of capacity
MAX_PER_FETCH = 64
WAIT_MS = 1000
FULL_WAIT_MS = 20
RETRY_SECONDS = 0.2


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
        self._limited = 0  # how many running jobs have a time limit
        self._asking = False
        self._last_error = ""

    def ask(self) -> None:
        """Send `QA.NEXT` unless one is pending. At its limits it asks for messages only: running jobs may need them."""
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
        except Exception as error:  # no client waits for a notification: its failure can only be logged
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
        # a second attempt is reported at once: if its worker died before the report, the job would fail
        report = self._reporting.gather if not job.has_client and job.attempt == 1 else self._reporting.call
        report(_reported(job), b"QA.DONE", job.id, *map(_sendable, outcome))
        self.ask()

    async def _outcome(self, job: Job) -> JobResult:
        try:
            return await self._jobs.handler(job)(job)
        except asyncio.CancelledError:
            return ("ERR", "DEADLINE the job was cancelled: its time was up or its client left")
        except BaseException as error:  # a function's SystemExit or KeyboardInterrupt ends only its job
            return ("ERR", error_line(error))


def _sendable(part: Argument) -> Argument:
    """The part in a form that can be sent: an error may quote text that cannot be encoded."""
    return part.encode("utf-8", "backslashreplace") if isinstance(part, str) else part


def _reported(job: Job) -> Callable[[Reply], None]:
    def check(reply: Reply) -> None:
        if isinstance(reply, Exception) and not str(reply).startswith("NOJOB"):
            logger.error("the module refused the result of a %s job: %s", job.kind, reply)

    return check
