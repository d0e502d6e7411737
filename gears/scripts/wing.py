"""Assembles the scripts wing: the part of the worker that runs user scripts, with RedisGears and RedisAI."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from ..functions.own_functions import OwnFunctions
from ..inference.model_store import ModelStore
from ..process.jobs import JobTable
from ..shard.commands import ShardCommands
from ..shard.host import Host
from ..shard.peers import Peers
from .calling.coroutines import CoroutineLoop
from .calling.threads import FunctionThreads
from .host.atomic import AtomicBlock
from .host.script_host import ScriptHost, bind_host
from .host.thread_contexts import inherit_contexts
from .interface.commands import answer_about_executions
from .interface.names import install_modules, script_globals
from .interface.runtime import Runtime, bind
from .jobs.script_jobs import ScriptJobs
from .jobs.unawaited_errors import log_unawaited_errors
from .registrations.installed import Installed
from .registrations.on_registered import OnRegisteredCalls
from .registrations.reconciliation import Reconciliation
from .registrations.registrar import Registrar
from .registrations.session_globals import SharedSessions
from .registrations.sessions import SessionRegistry
from .registrations.streams import Streams
from .registrations.timers import Timers
from .runs.distributed import Distributor
from .runs.history import ExecutionHistory
from .runs.settings import GearsSettings
from .torch.model_keys import ModelKeys
from .torch.script_store import ScriptStore


def script_host(worker: Host, atomic: AtomicBlock, give_up: Callable[[str], None]) -> ScriptHost:
    """Create the host for user functions, with threads and an event loop for them, from the worker's own host.

    Args:
        worker: the worker's own host.
        atomic: the atomic blocks of the worker.
        give_up: called with the reason if too many functions do not end although they were aborted. The worker must
            then end.
    """
    coroutines = CoroutineLoop()
    threads = FunctionThreads(
        worker.loop,
        worker.info.number("qa.function-threads"),
        worker.info.number("qa.cancel-grace-ms") / 1000,
        give_up,
        prepare=partial(asyncio.set_event_loop, coroutines.loop),
        ended=atomic.abandon,
    )
    host = ScriptHost(worker, atomic=atomic, threads=threads, coroutines=coroutines)
    coroutines.begin()
    bind_host(host)
    return host


class ScriptsWing:
    """Creates and connects the parts of the scripts wing, which runs user scripts in the worker."""

    def __init__(self, host: ScriptHost, peers: Peers, models: ModelStore, functions: OwnFunctions) -> None:
        log_unawaited_errors()
        history = ExecutionHistory()
        settings = GearsSettings(host.execute_own, history)
        sessions = SessionRegistry()
        on_registered = OnRegisteredCalls(host)
        distributor = Distributor(host, peers, history, settings, SharedSessions(sessions, on_registered))
        timers = Timers(host)
        streams = Streams(host, history, distributor, on_registered)
        installed = Installed(
            host,
            functions=functions,
            sessions=sessions,
            history=history,
            streams=streams,
            timers=timers,
            on_registered=on_registered,
            names=script_globals(),
        )
        registrar = Registrar(host, peers, installed)
        self._runtime = Runtime(
            host=host,
            peers=peers,
            commands=ShardCommands(host, peers),
            functions=functions,
            models=models,
            model_keys=ModelKeys(host),
            torch_scripts=ScriptStore(host, models),
            history=history,
            settings=settings,
            distributor=distributor,
            sessions=sessions,
            timers=timers,
            streams=streams,
            registrar=registrar,
            on_registered=on_registered,
        )
        self._reconciliation = Reconciliation(host, peers, registrar, streams)
        for kind, handler in (registrar.messages() | distributor.messages()).items():
            peers.on(kind, handler)
        answer_about_executions(self._runtime)
        bind(self._runtime)
        install_modules()
        inherit_contexts()

    def add_jobs(self, table: JobTable) -> None:
        """Add the handlers of jobs and notifications about scripts to the worker's table of jobs."""
        ScriptJobs(self._runtime).add_to(table)

    def restore(self, stored_sessions: Iterable[list[bytes]]) -> None:
        """Restore the module's stored sessions (the reply to `QA.SESSIONS`), and then take part in runs of other
        shards.
        """
        self._runtime.registrar.installed.restore(stored_sessions)
        self._runtime.distributor.take_part()

    def reconcile(self) -> Coroutine[Any, Any, None]:
        """Return a coroutine that reconciles the registrations with other shards until the coroutine is cancelled."""
        return self._reconciliation.watch()
