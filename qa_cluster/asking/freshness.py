"""Detects whether cached answers are still valid: every shard pushes a message to this process when something changes.

One RESP3 connection to each primary subscribes (`CLIENT TRACKING ON BCAST`) to these keys:

- Watched questions: if a write may change an answer, the shard deletes the question's key. The key names the answer,
  and only this answer is invalidated.
- Epochs of partitions: every write changes an epoch and increases `writes`. A question joins a running computation only
  if `writes` has not changed since the computation started.
- Manifests of readers and encoders, the number of partitions, lists of collections: a change increases `generation`,
  which invalidates all cached answers of this process.
- Lists of API keys: a change increases `key_changes`.
- Pins and synonyms: a change increases `generation` and `guidance_changes`.

These events increase `generation`, too:

- a new topology, or a new subscription to a shard (for example, after a lost connection)
- an epoch from a shard that did not own the partition before: the slot has moved, and its new owner watches no
  questions yet
- a write that deletes more watched questions than a shard can name at once (``docs/inverted-index.md``)

A server sends its pushes at the end of the event loop round that answered the write. Each client of qa-cluster waits
for one more reply of the shard before it reports success. By then the push is in the sockets of all processes. Before
a process serves an answer from the near cache, it checks with `drained` that its own sockets have no unread bytes.

Every `CHECK_SECONDS`, each server is asked for the state of its worker and for up to `CHECKED_EPOCHS` epochs. A server
that is no longer the primary of a partition answers with a redirection, and its subscription is closed. Whole answers
are neither served from caches nor stored in them while a primary has no subscription or has not answered for
`LEASE_SECONDS`. There is one exception: while shards are down, the near cache answers questions with
``coverage=partial`` (`answers/caching.py`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from qa_cluster.errors import ClusterError, ReplyError
from qa_cluster.keys import (
    API_KEYS_PREFIX,
    COLLECTIONS_PREFIX,
    PARTITIONS_KEY,
    PINS_PREFIX,
    SYNONYMS_PREFIX,
    Partitioning,
    epoch_key,
    slot,
)
from qa_cluster.routing.connection import Argument, Connection, ConnectionLost, NoReply
from qa_cluster.routing.shards import Shards
from qa_cluster.routing.silent_server import is_stopped, is_unacknowledged, process_of
from qa_cluster.topology import NotServed, Shard, Topology

EPOCH_PREFIX = "epoch:"
WATCHED_PREFIX = "watched:"
MANIFEST_PREFIX = "bert-qa:manifest"
_GUIDANCE = (PINS_PREFIX, SYNONYMS_PREFIX)
_PREFIXES = (
    WATCHED_PREFIX,
    EPOCH_PREFIX,
    MANIFEST_PREFIX,
    PARTITIONS_KEY,
    COLLECTIONS_PREFIX,
    API_KEYS_PREFIX,
    *_GUIDANCE,
)
CHECK_SECONDS = 0.1
# While a reply is missing, the silence of the server is measured at this interval.
TURN_SECONDS = 0.05
# Of one such interval, at most this time is counted as silence. If an interval takes longer, this process's event loop
# was late.
MOST_TURN_SECONDS = 0.2
CHECKED_EPOCHS = 32
TOPOLOGY_SECONDS = 1.0
LEASE_SECONDS = 1.0
# A shard that cannot be reached for this time is down. A server that only closed its connections is back sooner.
GRACE_SECONDS = 0.5
# A shard that does not reply for this time is down. Forks, scripts and other processes may block a server for seconds.
SILENCE_SECONDS = 5.0
# A server that does not reply for this time is treated as hung. With 12 busy processes on 2 cores, no server was silent
# for that long.
HUNG_SECONDS = 1.0
# A machine that does not acknowledge bytes for this time is unreachable. By then, TCP has sent the bytes three times.
LEAST_UNACKNOWLEDGED_SECONDS = 0.3
DRAIN_ROUNDS = 16
_WORKER_STATE = re.compile(rb"qa_worker_state:(\w+)")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class PendingAnswer:
    """An answer that is being computed. `invalidated` is true if a write has made it invalid."""

    invalidated: bool = False


class Freshness:
    """Tracks the changes that the shards report.

    Attributes:
        generation: increases when all cached answers of this process become invalid.
        writes: increases with every write of documents.
        manifest_changes: increases when readers, encoders or the number of partitions may have changed.
        key_changes: increases when API keys may have changed.
        guidance_changes: increases when pins or synonyms may have changed.
        pushes: how many pushes were received.
        ready: whether every shard reports its changes.
        on_dropped: the functions that are called with the digest of each answer that a write has invalidated.
    """

    def __init__(self, shards: Shards, partitions: Partitioning) -> None:
        self._shards = shards
        self._partitions = partitions
        self._links: dict[Shard, _Link] = {}
        self._pending: dict[str, list[PendingAnswer]] = {}
        self._poll = select.poll()
        self._wake = asyncio.Event()
        self._tick = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.on_dropped: list[Callable[[str], None]] = []
        self.generation = 0
        self.writes = 0
        self.manifest_changes = 0
        self.key_changes = 0
        self.guidance_changes = 0
        self.pushes = 0
        self.ready = False
        self._confirmed_until = 0.0
        self._up_confirmed_until = 0.0
        self._topology_confirmed = 0.0
        self._watchers: dict[Shard, _Watcher] = {}
        self._complaints: dict[str, str] = {}
        self._turn = 0

    async def start(self) -> None:
        """Subscribe to every shard; return after the first attempt, whether it succeeded or failed.

        Later attempts continue in the background until `aclose`.
        """
        self._shards.on_topology.append(self._topology_changed)
        self._task = asyncio.create_task(self._supervise(), name="freshness")
        await self._tick.wait()
        await asyncio.gather(*(watcher.tried.wait() for watcher in list(self._watchers.values())))

    def invalidate(self) -> None:
        """Make all cached answers of this process invalid."""
        self.generation += 1

    async def aclose(self) -> None:
        """Close the subscriptions."""
        tasks = [watcher.task for watcher in self._watchers.values()]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._topology_changed in self._shards.on_topology:
            self._shards.on_topology.remove(self._topology_changed)
        for link in list(self._links.values()):
            link.connection.close()

    def drained(self) -> bool:
        """Return whether every subscription is up, was confirmed in time and has no unread bytes.

        The check costs one system call.
        """
        return self.ready and monotonic() < self._confirmed_until and not self._poll.poll(0)

    def drained_without_down(self) -> bool:
        """Return the same as `drained`, but ignore the shards that are known to be down."""
        return monotonic() < self._up_confirmed_until and not self._poll.poll(0)

    async def drain(self, *, without_down: bool = False) -> bool:
        """Let the event loop read the subscriptions until they have no unread bytes.

        Return False if a subscription is missing, was not confirmed in time, or still has unread bytes after
        `DRAIN_ROUNDS` rounds. If `without_down` is true, ignore the shards that are down.
        """
        drained = self.drained_without_down if without_down and self._shards.down else self.drained
        for _ in range(DRAIN_ROUNDS):
            if drained():
                return True
            until = self._confirmed_until if drained == self.drained else self._up_confirmed_until
            if monotonic() >= until:
                return False
            await asyncio.sleep(0)
        return drained()

    @contextmanager
    def pending_answer(self, digest: str) -> Iterator[PendingAnswer]:
        """Yield an object that tells whether a write invalidated the answer with this digest during the block."""
        pending = PendingAnswer()
        self._pending.setdefault(digest, []).append(pending)
        try:
            yield pending
        finally:
            self._pending[digest].remove(pending)
            if not self._pending[digest]:
                del self._pending[digest]

    def _pushed(self, shard: Shard, push: list[Any]) -> None:
        if not push or push[0] != b"invalidate":
            return
        self.pushes += 1
        if len(push) < 2 or push[1] is None:  # FLUSHALL has deleted all keys of the server
            self._invalidate_all()
            return
        for key in push[1]:
            name = key.decode("utf-8", "replace")
            if name.startswith(WATCHED_PREFIX):
                if digest := name.rpartition(":")[2]:
                    self._dropped(digest)
                else:  # too many answers to name each of them
                    self.generation += 1
            elif name.startswith(EPOCH_PREFIX):
                self.writes += 1
                if not self._served_by(shard, name):  # the slot has moved, and its new owner watches no questions yet
                    self.generation += 1
                    self._wake.set()
            elif name.startswith(COLLECTIONS_PREFIX):
                self.generation += 1
            elif name.startswith(API_KEYS_PREFIX):
                self.key_changes += 1
            elif name.startswith(_GUIDANCE):
                self.generation += 1
                self.guidance_changes += 1
            else:
                self.generation += 1
                self.manifest_changes += 1

    def _served_by(self, shard: Shard, key: str) -> bool:
        try:
            return self._shards.topology.shard_of(slot(key)) == shard
        except NotServed:
            return False

    def _dropped(self, digest: str) -> None:
        for pending in self._pending.get(digest, ()):
            pending.invalidated = True
        for callback in self.on_dropped:
            callback(digest)

    def _invalidate_all(self) -> None:
        self.generation += 1
        self.writes += 1
        self.manifest_changes += 1
        self.key_changes += 1
        self.guidance_changes += 1

    def _topology_changed(self, _topology: Topology) -> None:
        self._invalidate_all()
        self._wake.set()
        self._confirm()

    def _lost(self, connection: Connection) -> None:
        for shard, link in list(self._links.items()):
            if link.connection is connection:
                del self._links[shard]
                self._poll.unregister(link.descriptor)
                self.writes += 1
                self.key_changes += 1
                self.guidance_changes += 1
                if (watcher := self._watchers.get(shard)) is not None:
                    watcher.wake.set()
        self._confirm()
        self._wake.set()

    def _confirm(self) -> None:
        """Compute the times until which shards are known to report their changes, from the last checks.

        `_confirmed_until` is the time for all shards, and `_up_confirmed_until` for the shards that are up. A time is 0
        if one of its shards has no subscription, or if some slots have no shard. While a shard is down,
        `_confirmed_until` is 0.
        """
        topology, down = self._shards.topology, self._shards.down
        confirmed = [link.confirmed for shard, link in self._links.items() if shard not in down]
        confirmed.append(self._topology_confirmed + TOPOLOGY_SECONDS)
        until = min(confirmed) + LEASE_SECONDS if topology.whole else 0.0
        self._up_confirmed_until = until if all(s in self._links or s in down for s in topology.shards) else 0.0
        self.ready = topology.whole and not down and all(shard in self._links for shard in topology.shards)
        self._confirmed_until = until if self.ready else 0.0

    async def _supervise(self) -> None:
        """Refresh the topology regularly, and keep one watcher for each of its shards."""
        while True:
            self._wake.clear()
            begun = monotonic()
            try:
                await self._shards.refresh()
                self._topology_confirmed = begun
                self._log_problem_once("", "")
            except ClusterError as error:
                self._log_problem_once("", str(error))
            self._start_watchers()
            self._confirm()
            self._tick.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(TOPOLOGY_SECONDS if self.ready else CHECK_SECONDS):
                    await self._wake.wait()
            await asyncio.sleep(0.01)

    def _start_watchers(self) -> None:
        """Start and stop watchers, so that each shard of the topology has one watcher."""
        wanted = set(self._shards.all)
        for shard in [shard for shard in self._watchers if shard not in wanted]:
            self._watchers.pop(shard).task.cancel()
            if (link := self._links.get(shard)) is not None:
                link.connection.close()
        for shard in wanted - self._watchers.keys():
            watcher = self._watchers[shard] = _Watcher()
            watcher.task = asyncio.create_task(self._watch(shard, watcher), name=f"freshness of {shard.address}")

    async def _watch(self, shard: Shard, watcher: _Watcher) -> None:
        """Keep a subscription to a shard, and check it every `CHECK_SECONDS`.

        The shard is marked as down in one of these cases:

        - For `GRACE_SECONDS`, its server could not be reached, or was loading its data.
        - Its server has sent no reply for `SILENCE_SECONDS`.
        - Its server refuses all commands because of other shards, and one of these shards is down without a replica.

        `Shards` sends nothing to a shard that is down. Cached answers stay valid for questions that leave the shard
        out. The shard is up again when its server replies and its worker is ready; `generation` then increases.
        """
        failing_since: float | None = None
        while True:
            watcher.wake.clear()
            begun = monotonic()
            try:
                await self._check(shard)
                self._shards.mark_up(shard.address)
                failing_since = None
                self._log_problem_once(str(shard.address), "")
            except (ConnectionLost, _ServerLoading) as error:
                self._log_problem_once(str(shard.address), str(error))
                if isinstance(error, NoReply):
                    self._shards.readiness.mark_hung(shard.address, str(error), begun)
                failing_since = begun if failing_since is None else failing_since
                patience = SILENCE_SECONDS if isinstance(error, NoReply) else GRACE_SECONDS
                if monotonic() - failing_since >= patience and shard in self._watchers:
                    self._shards.mark_down(shard.address, str(error))
            except (ClusterError, ReplyError) as error:  # the server answers, but refuses the command
                self._log_problem_once(str(shard.address), str(error))
                if isinstance(error, _ServerRefuses) and self._shards.lost(besides=shard):
                    self._shards.mark_down(shard.address, str(error))
            self._confirm()
            watcher.tried.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_SECONDS):
                    await watcher.wake.wait()
            await asyncio.sleep(0.01)

    def _log_problem_once(self, of: str, problem: str) -> None:
        """Log a problem once, not ten times a second. An empty `problem` says that the last problem is over.

        `of` is the address of the shard with the problem. An empty `of` means that the topology cannot be read.
        """
        if problem and problem != self._complaints.get(of):
            _log.warning("cached answers are bypassed: %s", problem)
        self._complaints[of] = problem

    async def _check(self, shard: Shard) -> None:
        if shard not in self._links:
            await self._subscribe(shard)
        link = self._links.get(shard)
        if link is None:
            raise ConnectionLost(f"connection to {shard.address} was lost at once")
        begun = monotonic()
        topology = self._shards.topology
        keys = [key for key in map(epoch_key, self._partitions.tags) if topology.shard_of(slot(key)) == shard]
        self._turn += 1
        first = self._turn * CHECKED_EPOCHS % max(1, len(keys))
        asked: list[tuple[Argument, ...]] = [("GET", key) for key in (keys[first:] + keys[:first])[:CHECKED_EPOCHS]]
        asked = [*(asked or [("PING",)]), ("INFO", "qa_worker")]
        try:
            *replies, worker = await self._replies(shard, link.connection, asked, link.pid)
            self._shards.readiness.note_worker(shard.address, worker)
            for reply in replies:
                # A server with a full disk refuses a PING with this error, but can still be read.
                if isinstance(reply, ConnectionLost) or (isinstance(reply, ReplyError) and reply.code != "MISCONF"):
                    raise reply
        except (ConnectionLost, ReplyError) as error:
            link.connection.close()
            self._wake.set()
            text = f"{shard.address} no longer reports changes: {error}"
            if isinstance(error, ConnectionLost):
                raise type(error)(text) from error
            raise _KINDS.get(error.code, ClusterError)(text) from error
        link.confirmed = begun

    async def _subscribe(self, shard: Shard) -> None:
        connection = await Connection.open(
            shard.address.host,
            shard.address.port,
            self._shards.login,
            on_push=partial(self._pushed, shard),
            on_lost=self._lost,
        )
        try:
            prefixes: list[Argument] = []
            for prefix in _PREFIXES:
                prefixes += ["PREFIX", prefix]
            commands: list[tuple[Argument, ...]] = [("CLIENT", "TRACKING", "ON", "BCAST", *prefixes)]
            commands.append(("INFO", "server"))
            if shard in self._shards.down:
                commands.append(("INFO", "qa"))
            tracking, about, *info = await self._replies(shard, connection, commands)
            if isinstance(tracking, ReplyError | ConnectionLost):
                raise tracking
            _check_worker(info)
            pid = await _process_of(connection, about)
        except ReplyError as error:
            connection.close()
            raise ClusterError(f"cannot subscribe to changes on {shard.address}: {error}") from error
        except BaseException:
            connection.close()
            raise
        link = _Link(connection, connection.fileno(), pid)
        if link.descriptor < 0:
            raise ConnectionLost(f"connection to {shard.address} was lost at once")
        self._links[shard] = link
        self._poll.register(link.descriptor, select.POLLIN)
        self._invalidate_all()

    async def _replies(
        self, shard: Shard, connection: Connection, commands: Sequence[tuple[Argument, ...]], pid: int = 0
    ) -> list[Any]:
        """Send commands and return their replies. If a reply is missing after `SILENCE_SECONDS`, close the connection.

        Time in which this process's event loop is late is not counted as silence, because replies may be unread.

        `pid` is the process id of the server if it runs on this machine, else 0.

        Raises:
            NoReply: a reply is missing.
        """
        futures = connection.send_many(commands)
        silent, begun = 0.0, monotonic()
        before = begun
        while silent < SILENCE_SECONDS:
            await asyncio.wait(futures, timeout=TURN_SECONDS)
            if all(future.done() for future in futures):
                return [future.result() for future in futures]
            now = monotonic()
            silent += min(now - before, MOST_TURN_SECONDS)
            before = now
            if why := self._hung(connection, pid, silent):
                self._shards.readiness.mark_hung(shard.address, why, begun)
        connection.close()
        raise NoReply(f"no reply in {SILENCE_SECONDS:g} s")

    def _hung(self, connection: Connection, pid: int, silent: float) -> str:
        """Return why a server that has been silent for `silent` seconds is treated as hung; empty if it is not.

        `connection` is the connection on which a reply is missing. `pid` is as in `_replies`.

        Requests that may leave out shards continue without a hung server (`qa_cluster.routing.readiness`). A server is
        treated as hung after `HUNG_SECONDS`, or sooner if the kernel knows that it is stopped or unreachable
        (`qa_cluster.routing.silent_server`).
        """
        readiness, sock = self._shards.readiness, connection.socket
        if silent >= HUNG_SECONDS:
            return f"no reply for {HUNG_SECONDS:g} s"
        if silent >= readiness.hung_seconds / 2 and is_stopped(pid):
            return "its process is stopped"
        least = max(readiness.patience_seconds, LEAST_UNACKNOWLEDGED_SECONDS)
        if silent >= least and sock is not None and is_unacknowledged(sock):
            return f"its machine has not acknowledged a command for {silent:.1f} s"
        return ""


@dataclass(slots=True)
class _Link:
    """A subscription to a shard.

    Attributes:
        descriptor: the file descriptor to poll.
        pid: the process id of the server; 0 if it is on another machine.
        confirmed: when the last successful check started, on the clock of `time.monotonic`; 0 before the first check.
    """

    connection: Connection
    descriptor: int
    pid: int = 0
    confirmed: float = 0.0


class _Watcher:
    """The task that watches one shard.

    Attributes:
        tried: is set after the first attempt to subscribe to the shard, whether it succeeded or failed.
        wake: if it is set, the next check of the shard starts at once.
    """

    task: asyncio.Task[None]

    def __init__(self) -> None:
        self.tried = asyncio.Event()
        self.wake = asyncio.Event()


class _ServerLoading(ClusterError):
    """The server runs, but cannot answer questions yet: it is loading its data, or its worker is not ready."""


class _ServerRefuses(ClusterError):
    """The server refuses all commands, because most servers are down or because it requires all servers to be up."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text} (it refuses commands because other servers are down; if most servers are up, set"
            " cluster-require-full-coverage to no)"
        )


_KINDS: dict[str, type[ClusterError]] = {"LOADING": _ServerLoading, "CLUSTERDOWN": _ServerRefuses}


async def _process_of(connection: Connection, info: Any) -> int:
    """Return the process id of the server of a connection; 0 if it is unknown. `process_of` runs in a thread.

    `info` is the reply to ``INFO server``, or an error.
    """
    sock = connection.socket
    return await asyncio.to_thread(process_of, sock, info) if sock is not None and isinstance(info, bytes) else 0


def _check_worker(info: Sequence[Any]) -> None:
    """Raise an error if the worker of a shard that was down is not ready, because questions would wait for the worker.

    `info` has the reply to ``INFO qa``; it is empty for a shard that was not down.
    """
    for reply in info:
        if isinstance(reply, bytes) and (found := _WORKER_STATE.search(reply)) and found[1] != b"ready":
            raise _ServerLoading(f"its worker is {found[1].decode()}")
