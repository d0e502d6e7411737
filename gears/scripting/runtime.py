"""The worker's parts, and the one place where functions find them.

A worker process serves one shard and has one of everything; scripts reach it through module-level functions, so the
`Runtime` is bound once at start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..runs.history import ExecutionHistory
from ..shard.atomic import AtomicBlock
from ..shard.executions import IdSource, current
from ..shard.failures import GearsError
from ..shard.link import Argument, AsyncLink, LinkPool, Reply
from ..shard.shard import ShardInfo

if TYPE_CHECKING:
    from ..inference.model_store import ModelStore
    from ..registrations.registrar import Registrar
    from ..registrations.sessions import SessionRegistry
    from ..registrations.streams import Streams
    from ..registrations.timers import Timers
    from ..runs.distributed import Distributor
    from ..runs.settings import Settings
    from ..shard.loop_watch import LoopWatch
    from ..shard.peers import Peers

# commands that wait for this very worker: inside a function they would wait for themselves
_WAIT_FOR_WORKER = frozenset(
    {
        *("RG.PYEXECUTE", "RG.TRIGGER", "RG.TRIGGERONKEY", "RG.GETRESULTSBLOCKING", "RG.GETRESULTS"),
        *("RG.GETEXECUTION", "RG.DUMPEXECUTIONS", "RG.DROPEXECUTION", "RG.ABORTEXECUTION", "RG.PYDUMPSESSIONS"),
        *("AI.MODELRUN", "AI.MODELEXECUTE", "AI.MODELSTORE", "AI.MODELSET"),
        *("AI.SCRIPTSTORE", "AI.SCRIPTSET", "AI.SCRIPTRUN", "AI.SCRIPTEXECUTE"),
        *("AI.DAGRUN", "AI.DAGRUN_RO", "AI.DAGEXECUTE", "AI.DAGEXECUTE_RO"),
    }
)
# commands that change the connection they come on, which belongs to all functions of a thread
_CHANGE_LINK = frozenset(
    {
        *("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "SELECT", "AUTH", "HELLO", "RESET", "QUIT", "CLIENT"),
        *("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE", "MONITOR"),
    }
)
# what a caller must be allowed to do to get at the bytes that the internal command names
_PUBLIC_FORMS = {"QA.MODELREF": "AI.MODELGET", "QA.SCRIPTREF": "AI.SCRIPTGET"}


@dataclass
class Runtime:
    """Everything a worker has; the fields without a value are set while it starts."""

    loop: asyncio.AbstractEventLoop
    info: ShardInfo
    links: LinkPool
    atomic: AtomicBlock
    ids: IdSource
    history: ExecutionHistory
    sessions: SessionRegistry
    registrar: Registrar
    peers: Peers
    distributor: Distributor
    models: ModelStore
    streams: Streams
    timers: Timers
    settings: Settings
    watch: LoopWatch
    # the link on which finished jobs are reported, once it is open
    reporting: AsyncLink | None = None

    @property
    def job_seconds(self) -> float:
        """The time limit of work that the module set none for: that of an event."""
        return self.info.number("qa.job-timeout-ms", 30000) / 1000

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command with the rights of the execution it is called in, and wait for the raw reply."""
        return self.execute_own(*self._with_rights(arguments))

    def execute_own(self, *arguments: Argument) -> Reply:
        """Run a command with the worker's own rights, whoever calls: for what the worker itself has to know."""
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
        """Send a command without waiting: it has run before the job that sends it is reported.

        `failed` gets the text of an error reply. In an atomic block and off the loop's thread it is waited for.
        """
        if self.reporting is None or self.atomic.active or threading.current_thread() is not threading.main_thread():
            self.execute(*arguments)
            return

        def check(reply: Reply) -> None:
            if isinstance(reply, Exception):
                failed(str(reply))

        self.reporting.hold(check, *self._with_rights(arguments))

    def _with_rights(self, arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        """The command as the caller of the current execution would send it; internal ones stay the worker's."""
        execution = current.get()
        if execution is None or not execution.user:
            return arguments
        name, user = str(arguments[0]).upper(), execution.user.encode("utf-8", "surrogateescape")
        if name in _PUBLIC_FORMS:
            self.execute_own("QA.AS", user, _PUBLIC_FORMS[name], *arguments[1:], "META")
        return arguments if name.startswith("QA.") else ("QA.AS", user, *arguments)

    @staticmethod
    def refuse_forbidden(command: str) -> None:
        """Raise for what a function may not run: internal commands, and what would block or change its link."""
        name = command.upper()
        if name.startswith("QA."):
            raise GearsError(f"NOPERM {command} is internal to the worker")
        if name in _WAIT_FOR_WORKER:
            raise GearsError(f"ERR {command} can not run inside a function: it would wait for the worker that runs it")
        if name in _CHANGE_LINK:
            raise GearsError(
                f"ERR {command} can not run inside a function: it would change the connection that functions share; "
                "use atomic() for a transaction"
            )


_bound: list[Runtime] = []


def bind(runtime: Runtime) -> None:
    """Make `runtime` the one that `current_runtime` returns."""
    _bound[:] = [runtime]


def current_runtime() -> Runtime:
    """The runtime of this process."""
    if not _bound:
        raise GearsError("ERR the gears interface works inside a shard worker only")
    return _bound[0]
