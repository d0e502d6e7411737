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

from .atomic import AtomicBlock
from .executions import ExecutionHistory, IdSource
from .failures import GearsError
from .link import Argument, AsyncLink, LinkPool, Reply
from .shard import ShardInfo

if TYPE_CHECKING:
    from .distributed import Distributor
    from .model_store import ModelStore
    from .peers import Peers
    from .registrar import Registrar
    from .sessions import SessionRegistry

# commands that wait for this very worker: inside a function they would wait for themselves
_WAIT_FOR_WORKER = frozenset(
    {
        *("RG.PYEXECUTE", "RG.TRIGGER", "RG.TRIGGERONKEY", "RG.GETRESULTSBLOCKING", "RG.GETRESULTS"),
        *("RG.GETEXECUTION", "RG.DUMPEXECUTIONS", "RG.DROPEXECUTION", "RG.ABORTEXECUTION", "RG.PYDUMPSESSIONS"),
        *("AI.MODELRUN", "AI.MODELEXECUTE", "AI.MODELSTORE", "AI.MODELSET"),
    }
)


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
    # the link on which finished jobs are reported, once it is open
    reporting: AsyncLink | None = None

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command on the shard and wait for the raw reply."""
        if self.atomic.entered_here:
            return self.atomic.execute(*arguments)
        return self.links.link().execute(*arguments)

    def execute_many(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run commands in one round trip; errors stay in the list as objects."""
        if self.atomic.entered_here:
            return self.atomic.execute_many(list(commands))
        return self.links.link().execute_many(commands)

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

        self.reporting.hold(check, *arguments)

    @staticmethod
    def refuse_self_wait(command: str) -> None:
        """Raise for a command that would wait for the worker that runs the calling function."""
        if command.upper() in _WAIT_FOR_WORKER:
            raise GearsError(f"ERR {command} can not run inside a function: it would wait for the worker that runs it")


_bound: list[Runtime] = []


def bind(runtime: Runtime) -> None:
    """Make `runtime` the one that `current_runtime` returns."""
    _bound[:] = [runtime]


def current_runtime() -> Runtime:
    """The runtime of this process."""
    if not _bound:
        raise GearsError("ERR the gears interface works inside a shard worker only")
    return _bound[0]
