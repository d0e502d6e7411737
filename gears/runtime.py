"""The worker's parts, and the one place where functions find them.

A worker process serves one shard and has one of everything; scripts reach it through module-level functions, so the
`Runtime` is bound once at start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .atomic import AtomicBlock
from .executions import ExecutionHistory, IdSource
from .failures import GearsError
from .link import Argument, LinkPool, Reply
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

    def execute(self, *arguments: Argument) -> Reply:
        """Run a command on the shard and wait for the raw reply."""
        if self.atomic.active:
            return self.atomic.execute(*arguments)
        return self.links.link().execute(*arguments)

    def execute_many(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run commands in one round trip; errors stay in the list as objects."""
        if self.atomic.active:
            return self.atomic.execute_many(list(commands))
        return self.links.link().execute_many(commands)

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
