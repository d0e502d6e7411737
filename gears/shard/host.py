"""The shard as the worker's other parts see it: commands with the rights they need, the loop, ids and settings.

Every part of the worker gets the `Host` when it is made. Functions reach it through module-level calls, and a worker
process serves one shard, so it is also bound once at start.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ..calling.coroutines import CoroutineLoop
from ..calling.threads import FunctionThreads
from .atomic import AtomicBlock
from .executions import IdSource, current
from .failures import GearsError
from .forbidden import is_internal
from .link import Argument, AsyncLink, LinkPool, Reply
from .loop_watch import LoopWatch
from .shard import ShardInfo

# a caller may use the internal command only if its rights allow the public one
_PUBLIC_FORMS = {"QA.MODELREF": "AI.MODELGET", "QA.SCRIPTREF": "AI.SCRIPTGET"}


@dataclass(eq=False)
class Host:
    """The worker's access to the shard, its event loop, and the threads and the loop of users' functions.

    `reporting`, the link for reports of jobs, is set once it is open.
    """

    loop: asyncio.AbstractEventLoop
    info: ShardInfo
    links: LinkPool
    atomic: AtomicBlock
    ids: IdSource
    watch: LoopWatch
    threads: FunctionThreads
    coroutines: CoroutineLoop
    reporting: AsyncLink | None = None

    @property
    def job_seconds(self) -> float:
        """The time limit of a trigger that has none of its own."""
        return self.info.number("qa.job-timeout-ms", 30000) / 1000

    @property
    def background_seconds(self) -> float:
        """The time limit of work that no client waits for; 0: it has none."""
        return self.info.number("qa.background-timeout-ms", 0) / 1000

    @property
    def functions_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the calling function's coroutines and futures."""
        execution = current.get()
        return self.loop if execution is not None and execution.on_loop else self.coroutines.loop

    def on_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the worker on its event loop, in the caller's context, and wait for the result."""
        if threading.current_thread() is threading.main_thread():
            return function(*arguments)
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def call() -> None:
            try:
                outcome.set_result(function(*arguments))
            except BaseException as error:
                outcome.set_exception(error)

        self.loop.call_soon_threadsafe(call)
        return outcome.result()

    def await_on_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Do work on the worker's event loop; the future can be awaited in the caller's coroutines."""
        if threading.current_thread() is threading.main_thread():
            return asyncio.ensure_future(work)
        outcome = asyncio.run_coroutine_threadsafe(work, self.loop)
        return asyncio.wrap_future(outcome, loop=self.functions_loop)

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command with the rights of the current execution, and wait for the raw reply."""
        return self.execute_own(*self._with_rights(arguments))

    def execute_own(self, *arguments: Argument) -> Reply:
        """Run a command with the worker's own rights, even in a function: for what the worker itself must know."""
        if self.atomic.entered_here:
            return self.atomic.execute(*arguments)
        return self.links.link().execute(*arguments)

    def execute_many(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run commands in one round trip; errors stay in the list as objects."""
        packed = [self._with_rights(command) for command in commands]
        if self.atomic.entered_here:
            return self.atomic.execute_many(packed)
        return self.links.link().execute_many(packed)

    def execute_later(self, failed: Callable[[str], None], *arguments: Argument) -> None:
        """Send a command without waiting for its reply; it runs before the current job is reported.

        `failed` gets the text of an error reply. In an atomic block it does wait, and raises the error.
        """
        if self.reporting is None or self.atomic.entered_here:
            self.execute(*arguments)
            return

        def check(reply: Reply) -> None:
            if isinstance(reply, Exception):
                failed(str(reply))

        packed = self._with_rights(arguments)
        if threading.current_thread() is threading.main_thread():
            self.reporting.hold(check, *packed)
        else:
            self.loop.call_soon_threadsafe(self.reporting.hold, check, *packed)

    def _with_rights(self, arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """The command with the rights of the current execution's user; internal commands keep the worker's."""
        execution = current.get()
        if execution is None or not execution.user:
            return arguments
        name, user = str(arguments[0]).upper(), execution.user.encode("utf-8", "surrogateescape")
        if name in _PUBLIC_FORMS:
            self.execute_own("QA.AS", user, _PUBLIC_FORMS[name], *arguments[1:], "META")
        return arguments if is_internal(name) else ("QA.AS", user, *arguments)


_bound: list[Host] = []


def bind_host(host: Host) -> None:
    """Make `current_host` return this host."""
    _bound[:] = [host]


def current_host() -> Host:
    """The host of this process."""
    if not _bound:
        raise GearsError("ERR the gears interface works inside a shard worker only")
    return _bound[0]
