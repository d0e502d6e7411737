"""The worker's parts that scripts and jobs use, in one object.

A worker process serves one shard and has one object of each part. The functions for scripts are module-level functions,
which find the parts in the `Runtime`. The `Runtime` is bound once at the start. The folders that `interface` imports do
not use this class. Their objects get the needed parts as arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...functions.own_functions import OwnFunctions
from ...inference.model_store import ModelStore
from ...shard.commands import ShardCommands
from ...shard.failures import GearsError
from ...shard.peers import Peers
from ..host.script_host import ScriptHost
from ..registrations.on_registered import OnRegisteredCalls
from ..registrations.registrar import Registrar
from ..registrations.sessions import SessionRegistry
from ..registrations.streams import Streams
from ..registrations.timers import Timers
from ..runs.distributed import Distributor
from ..runs.history import ExecutionHistory
from ..runs.settings import GearsSettings
from ..torch.model_keys import ModelKeys
from ..torch.script_store import ScriptStore


@dataclass(frozen=True, eq=False, kw_only=True)
class Runtime:
    """All parts of a worker that scripts use."""

    host: ScriptHost
    peers: Peers
    commands: ShardCommands
    functions: OwnFunctions
    models: ModelStore
    model_keys: ModelKeys
    torch_scripts: ScriptStore
    history: ExecutionHistory
    settings: GearsSettings
    distributor: Distributor
    sessions: SessionRegistry
    timers: Timers
    streams: Streams
    registrar: Registrar
    on_registered: OnRegisteredCalls


_bound: list[Runtime] = []


def bind(runtime: Runtime) -> None:
    """Make `current_runtime` return this runtime."""
    _bound[:] = [runtime]


def current_runtime() -> Runtime:
    """Return the runtime of this process. Raise GearsError if this process is not a shard's worker."""
    if not _bound:
        raise GearsError("ERR the gears interface works inside a shard worker only")
    return _bound[0]
