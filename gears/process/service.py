"""Assembles the worker from its two wings, and runs it until the connection to the shard ends.

The *question wing* answers questions: the job loop, own functions and models. The *scripts wing* runs user scripts.
In `gears/`, only this file imports both wings.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
from typing import Any

from qa_cluster.errors import ClusterError
from qa_cluster.topology import Topology

from ..functions.own_functions import OwnFunctions
from ..inference.backends.base import RuntimeLimits
from ..inference.backends.choose import backend_versions, import_ahead
from ..inference.devices import MAX_DEVICES, Devices
from ..inference.model_store import ModelStore
from ..inference.trials import ModuleTrials
from ..inference.workers.isolated import IsolatedProcesses, IsolationLimits
from ..inference.workers.pool import InferenceWorkers, WorkerOptions
from ..scripts.host.atomic import AtomicBlock
from ..scripts.host.script_host import ScriptHost
from ..scripts.wing import ScriptsWing, script_host
from ..shard.commands import ShardCommands
from ..shard.failures import GearsError
from ..shard.host import Host
from ..shard.link import AsyncLink, LinkPool
from ..shard.loop_watch import LoopWatch
from ..shard.memory import limit_memory
from ..shard.peers import Peers, read_topology
from ..shard.shard import ShardInfo, Start
from .heartbeat import Heartbeat, give_up
from .jobs import JobLoop, JobTable
from .model_jobs import add_model_jobs

logger = logging.getLogger(__name__)
_CLUSTER_UP_SECONDS = 5.0
_READERS_SECONDS = 15.0
MIN_SILENCE_SECONDS = 2.0
MAX_WAIT_SECONDS = 15.0


def _is_local(host: str, own: set[str]) -> bool:
    try:
        return host in own or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in own or host == "localhost"


def model_threads(setting: int, topology: Topology | None, shard_id: str, cores: int) -> int:
    """Return the number of threads of the model runtime: `qa.worker-threads`, or this shard's share of the cores of its
    host.

    Args:
        setting: the value of `qa.worker-threads`; 0: use the share of the cores.
        topology: the shards of the cluster; None: they are unknown, so this shard uses all cores.
        shard_id: the node id of this shard.
        cores: the number of cores that the worker may use.
    """
    if setting > 0:
        return setting
    if topology is None:
        return max(1, cores)
    own = {shard.address.host for shard in topology.shards if shard.node_id == shard_id}
    here = sum(_is_local(shard.address.host, own) for shard in topology.shards)
    return max(1, cores // max(1, here))


class WorkerService:
    """A worker, from its start line until its end."""

    def __init__(self, start: Start, control: socket.socket) -> None:
        self._start = start
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._atomic: AtomicBlock | None = None
        self._inference: InferenceWorkers | None = None

    async def run(self) -> None:
        """Serve until the control socket closes or a link is lost."""
        self._loop.add_reader(self._control, self._control_readable)
        for number in (signal.SIGTERM, signal.SIGINT):
            # ignores Ctrl-C, which a terminal sends to the whole process group: only the server ends its worker
            self._loop.add_signal_handler(number, self.end if number == signal.SIGTERM else _ignore)
        links = LinkPool(self._start)
        info = links.link().info
        # a reply takes memory twice while it is received: in the connection's buffer, and as an object
        limit_memory(*_memory(info))
        self._inference = _inference_workers(info)
        reporting = await AsyncLink.open(self._start, self.end)
        host = Host(self._loop, info, links, _watch(self._loop, info), reporting)
        user_host = self._user_host(host)
        peers, models = Peers(user_host), _models(host, self._inference)
        functions = OwnFunctions(ShardCommands(host, peers), models)
        scripts = ScriptsWing(user_host, peers, models, functions)
        jobs = JobTable(functions)
        add_model_jobs(jobs, models)
        jobs.on_notification("message", lambda job: peers.receive(job.arguments[0].decode(), job.arguments[1]))
        scripts.add_jobs(jobs)
        host.watch.begin()
        own = (functions.failures, functions.embedding)
        beat = Heartbeat(self._start, models, user_host.threads, host.watch, *own, self._end_threadsafe)
        beat.begin()
        fetching = await AsyncLink.open(self._start, self.end)
        JobLoop(jobs, host.watch, fetching, reporting).ask()
        stored = host.execute("AI._MODELSCAN")
        if stored and self._inference is None:
            import_ahead()
        if info.cluster and (stored or host.execute("QA.SESSIONS")):
            await self._cluster_up(host)
        await models.load_readers(_READERS_SECONDS)
        # This command comes late, so that its reply includes registrations that other shards have sent since the start.
        scripts.restore(host.execute("QA.SESSIONS"))
        host.execute("QA.READY", *backend_versions())
        logger.info("worker %d is ready", info.worker)
        watching = self._loop.create_task(scripts.reconcile())
        await self._over
        watching.cancel()
        beat.stop()
        if self._inference is not None:
            self._inference.stop()
        if models.isolated is not None:
            models.isolated.stop()

    async def _cluster_up(self, host: Host) -> None:
        """If the shard starts together with its cluster, wait until the cluster is up, for at most
        `_CLUSTER_UP_SECONDS`. Before that, the shard cannot read keys or models.
        """
        deadline = self._loop.time() + _CLUSTER_UP_SECONDS
        while b"cluster_state:ok" not in host.execute("CLUSTER", "INFO"):
            if self._loop.time() > deadline:
                logger.warning("the cluster is not up after %g s: models load at first use", _CLUSTER_UP_SECONDS)
                return
            await asyncio.sleep(0.05)

    def _user_host(self, host: Host) -> ScriptHost:
        lease_ms = host.info.number("qa.atomic-lease-ms")
        self._atomic = AtomicBlock(self._control, host.links, lease_ms, self._watch_control_again)
        return script_host(host, self._atomic, give_up)

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
            # A thread in an atomic block reads the module's answers from the socket itself. At the end of the block,
            # the event loop watches the socket again.
            self._loop.remove_reader(self._control)
        else:
            self._atomic.drain()  # an answer of the module has arrived after the end of the atomic block

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
    return LoopWatch(loop, (info.number("qa.script-timeout-ms") + info.number("qa.cancel-grace-ms")) / 1000)


def _memory(info: ShardInfo) -> tuple[int, int]:
    """Return the memory limit of a process, and the additional memory while it receives a large reply, both in MB."""
    return info.number("qa.worker-memory-mb"), 2 * info.number("qa.max-model-mb")


def _run_threads(info: ShardInfo) -> int:
    """Return the number of concurrent runs of one process on one device."""
    return max(1, info.number("qa.threads-per-queue"))


def _inference_workers(info: ShardInfo) -> InferenceWorkers | None:
    """Start the inference workers and return them; None if the worker itself runs the models."""
    count = info.number("qa.inference-workers")
    if count <= 0:
        return None
    job_seconds = info.number("qa.job-timeout-ms") / 1000
    silence_seconds = info.number("qa.worker-silence-ms") / 1000
    memory_mb, spare_mb = _memory(info)
    workers = InferenceWorkers(
        WorkerOptions(
            count,
            run_threads=MAX_DEVICES * _run_threads(info),
            start_seconds=info.number("qa.worker-start-ms") / 1000,
            # after a hanging run, a second run must fit into the time limit of the job
            silence_seconds=max(MIN_SILENCE_SECONDS, min(silence_seconds, job_seconds / 2)),
            wait_seconds=min(MAX_WAIT_SECONDS, job_seconds / 2),
            backoff_seconds=info.number("qa.worker-backoff-ms") / 1000,
            memory_mb=memory_mb,
            spare_mb=spare_mb,
        )
    )
    workers.begin()
    return workers


def _models(host: Host, workers: InferenceWorkers | None) -> ModelStore:
    info = host.info
    max_tokens = info.number("qa.max-batch-tokens")
    processes = max(1, info.number("qa.inference-workers"))
    devices = Devices(host.loop, threads_per_queue=processes * _run_threads(info), max_batch_tokens=max_tokens)

    def limits() -> RuntimeLimits:
        # The limits are computed for each load, because a worker that starts together with its cluster does not know
        # the other shards at first.
        return RuntimeLimits(
            info.number("qa.intra-op-parallelism") or _threads_of_one(host, processes),
            max(1, info.number("qa.inter-op-parallelism")),
            info.number("qa.model-timeout-ms"),
            info.number("qa.backend-memory-mb"),
            info.text("qa.model-cache-dir"),
        )

    isolated, foreign_devices = _isolated(host), None
    if isolated is not None:
        foreign_devices = Devices(host.loop, threads_per_queue=_run_threads(info), max_batch_tokens=max_tokens)
    return ModelStore(
        host,
        devices,
        limits=limits,
        max_batch_tokens=max_tokens,
        workers=workers,
        isolated=isolated,
        foreign_devices=foreign_devices,
    )


def _isolated(host: Host) -> IsolatedProcesses | None:
    """Return the processes for foreign models (all models except readers and encoders); None if foreign models run in
    the same processes as readers.
    """
    info = host.info
    processes = info.number("qa.model-processes")
    if processes <= 0:
        return None
    limits = IsolationLimits(
        processes,
        memory_mb=info.number("qa.model-memory-mb"),
        spare_mb=2 * info.number("qa.max-tensor-mb"),
        load_ms=info.number("qa.model-load-timeout-ms"),
        run_ms=info.number("qa.model-timeout-ms"),
        start_seconds=info.number("qa.worker-start-ms") / 1000,
        run_threads=_run_threads(info),
    )
    return IsolatedProcesses(limits, ModuleTrials(host))


def _threads_of_one(host: Host, processes: int) -> int:
    """Return the number of threads of a run, if `processes` processes share the threads of the shard."""
    info = host.info
    threads = info.number("qa.worker-threads")
    shared = model_threads(threads, _topology(host), info.shard_id, len(os.sched_getaffinity(0)))
    return max(1, shared // processes)


def _topology(host: Host) -> Topology | None:
    try:
        return read_topology(host.links.link().execute, host.info)
    except (ClusterError, GearsError) as error:  # the cluster has no slots yet, but the worker starts
        logger.info("the cluster's slots are not known yet: %s", error)
        return None


def _ignore(*_: Any) -> None:
    return None
