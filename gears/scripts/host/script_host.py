"""The shard's interface for user functions: the caller's rights, atomic blocks, and the threads of functions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ...shard.failures import GearsError
from ...shard.forbidden import is_internal
from ...shard.host import Host
from ...shard.link import Argument, Reply
from ..calling.coroutines import CoroutineLoop
from ..calling.threads import FunctionThreads
from .atomic import AtomicBlock
from .executions import IdSource, current

# Internal commands that have a public command. A function may use such an internal command only if its user may run the
# public command.
_PUBLIC_FORMS = {"QA.MODELREF": "AI.MODELGET", "QA.SCRIPTREF": "AI.SCRIPTGET"}


class ScriptHost(Host):
    """The host for user functions; a host runs commands on the shard. qa-cluster's own functions use the worker's plain
    `Host`.
    """

    def __init__(
        self, worker: Host, *, atomic: AtomicBlock, threads: FunctionThreads, coroutines: CoroutineLoop
    ) -> None:
        super().__init__(worker.loop, worker.info, worker.links, worker.watch, worker.reporting)
        self.atomic = atomic
        self.threads = threads
        self.coroutines = coroutines
        self.ids = IdSource(worker.info.shard_id)

    @property
    def job_seconds(self) -> float:
        """The time limit of a call of a trigger that was registered without `timeout`."""
        return self.info.number("qa.job-timeout-ms") / 1000

    @property
    def background_seconds(self) -> float:
        """The time limit of a run without a waiting client, such as a batch of a stream; 0 means no limit."""
        return self.info.number("qa.background-timeout-ms") / 1000

    def on_loop(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the worker on the worker's event loop, in the caller's context.

        Wait for the end of the function, and return its result or raise its error.
        """
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
        """Do work on the worker's event loop; return a future for the result.

        On the main thread, the future belongs to the worker's event loop. On any other thread, the future belongs to
        the loop of the coroutines.
        """
        if threading.current_thread() is threading.main_thread():
            return asyncio.ensure_future(work)
        outcome = asyncio.run_coroutine_threadsafe(work, self.loop)
        return asyncio.wrap_future(outcome, loop=self.coroutines.loop)

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command with the rights of the current execution, and wait for the raw reply."""
        return self.execute_own(*self._with_rights(arguments))

    def execute_own(self, *arguments: Argument) -> Reply:
        """Run a command with the worker's own rights, even in a function, for data that the worker itself needs."""
        if self.atomic.entered_here:
            return self.atomic.execute(*arguments)
        return super().execute_own(*arguments)

    def execute_many(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run commands with the rights of the current execution; return the replies, with error replies as objects.

        All commands take one round trip. Inside an atomic block, each command takes one round trip.
        """
        packed = [self._with_rights(command) for command in commands]
        if self.atomic.entered_here:
            return self.atomic.execute_many(packed)
        return super().execute_many(packed)

    def execute_later(self, failed: Callable[[str], None], *arguments: Argument) -> None:
        """Like `Host.execute_later`. Inside an atomic block, wait for the reply; an error reply raises GearsError."""
        if self.atomic.entered_here:
            self.execute(*arguments)
        else:
            super().execute_later(failed, *self._with_rights(arguments))

    def _with_rights(self, arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """Return the command in the form that runs with the rights of the current execution's user.

        Without an execution or a user, the command stays unchanged and runs with the worker's rights.

        Internal commands run with the worker's rights. If `_PUBLIC_FORMS` has the internal command, this method first
        checks that the user may run the public command, and raises GearsError if not.
        """
        execution = current.get()
        if execution is None or not execution.user:
            return arguments
        name, user = str(arguments[0]).upper(), execution.user.encode("utf-8", "surrogateescape")
        if name in _PUBLIC_FORMS:
            self.execute_own("QA.AS", user, _PUBLIC_FORMS[name], *arguments[1:], "META")
        return arguments if is_internal(name) else ("QA.AS", user, *arguments)


_bound: list[ScriptHost] = []


def bind_host(host: ScriptHost) -> None:
    """Make `current_host` return this host."""
    _bound[:] = [host]


def current_host() -> ScriptHost:
    """Return the host that `bind_host` has set for this process. Raise GearsError outside of a shard's worker."""
    if not _bound:
        raise GearsError("ERR the gears interface works inside a shard worker only")
    return _bound[0]
