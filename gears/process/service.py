"""Puts the worker together: links, models, sessions, then `QA.READY` and the job loop, until the shard goes away."""

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

from ..inference.backends.choose import RuntimeLimits
from ..inference.batcher import DEFAULT_MAX_BATCH_TOKENS
from ..inference.devices import Devices
from ..inference.model_store import ModelStore
from ..registrations.neighbours import Neighbours
from ..registrations.registrar import Registrar
from ..registrations.sessions import SessionRegistry
from ..registrations.streams import Streams
from ..registrations.timers import Timers
from ..runs.distributed import Distributor
from ..runs.history import ExecutionHistory
from ..runs.settings import Settings
from ..scripting import api
from ..scripting.runtime import Runtime, bind
from ..shard.atomic import AtomicBlock
from ..shard.executions import IdSource
from ..shard.failures import GearsError
from ..shard.link import AsyncLink, LinkPool
from ..shard.loop_watch import LoopWatch
from ..shard.memory import limit_memory
from ..shard.peers import Peers, read_topology
from ..shard.shard import ShardInfo, Start
from ..shard.threads import inherit_contexts
from .commands import answer_about_executions
from .heartbeat import Heartbeat
from .job_loop import JobLoop
from .jobs import Jobs

logger = logging.getLogger(__name__)
_CLUSTER_UP_SECONDS = 5.0


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


class Service:
    """A worker from its start line to its end."""

    def __init__(self, start: Start, control: socket.socket) -> None:
        self._start = start
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._runtime: Runtime | None = None

    async def run(self) -> None:
        """Serve until the control socket closes or a link is lost."""
        self._loop.add_reader(self._control, self._control_readable)
        for number in (signal.SIGTERM, signal.SIGINT):
            # a Ctrl-C in the terminal reaches the whole group: the server decides when its worker ends
            self._loop.add_signal_handler(number, self.end if number == signal.SIGTERM else _ignore)
        links = LinkPool(self._start)
        info = links.link().info
        # a reply is held twice while it is received: in the connection's buffer, and as an object
        limit_memory(info.number("qa.worker-memory-mb", 0), 2 * info.number("qa.max-model-mb", 2048))
        runtime = self._assemble(links, info)
        self._runtime = runtime
        runtime.watch.begin()
        beat = Heartbeat(self._start, runtime.models.devices, runtime.watch, self._end_threadsafe)
        beat.begin()
        fetching = await AsyncLink.open(self._start, self.end)
        reporting = await AsyncLink.open(self._start, self.end)
        runtime.reporting = reporting
        jobs = JobLoop(Jobs(runtime), runtime.watch, fetching, reporting)
        jobs.ask()
        if info.cluster and (runtime.execute("QA.SESSIONS") or runtime.execute("AI._MODELSCAN")):
            await self._cluster_up(runtime)
        await runtime.models.load_all()
        # asked for only now: what another shard has registered here meanwhile is in the reply
        runtime.registrar.restore(runtime.execute("QA.SESSIONS"))
        runtime.execute("QA.READY")
        logger.info("worker %d is ready", info.worker)
        watching = self._loop.create_task(Neighbours(runtime).watch())
        await self._over
        watching.cancel()
        beat.stop()

    async def _cluster_up(self, runtime: Runtime) -> None:
        """Wait for the cluster of a shard that starts with it: until then no key can be read, nor a model fetched."""
        deadline = self._loop.time() + _CLUSTER_UP_SECONDS
        while b"cluster_state:ok" not in runtime.execute("CLUSTER", "INFO"):
            if self._loop.time() > deadline:
                logger.warning("the cluster is not up after %g s: models load at first use", _CLUSTER_UP_SECONDS)
                return
            await asyncio.sleep(0.05)

    def _assemble(self, links: LinkPool, info: ShardInfo) -> Runtime:
        peers = Peers(self._bound)
        distributor = Distributor(self._bound)
        registrar = Registrar(self._bound)
        max_tokens = info.number("qa.max-batch-tokens", DEFAULT_MAX_BATCH_TOKENS)
        devices = Devices(
            self._loop, threads_per_queue=max(1, info.number("qa.threads-per-queue", 1)), max_batch_tokens=max_tokens
        )

        def limits() -> RuntimeLimits:
            # asked when a model is loaded: a worker that starts with its cluster does not know its neighbours yet
            threads = info.number("qa.intra-op-parallelism", 0) or info.number("qa.worker-threads", 0)
            return RuntimeLimits(
                model_threads(threads, _topology(links, info), info.shard_id, len(os.sched_getaffinity(0))),
                max(1, info.number("qa.inter-op-parallelism", 1)),
                info.number("qa.model-timeout-ms", 5000),
                info.number("qa.backend-memory-mb", 0),
            )

        history = ExecutionHistory()

        def read_settings(*arguments: str) -> Any:
            return self._bound().execute_own(*arguments)

        runtime = Runtime(
            loop=self._loop,
            info=info,
            links=links,
            atomic=AtomicBlock(self._control, links, info.number("qa.atomic-lease-ms", 1000)),
            ids=IdSource(info.shard_id),
            history=history,
            sessions=SessionRegistry(),
            registrar=registrar,
            peers=peers,
            distributor=distributor,
            models=ModelStore(self._bound, devices, limits=limits, max_batch_tokens=max_tokens),
            streams=Streams(self._bound),
            timers=Timers(self._bound),
            settings=Settings(read_settings, history),
            watch=_watch(self._loop, info),
        )
        peers.on("register", registrar.take)
        peers.on("registered", registrar.confirmed)
        peers.on("run", distributor.join)
        peers.on("records", distributor.packet)
        peers.on("state", distributor.state)
        peers.on("abort", distributor.abort)
        answer_about_executions(runtime)
        bind(runtime)
        api.install_modules()
        inherit_contexts()
        return runtime

    def _bound(self) -> Runtime:
        if self._runtime is None:
            raise RuntimeError("the worker is still being put together")
        return self._runtime

    def _control_readable(self) -> None:
        try:
            data = self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end()
        else:
            # nothing is sent outside an atomic block, which reads by itself: an answer that came after its block's end
            self._control.recv(1 << 16, socket.MSG_DONTWAIT)

    def end(self) -> None:
        """Let `run` return."""
        if not self._over.done():
            self._loop.remove_reader(self._control)
            self._over.set_result(None)

    def _end_threadsafe(self) -> None:
        self._loop.call_soon_threadsafe(self.end)


def _watch(loop: asyncio.AbstractEventLoop, info: ShardInfo) -> LoopWatch:
    grace = info.number("qa.cancel-grace-ms", 2000)
    limit, longest = info.number("qa.job-timeout-ms", 30000), info.number("qa.script-timeout-ms", 600000)
    return LoopWatch(loop, (limit + grace) / 1000, (longest + grace) / 1000)


def _topology(links: LinkPool, info: ShardInfo) -> Topology | None:
    try:
        return read_topology(links.link().execute, info)
    except (ClusterError, GearsError) as error:  # a cluster without slots yet: the worker starts all the same
        logger.info("the cluster's slots are not known yet: %s", error)
        return None


def _ignore(*_: Any) -> None:
    return None
