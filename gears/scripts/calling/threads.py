"""The threads that run user functions.

Each pool has a separate limit of running calls, so that functions for which a client waits never wait for other
functions. A call waits in its pool's queue until the pool has fewer running calls than its limit. One owner (a
registration, a session or an execution) may use half of the limit, rounded up.

A call that must end is interrupted every second until it has ended. Then its thread ends too, because the exception may
have left incomplete work, such as a partly read reply. A call that does not end, because it is inside C code, is
*stuck*. Another thread replaces the call's thread. If more calls are stuck than a pool may have running calls, the
worker ends and is replaced.

Only the event loop's thread uses the objects of this module. The function threads only take calls and report their
ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import logging
import queue
import threading
from collections.abc import Callable

from .queues import TurnQueue
from .sections import CodeSection

logger = logging.getLogger(__name__)
MAX_WAITING = 10_000
IDLE_SECONDS = 30.0
AGAIN_SECONDS = 1.0


class FunctionPool(enum.Enum):
    """The pools of threads. The pool of a call depends on who waits for the call.

    Attributes:
        CLIENTS: for functions for which a client waits, such as triggers and hooked reads.
        RUNS: for the runs of `RG.PYEXECUTE` with UNBLOCKING, whose client has already got its reply.
        BACKGROUND: for work without a client: batches of streams, events without a waiting client, and timers.
    """

    CLIENTS = "clients"
    RUNS = "runs"
    BACKGROUND = "background"


class CallState(enum.Enum):
    """The state of a call: waiting for a thread, running on a thread, or ended."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    OVER = enum.auto()


class TooManyCalls(Exception):
    """The queue of a pool is full: it has `MAX_WAITING` waiting calls."""


class Call:
    """One use of a thread. `function` gets the section in which it must run its interruptible code.

    Attributes:
        owner: the id of the registration, session or execution that the call belongs to.
        section: the section of the call. `FunctionThreads.interrupt` interrupts the code in this section.
        stuck: whether the call has been running for too long after its first interruption.
    """

    __slots__ = ("function", "owner", "pool", "section", "state", "stuck")

    def __init__(self, pool: FunctionPool, owner: str, function: Callable[[CodeSection], None]) -> None:
        self.pool = pool
        self.owner = owner
        self.function = function
        self.section = CodeSection()
        self.state = CallState.WAITING
        self.stuck = False


class FunctionThreads:
    """All function threads of the worker. If too many calls are stuck, `give_up` is called with the reason.

    Each pool has at most `limit` running calls. Stuck calls do not count. A call is stuck if it has not ended
    `grace_seconds` after its first interruption.

    Each thread calls `prepare` when it starts. At the end of each `Call`, the thread calls `ended` with the section of
    the `Call`.

    Attributes:
        count: the number of threads in all pools, including idle threads and the threads of stuck calls.
        stuck: the number of stuck calls in all pools.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: int,
        grace_seconds: float,
        give_up: Callable[[str], None],
        *,
        prepare: Callable[[], None] = lambda: None,
        ended: Callable[[CodeSection], None] = lambda section: None,
    ) -> None:
        self.loop = loop
        self._limit = limit
        self._grace_seconds = grace_seconds
        self.give_up = give_up
        self._prepare = prepare
        self._ended = ended
        self._queues: dict[FunctionPool, TurnQueue[Call]] = {pool: TurnQueue((limit + 1) // 2) for pool in FunctionPool}
        self._busy = dict.fromkeys(FunctionPool, 0)
        self._idle: list[_Thread] = []
        self._trim: asyncio.TimerHandle | None = None
        self.count = 0
        self.stuck = 0

    @property
    def running(self) -> int:
        """The number of calls of all pools that run on a thread. Stuck calls do not count."""
        return sum(self._busy.values())

    @property
    def waiting(self) -> int:
        """The number of calls of all pools that wait for a thread."""
        return sum(waiting.length for waiting in self._queues.values())

    def check_capacity(self, pool: FunctionPool) -> None:
        """Raise TooManyCalls if the queue of a pool is full.

        `submit` does not check this, because work that has begun must be able to continue.
        """
        if self._queues[pool].length >= MAX_WAITING:
            raise TooManyCalls(
                f"OVERLOADED {MAX_WAITING} functions wait for one of {self._limit} threads (qa.function-threads), "
                "try again later"
            )

    def submit(self, pool: FunctionPool, owner: str, function: Callable[[CodeSection], None]) -> Call:
        """Queue a call of `function` in a pool and return the call.

        The call starts when both the pool and `owner` (`Call.owner`) have fewer running calls than their limits.
        """
        call = Call(pool, owner, function)
        self._queues[pool].add(call)
        self._dispatch(pool)
        return call

    def withdraw(self, call: Call) -> bool:
        """Remove a call from its queue; return False if the queue does not contain the call."""
        return call.state is CallState.WAITING and self._queues[call.pool].remove(call)

    def interrupt(self, call: Call, waited: float) -> None:
        """Interrupt a running call. The caller repeats this until the call ends.

        `waited` is the number of seconds since the first interruption of the call. If `waited` has reached
        `grace_seconds`, the call counts as stuck from now on.
        """
        if call.state is not CallState.RUNNING:
            return
        call.section.interrupt()
        if waited >= self._grace_seconds and not call.stuck:
            self._note_stuck(call)

    def _note_stuck(self, call: Call) -> None:
        call.stuck = True
        self.stuck += 1
        self._release(call)
        logger.warning("a function of %s does not end: it occupies a thread until it ends", call.owner)
        if self.stuck > self._limit:
            self.give_up(f"{self.stuck} functions do not end although they were aborted")
        self._dispatch(call.pool)

    def _release(self, call: Call) -> None:
        self._busy[call.pool] -= 1
        self._queues[call.pool].ended(call)

    def _dispatch(self, pool: FunctionPool) -> None:
        while self._busy[pool] < self._limit and (call := self._queues[pool].take()) is not None:
            self._busy[pool] += 1
            call.state = CallState.RUNNING
            thread = self._idle.pop() if self._idle else self._start()
            thread.calls.put(call)

    def _start(self) -> _Thread:
        self.count += 1
        thread = _Thread(self.loop, self._prepare, self._ended, self._over)
        # The thread runs many calls. So its context is empty, without the execution of the code that starts the thread.
        contextvars.Context().run(thread.start)
        return thread

    def _over(self, thread: _Thread, call: Call) -> None:
        call.state = CallState.OVER
        if call.stuck:
            self.stuck -= 1
        else:
            self._release(call)
        if call.section.interrupted:
            thread.calls.put(None)
            self.count -= 1
        else:
            self._idle.append(thread)
            if self._trim is None:
                self._trim = self.loop.call_later(IDLE_SECONDS, self._end_idle)
        self._dispatch(call.pool)

    def _end_idle(self) -> None:
        """End half of the idle threads, rounded up, because each thread uses memory and a connection.

        This method repeats itself every `IDLE_SECONDS` while some threads are idle.
        """
        ending = (len(self._idle) + 1) // 2
        for thread in self._idle[:ending]:
            thread.calls.put(None)
        del self._idle[:ending]
        self.count -= ending
        self._trim = self.loop.call_later(IDLE_SECONDS, self._end_idle) if self._idle else None


class _Thread(threading.Thread):
    """A thread that runs the calls in its queue `calls`, one after the other, until it gets None from the queue."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        prepare: Callable[[], None],
        ended: Callable[[CodeSection], None],
        over: Callable[[_Thread, Call], None],
    ) -> None:
        super().__init__(name="function", daemon=True)
        self._loop = loop
        self._prepare = prepare
        self._ended = ended
        self._report = over
        self.calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()

    def run(self) -> None:
        self._prepare()
        while (call := self.calls.get()) is not None:
            try:
                try:
                    call.function(call.section)
                finally:
                    self._ended(call.section)
            except BaseException:  # an error of this package, not of a user function; the thread can run further calls
                logger.exception("a function thread failed")
            try:
                self._loop.call_soon_threadsafe(self._report, self, call)
            except RuntimeError:  # the loop is closed, because the worker ends
                return
            del call  # an idle thread must not keep the function's objects alive
