"""The worker's parts, and the one place where scripts and jobs find them.

A worker process serves one shard and has one of each part. Scripts reach them through module-level functions, so the
`Runtime` is bound once at start. The rooms below get the parts that they need when they are made, and do not know it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..inference.model_store import ModelStore
from ..registrations.on_registered import Beginnings
from ..registrations.registrar import Registrar
from ..registrations.sessions import SessionRegistry
from ..registrations.streams import Streams
from ..registrations.timers import Timers
from ..runs.distributed import Distributor
from ..runs.history import ExecutionHistory
from ..runs.settings import GearsSettings
from ..shard.failures import GearsError
from ..shard.host import Host
from ..shard.peers import Peers


@dataclass(frozen=True, eq=False)
class Runtime:
    """All parts of a worker."""

    host: Host
    peers: Peers
    models: ModelStore
    history: ExecutionHistory
    settings: GearsSettings
    distributor: Distributor
    sessions: SessionRegistry
    timers: Timers
    streams: Streams
    registrar: Registrar
    beginnings: Beginnings


_bound: list[Runtime] = []


def bind(runtime: Runtime) -> None:
    """Make `current_runtime` return this runtime."""
    _bound[:] = [runtime]


def current_runtime() -> Runtime:
    """The runtime of this process."""
    if not _bound:
        raise GearsError("ERR the gears interface works inside a shard worker only")
    return _bound[0]
