"""The shard as the worker's other parts see it: commands with the rights they need, the loop, ids and settings.

Every part of the worker gets the `Host` when it is made. Functions reach it through module-level calls, and a worker
process serves one shard, so it is also bound once at start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    """The worker's access to the shard; `reporting`, the link for reports of jobs, is set once it is open."""

    loop: asyncio.AbstractEventLoop
    info: ShardInfo
    links: LinkPool
    atomic: AtomicBlock
    ids: IdSource
    watch: LoopWatch
    reporting: AsyncLink | None = None

    @property
    def job_seconds(self) -> float:
        """The time limit of work for which the module sets none: the limit of an event."""
        return self.info.number("qa.job-timeout-ms", 30000) / 1000

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

        `failed` gets the text of an error reply. In an atomic block, and off the event loop's thread, it does wait, and
        raises the error.
        """
        if self.reporting is None or self.atomic.active or threading.current_thread() is not threading.main_thread():
            self.execute(*arguments)
            return

        def check(reply: Reply) -> None:
            if isinstance(reply, Exception):
                failed(str(reply))

        self.reporting.hold(check, *self._with_rights(arguments))

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
