"""Assembles the worker: links, the job loop, models, sessions, then `QA.READY`; it serves until the shard is gone."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from functools import partial
from typing import Any

from qa_cluster.errors import ClusterError
from qa_cluster.topology import Topology

from ..calling.coroutines import CoroutineLoop
from ..calling.threads import FunctionThreads
from ..inference.backends.base import RuntimeLimits
from ..inference.backends.choose import backend_versions, import_ahead
from ..inference.batcher import DEFAULT_MAX_BATCH_TOKENS
from ..inference.devices import MAX_DEVICES, Devices
from ..inference.model_store import ModelStore
from ..inference.workers.pool import InferenceWorkers, WorkerOptions
from ..registrations.installed import Installed
from ..registrations.neighbours import Neighbours
from ..registrations.on_registered import Beginnings
from ..registrations.registrar import Registrar
from ..registrations.session_globals import SharedSessions
from ..registrations.sessions import SessionRegistry
from ..registrations.streams import Streams
from ..registrations.timers import Timers
from ..runs.distributed import Distributor
from ..runs.history import ExecutionHistory
from ..runs.settings import GearsSettings
from ..scripting.commands import answer_about_executions
from ..scripting.names import install_modules, script_globals
from ..scripting.runtime import Runtime, bind
from ..shard.atomic import AtomicBlock
from ..shard.executions import IdSource
from ..shard.failures import GearsError
from ..shard.host import Host, bind_host
from ..shard.link import AsyncLink, LinkPool
from ..shard.loop_watch import LoopWatch
from ..shard.memory import limit_memory
from ..shard.peers import Peers, read_topology
from ..shard.shard import ShardInfo, Start
from ..shard.threads import inherit_contexts
from .heartbeat import Heartbeat, give_up
from .job_loop import JobLoop
from .jobs import Jobs
from .unheard import report_unheard

logger = logging.getLogger(__name__)
_CLUSTER_UP_SECONDS = 5.0
MIN_SILENCE_SECONDS = 2.0
MAX_WAIT_SECONDS = 15.0


def _is_local(host: str, own: set[str]) -> bool:
    try:
        return host in own or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in own or host == "localhost"


def model_threads(setting: int, topology: Topology | None, shard_id: str, cores: int) -> int:
    """Threads of the model runtime: `qa.worker-threads`, or this shard's share of the cores of its host."""
    if setting > 0:
        return setting
    if topology is None:
        return max(1, cores)
    own = {shard.address.host for shard in topology.shards if shard.node_id == shard_id}
    here = sum(_is_local(shard.address.host, own) for shard in topology.shards)
    return max(1, cores // max(1, here))


class WorkerService:
    """A worker from its start line to its end."""

    def __init__(self, start: Start, control: socket.socket) -> None:
        self._start = start
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._atomic: AtomicBlock | None = None
        self._inference: InferenceWorkers | None = None

    async def run(self) -> None:
        """Serve until the control socket closes or a link is lost."""
        report_unheard()
        self._loop.add_reader(self._control, self._control_readable)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Ctrl-C in a terminal reaches the whole process group, but the server decides when its worker ends
            self._loop.add_signal_handler(number, self.end if number == signal.SIGTERM else _ignore)
        links = LinkPool(self._start)
        info = links.link().info
        # while it is received, a reply takes memory twice: in the connection's buffer, and as an object
        limit_memory(*_memory(info))
        self._inference = _inference_workers(info)
        host = self._host(links, info)
        runtime = self._assemble(host)
        neighbours = Neighbours(host, runtime.peers, runtime.registrar, runtime.streams)
        host.watch.begin()
        beat = Heartbeat(self._start, runtime.models, host.threads, host.watch, self._end_threadsafe)
        beat.begin()
        fetching = await AsyncLink.open(self._start, self.end)
        host.reporting = await AsyncLink.open(self._start, self.end)
        jobs = JobLoop(Jobs(runtime), host.watch, fetching, host.reporting)
        jobs.ask()
        stored = host.execute("AI._MODELSCAN")
        if stored and self._inference is None:
            import_ahead()
        if info.cluster and (stored or host.execute("QA.SESSIONS")):
            await self._cluster_up(host)
        await runtime.models.load_all()
        # asked for only now, so that the reply includes what other shards have registered here meanwhile
        runtime.registrar.installed.restore(host.execute("QA.SESSIONS"))
        runtime.distributor.take_part()
        host.execute("QA.READY", *backend_versions())
        logger.info("worker %d is ready", info.worker)
        watching = self._loop.create_task(neighbours.watch())
        await self._over
        watching.cancel()
        beat.stop()
        if self._inference is not None:
            self._inference.stop()

    async def _cluster_up(self, host: Host) -> None:
        """Wait until the cluster is up, for a shard that starts with it: before that, it cannot read keys or models."""
        deadline = self._loop.time() + _CLUSTER_UP_SECONDS
        while b"cluster_state:ok" not in host.execute("CLUSTER", "INFO"):
            if self._loop.time() > deadline:
                logger.warning("the cluster is not up after %g s: models load at first use", _CLUSTER_UP_SECONDS)
                return
            await asyncio.sleep(0.05)

    def _host(self, links: LinkPool, info: ShardInfo) -> Host:
        lease_ms = info.number("qa.atomic-lease-ms", 1000)
        self._atomic = AtomicBlock(self._control, links, lease_ms, self._watch_control_again)
        coroutines = CoroutineLoop()
        threads = FunctionThreads(
            self._loop,
            info.number("qa.function-threads", 32),
            info.number("qa.cancel-grace-ms", 2000) / 1000,
            give_up,
            prepare=partial(asyncio.set_event_loop, coroutines.loop),
            ended=self._atomic.abandon,
        )
        ids, watch = IdSource(info.shard_id), _watch(self._loop, info)
        host = Host(self._loop, info, links, self._atomic, ids, watch, threads, coroutines)
        coroutines.begin()
        bind_host(host)
        return host

    def _assemble(self, host: Host) -> Runtime:
        """Make the worker's parts, each from those below it, and make them available to functions and other shards."""
        peers = Peers(host)
        models = _models(host, self._inference)
        history = ExecutionHistory()
        settings = GearsSettings(host.execute_own, history)
        sessions = SessionRegistry()
        beginnings = Beginnings(host)
        distributor = Distributor(host, peers, history, settings, SharedSessions(sessions, beginnings))
        timers = Timers(host)
        streams = Streams(host, history, distributor, beginnings)
        installed = Installed(
            host,
            sessions=sessions,
            history=history,
            streams=streams,
            timers=timers,
            beginnings=beginnings,
            names=script_globals(),
        )
        registrar = Registrar(host, peers, installed)
        runtime = Runtime(
            host, peers, models, history, settings, distributor, sessions, timers, streams, registrar, beginnings
        )
        peers.on("register", registrar.take)
        peers.on("registered", registrar.confirmed)
        peers.on("replaced", registrar.replaced)
        peers.on("worker", distributor.worker)
        peers.on("run", distributor.join)
        peers.on("leads", distributor.leads)
        peers.on("receipt", distributor.receipt)
        peers.on("records", distributor.packet)
        peers.on("state", distributor.state)
        peers.on("abort", distributor.abort)
        answer_about_executions(runtime)
        bind(runtime)
        install_modules()
        inherit_contexts()
        return runtime

    def _control_readable(self) -> None:
        try:
            data = self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end()
        elif self._atomic is None or self._atomic.active:
            # a thread's atomic block reads its own answers, and gives the socket back
            self._loop.remove_reader(self._control)
        else:
            self._atomic.drain()  # this answer came after the end of its block

    def _watch_control_again(self) -> None:
        self._loop.call_soon_threadsafe(self._add_control)

    def _add_control(self) -> None:
        if not self._over.done():
            self._loop.add_reader(self._control, self._control_readable)

    def end(self) -> None:
        """Make `run` return."""
        if not self._over.done():
            self._loop.remove_reader(self._control)
            self._over.set_result(None)

    def _end_threadsafe(self) -> None:
        self._loop.call_soon_threadsafe(self.end)


def _watch(loop: asyncio.AbstractEventLoop, info: ShardInfo) -> LoopWatch:
    grace = info.number("qa.cancel-grace-ms", 2000)
    limit, longest = info.number("qa.job-timeout-ms", 30000), info.number("qa.script-timeout-ms", 600000)
    return LoopWatch(loop, (limit + grace) / 1000, (longest + grace) / 1000)


def _memory(info: ShardInfo) -> tuple[int, int]:
    """The limit of a process, in MB, and what it may take beyond that while it receives something large."""
    return info.number("qa.worker-memory-mb", 0), 2 * info.number("qa.max-model-mb", 2048)


def _run_threads(info: ShardInfo) -> int:
    """Runs of one device that one process does at the same time."""
    return max(1, info.number("qa.threads-per-queue", 1))


def _inference_workers(info: ShardInfo) -> InferenceWorkers | None:
    """The processes that run models, already starting; None where the worker itself runs them."""
    count = info.number("qa.inference-workers", 0)
    if count <= 0:
        return None
    job_seconds = info.number("qa.job-timeout-ms", 30000) / 1000
    silence_seconds = info.number("qa.worker-silence-ms", 10000) / 1000
    memory_mb, spare_mb = _memory(info)
    workers = InferenceWorkers(
        WorkerOptions(
            count,
            run_threads=MAX_DEVICES * _run_threads(info),
            start_seconds=info.number("qa.worker-start-ms", 60000) / 1000,
            # a job whose run hangs gets its second run within its time
            silence_seconds=max(MIN_SILENCE_SECONDS, min(silence_seconds, job_seconds / 2)),
            wait_seconds=min(MAX_WAIT_SECONDS, job_seconds / 2),
            backoff_seconds=info.number("qa.worker-backoff-ms", 50) / 1000,
            memory_mb=memory_mb,
            spare_mb=spare_mb,
        )
    )
    workers.begin()
    return workers


def _models(host: Host, workers: InferenceWorkers | None) -> ModelStore:
    info = host.info
    max_tokens = info.number("qa.max-batch-tokens", DEFAULT_MAX_BATCH_TOKENS)
    processes = max(1, info.number("qa.inference-workers", 0))
    devices = Devices(host.loop, threads_per_queue=processes * _run_threads(info), max_batch_tokens=max_tokens)

    def limits() -> RuntimeLimits:
        # computed when a model is loaded: a worker that starts with its cluster does not know the other shards yet
        return RuntimeLimits(
            info.number("qa.intra-op-parallelism", 0) or _threads_of_one(host, processes),
            max(1, info.number("qa.inter-op-parallelism", 1)),
            info.number("qa.model-timeout-ms", 5000),
            info.number("qa.backend-memory-mb", 0),
            info.settings.get("qa.model-cache-dir", ""),
        )

    return ModelStore(host, devices, limits=limits, max_batch_tokens=max_tokens, workers=workers)


def _threads_of_one(host: Host, processes: int) -> int:
    """The threads of a run, where `processes` share those of the shard."""
    info = host.info
    threads = info.number("qa.worker-threads", 0)
    shared = model_threads(threads, _topology(host), info.shard_id, len(os.sched_getaffinity(0)))
    return max(1, shared // processes)


def _topology(host: Host) -> Topology | None:
    try:
        return read_topology(host.links.link().execute, host.info)
    except (ClusterError, GearsError) as error:  # the cluster has no slots yet: the worker starts anyway
        logger.info("the cluster's slots are not known yet: %s", error)
        return None


def _ignore(*_: Any) -> None:
    return None
