"""Connects to every shard and routes each command, even while slots migrate or servers fail over.

Each shard has one shared connection, on which short commands are pipelined. Commands that block (`RG.TRIGGER`) use a
bounded pool: while such a command waits for a function, the server runs no other command on its connection. Rankings
also use the pool, which limits their number. If a command of the pool is cancelled, its connection is closed, and the
shard discards the job.

After MOVED, TRYAGAIN, a failover or a lost connection, the topology is refreshed and the command is retried, for at
most `RETRY_SECONDS`. A caller can choose a different time, or set a deadline of its own. After ASK, the command goes to
the server that the reply names.

A shard that was detected as down (`mark_down`) gets no commands, and its commands in flight fail. If a replica may
replace the primary, commands that are retried (`Shards.retrying`) wait for the replica. Otherwise, new commands fail at
once with `ShardDown`.

A request that may leave out shards (`coverage=partial`) does not wait until a shard is detected as down: `readiness`
probes the shards while the request waits (`patiently`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any

from qa_cluster.errors import CannotWrite, ClusterError, QueueFull, ReplyError, from_reply, remedy
from qa_cluster.keys import slot as slot_of
from qa_cluster.scripts.calls import Call
from qa_cluster.shard_functions import NOT_REGISTERED
from qa_cluster.topology import Address, NotServed, Shard, Topology, parse_redirect, parse_slots
from qa_cluster.tracing import Fact, current, step

from .connection import MAX_PENDING, Argument, Connection, ConnectionLost, Login
from .on_behalf import connection_name
from .readiness import ReadyShards

RETRY_SECONDS = 10.0
BACKOFF_SECONDS = 0.02
MAX_BACKOFF_SECONDS = 0.5
# The number of commands that `execute_many` sends to a shard before it waits for their replies.
MANY_AT_ONCE = 512
# Shards compare their functions every 2 s and then send each other the missing functions.
REGISTERED_WITHIN_SECONDS = 5.0
REGISTERED_PAUSE_SECONDS = 0.1
_NONE: frozenset[Shard] = frozenset()
# The codes of errors after which a command is retried after a pause. UNBLOCKED: a primary has become a replica while a
# command on it was waiting for a function.
_WAIT_AND_RETRY = frozenset({"ASK", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"})


def passes(error: ReplyError) -> bool:
    """Return whether a new topology or a pause may resolve the error, so that `Shards.retrying` retries."""
    return error.code == "MOVED" or error.code in _WAIT_AND_RETRY


class ShardDown(ClusterError):
    """A shard is down, so its documents are unavailable.

    `address` is the address of the shard. It is None if the error names not one shard, but all down shards that a
    request needs. `Shards.retrying` raises an error without an address at once, and does not wait until replicas
    replace the shards.
    """

    def __init__(self, text: str, address: Address | None = None) -> None:
        super().__init__(text)
        self.address = address


class NotWhole(ClusterError):
    """The shards' replies do not cover each partition exactly once, for example while a slot migrates."""


class ShardPool:
    """The connections to one primary.

    Args:
        size: the maximum number of connections of the pool. The shared connection is not counted.
        max_waiting: the maximum number of new commands that wait for a connection of the pool.
    """

    def __init__(self, address: Address, login: Login, size: int, max_waiting: int) -> None:
        self.address = address
        self._login = login
        self._size = size
        self._max_waiting = max_waiting
        self._slots = asyncio.Semaphore(size)
        self._waiting = 0
        self._idle: list[Connection] = []
        self._shared: Connection | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._may_name = True
        self._down = ""
        self._under_way: set[asyncio.Future[Connection]] = set()
        self._busy: set[Connection] = set()

    def fail_all(self, why: str) -> None:
        """Fail all commands in flight, and all new commands until `resume`, because the server is down.

        `why` is the reason, which the errors of new commands contain.
        """
        self._down = why
        for opening in self._under_way:
            opening.cancel()
        for connection in [*self._busy, *self._idle, *([self._shared] if self._shared is not None else [])]:
            connection.close()
        self._idle.clear()

    def resume(self) -> None:
        """Accept commands again, after `fail_all`."""
        self._down = ""

    def _check(self) -> None:
        if self._down:
            raise ShardDown(f"shard {self.address} is down: {self._down}", self.address)

    async def _open(self) -> Connection:
        self._check()
        opening = asyncio.ensure_future(Connection.open(self.address.host, self.address.port, self._login))
        self._under_way.add(opening)
        try:
            with step("connect"):
                connection = await opening
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().close()  # the caller was cancelled just after the connection had opened
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check()  # `fail_all` cancelled the opening, not the caller
            raise
        finally:
            self._under_way.discard(opening)
        if self._down:  # `fail_all` was called just after the connection had opened
            connection.close()
            self._check()
        return connection

    async def shared(self) -> Connection:
        """Return the shared connection for short commands; open it if necessary."""
        if self._shared is not None and not self._shared.closed:
            return self._shared
        async with self._opening:
            if self._shared is None or self._shared.closed:
                opened = await self._open()
                if self._closed:  # closed while it was being opened: no other code would close it later
                    opened.close()
                    raise ConnectionLost(f"connections to {self.address} are closed")
                self._shared = opened
            return self._shared

    async def execute_blocking(self, *command: Argument) -> Any:
        """Run a command that may block, on a connection of the pool.

        Raises:
            ReplyError: the reply is an error.
            QueueFull: too many commands wait for a connection.
            ClusterError: the shard is down (`ShardDown`), or the connection cannot be opened or is lost.
        """
        (reply,) = await self.execute_pipeline([command])
        if isinstance(reply, ReplyError | ConnectionLost):
            raise reply
        return reply

    async def _run(self, connection: Connection, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """Run commands on a connection.

        The connection first gets the name of the asker, so that the shard can take turns between askers.
        """
        name = connection_name()
        naming = connection.name != name and self._may_name
        if naming:
            connection.name = name
            commands = [("CLIENT", "SETNAME", name), *commands]
        replies: list[Any] = []
        for first in range(0, len(commands), MAX_PENDING):
            replies += [await reply for reply in connection.send_many(commands[first : first + MAX_PENDING])]
        if naming and isinstance(replies.pop(0), ReplyError):
            self._may_name = False  # The process's ACL user may not set names, so shards cannot distinguish askers.
        return replies

    async def execute_pipeline(self, commands: Sequence[tuple[Argument, ...]], *, admitted: bool = False) -> list[Any]:
        """Run commands one after the other on a connection of the pool.

        An error reply or `ConnectionLost` is returned in place of the reply. `admitted` is for work that was admitted
        with earlier commands: it waits for a connection regardless of the number of waiting commands.

        Raises:
            QueueFull: too many commands wait for a connection.
            ClusterError: the shard is down (`ShardDown`), or the connection cannot be opened.
        """
        self._check()
        if self._slots.locked() and self._waiting >= self._max_waiting and not admitted:
            raise QueueFull(
                f"{self._size} questions are running on shard {self.address} and {self._waiting} wait for a connection"
            )
        await self._turn()
        connection: Connection | None = None
        try:
            while self._idle and (connection is None or connection.closed):
                connection = self._idle.pop()
            if connection is None or connection.closed:
                connection = await self._open()
            self._busy.add(connection)
            if (recorded := current()) is not None:
                recorded.sent_at = perf_counter()
            return await self._run(connection, commands)
        except asyncio.CancelledError:
            if connection is not None:
                connection.close()
            raise
        finally:
            self._slots.release()
            if connection is not None:
                self._busy.discard(connection)
            if connection is not None and not connection.closed:
                if self._closed or connection.pending:
                    connection.close()
                else:
                    self._idle.append(connection)

    async def _turn(self) -> None:
        self._waiting += 1
        try:
            if not self._slots.locked():
                await self._slots.acquire()
                return
            with step("connection", {"qa.waiting": self._waiting}):
                await self._slots.acquire()
        finally:
            self._waiting -= 1

    @property
    def in_use(self) -> int:
        """The number of connections of the pool that run commands now, or are being opened for a command."""
        return self._size - self._slots._value

    def close(self) -> None:
        """Close the shared and the idle connections. The other connections close when their commands end."""
        self._closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        if self._shared is not None:
            self._shared.close()


class Shards:
    """Routes commands to the shards of one cluster.

    Args:
        seeds: the addresses of one or more servers of the cluster, from which the topology is first read.
        connections_per_shard: the maximum number of pool connections to each shard.
        max_waiting_per_shard: the maximum number of new commands that wait for a pool connection to one shard.
        patience_seconds: see `ReadyShards`.

    >>> shards = Shards([Address("127.0.0.1", 7000)], Login())
    >>> await shards.open()
    >>> await shards.execute("epoch:{t}", "GET", "epoch:{t}")
    """

    def __init__(
        self,
        seeds: Sequence[Address],
        login: Login,
        *,
        connections_per_shard: int = 64,
        max_waiting_per_shard: int = 256,
        patience_seconds: float = 0.3,
    ) -> None:
        if not seeds:
            raise ClusterError("no address of the cluster is given: name at least one server as host:port")
        self._seeds = tuple(seeds)
        self.login = login
        self._size = connections_per_shard
        self._max_waiting = max_waiting_per_shard
        self._pools: dict[Address, ShardPool] = {}
        self._down: dict[Address, str] = {}
        self.readiness = ReadyShards(self._shared, patience_seconds)
        self._topology: Topology | None = None
        self._refreshing: asyncio.Task[Topology] | None = None
        self.on_topology: list[Callable[[Topology], None]] = []
        # The number of retries by reason: the error code of a reply, or the name of an exception.
        self.redirects: Counter[str] = Counter()

    @property
    def topology(self) -> Topology:
        """The last known topology of the cluster."""
        if self._topology is None:
            raise ClusterError("not connected to the cluster yet")
        return self._topology

    @property
    def all(self) -> tuple[Shard, ...]:
        """All primaries."""
        return self.topology.shards

    @property
    def down(self) -> frozenset[Shard]:
        """The primaries that are down."""
        return frozenset(shard for shard in self.all if shard.address in self._down) if self._down else _NONE

    @property
    def up(self) -> tuple[Shard, ...]:
        """The primaries that are not known to be down.

        Primaries whose servers cannot answer now (`not_ready`) are included only if no server can answer now.
        """
        up = tuple(shard for shard in self.all if shard.address not in self._down)
        return tuple(shard for shard in up if shard.address not in self.readiness.servers) or up

    @property
    def not_ready(self) -> frozenset[Shard]:
        """The primaries that cannot answer now. They may not have been detected as down yet."""
        return frozenset(shard for shard in self.all if shard.address in self.readiness.servers)

    @property
    def without_worker(self) -> frozenset[Shard]:
        """The primaries whose workers cannot answer now."""
        workers = self.readiness.workers
        return frozenset(shard for shard in self.all if shard.address in workers) if workers else _NONE

    def lost(self, besides: Shard | None = None) -> frozenset[Shard]:
        """Return the primaries that are down and have no replica to replace them. The shard `besides` is left out."""
        return self.down - self.topology.spared - {besides}

    def mark_down(self, address: Address, why: str) -> None:
        """Mark a primary as down: its commands fail, and it gets no commands until `mark_up`.

        `why` is the reason, which later errors contain. If no shard of the topology has this address, nothing happens.
        """
        if not any(shard.address == address for shard in self.all):
            return
        self._down[address] = why
        self.pool(address).fail_all(why)

    def mark_up(self, address: Address) -> None:
        """Mark a server as up, so that it gets commands again."""
        if self._down.pop(address, None) is not None and address in self._pools:
            self._pools[address].resume()

    def why_down(self, shards: Iterable[Shard]) -> str:
        """Return a text that names these shards, all of which must be down, and the fault of each."""
        return "; ".join(sorted(f"shard {shard.address} is down: {self._down[shard.address]}" for shard in shards))

    async def open(self) -> None:
        """Connect to the cluster; ClusterError if none of the given addresses responds."""
        await self.refresh()

    async def aclose(self) -> None:
        """Close all connections."""
        await self.readiness.aclose()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        await asyncio.sleep(0)

    def pool(self, address: Address) -> ShardPool:
        """Return the connection pool of the server at `address`."""
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = ShardPool(address, self.login, self._size, self._max_waiting)
        return pool

    async def _shared(self, address: Address) -> Connection:
        return await self.pool(address).shared()

    def shard_of_key(self, key: str | bytes) -> Shard:
        """Return the shard that serves `key`."""
        return self.topology.shard_of(slot_of(key))

    async def refresh(self) -> Topology:
        """Ask the cluster for its slots and return the topology. Concurrent callers share one request.

        ClusterError if no server of the cluster replies.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        return await asyncio.shield(self._refreshing)

    def _is_unlikely_to_reply(self, address: Address) -> bool:
        return address in self._down or address in self.readiness.servers

    async def _refresh(self) -> Topology:
        known = [] if self._topology is None else [shard.address for shard in self._topology.shards]
        problems: list[str] = []
        best: Topology | None = None
        for address in sorted(dict.fromkeys([*known, *self._seeds]), key=self._is_unlikely_to_reply):
            try:
                async with asyncio.timeout(self.login.connect_timeout_seconds):
                    connection = await self.pool(address).shared()
                    found = parse_slots(await connection.execute("CLUSTER", "SLOTS"), address)
            except (ClusterError, ReplyError, TimeoutError) as error:
                problems.append(f"{address}: {error or 'timeout'}")
                continue
            if best is None or found.covered > best.covered:
                best = found
            if found.whole:
                break
        if best is None:
            raise ClusterError(f"no server of the cluster can be used: {'; '.join(problems)}")
        self._install(best)
        return best

    def _install(self, found: Topology) -> None:
        changed = found != self._topology
        self._topology = found
        keep = {shard.address for shard in found.shards} | set(self._seeds)
        for address in [address for address in self._pools if address not in keep]:
            self._pools.pop(address).close()
        served = {shard.address for shard in found.shards}
        for address in [address for address in self._down if address not in served]:
            self.mark_up(address)  # `freshness` watches only shards of the topology, so it would never mark this server
        self.readiness.keep(served)
        if changed:
            for callback in self.on_topology:
                callback(found)

    async def execute(self, key: str | bytes, *command: Argument, blocking: bool = False) -> Any:
        """Run a command on the shard of `key`; follow redirections and retry during failovers.

        A command that may block must have `blocking`, and then uses a connection of the pool. The retries end after
        `RETRY_SECONDS`. Errors are as in `retrying`.
        """

        async def attempt() -> Any:
            return await self._execute_at(self.shard_of_key(key).address, command, blocking=blocking)

        return await self.retrying(attempt)

    async def execute_once(self, key: str | bytes, *command: Argument) -> Any:
        """Run a command once, on the shard of `key` in the last known topology.

        Use this method inside `retrying`, because only ASK is followed. MOVED and other redirections raise ReplyError.
        """
        return await self._execute_at(self.shard_of_key(key).address, command, blocking=False)

    async def run_once(self, call: Call) -> Any:
        """Run a call once, as `execute_once`. A script is sent with its text only if the server does not have it."""
        try:
            return await self.execute_once(call.keys[0], *call.short())
        except ReplyError as error:
            if error.code != "NOSCRIPT":
                raise
        return await self.execute_once(call.keys[0], *call.command())

    async def run(self, call: Call, seconds: float = RETRY_SECONDS) -> Any:
        """Run a call on the shard of its first key.

        The method follows redirections and retries during failovers, for at most `seconds`. Errors are as in
        `retrying`.
        """
        return await self.retrying(lambda: self.run_once(call), seconds)

    async def execute_on(self, shard: Shard, *command: Argument, blocking: bool = False) -> Any:
        """Run a command once, on this shard only. A redirection raises ReplyError.

        A command that may block must have `blocking`, and then uses a connection of the pool.
        """
        return await self._execute_here(shard.address, command, blocking=blocking)

    async def call_function(self, shard: Shard, name: str, *arguments: str | int) -> list[Any]:
        """Call a function on a shard and return its results.

        A shard that has just joined gets its functions from the other shards. Until then, the call is retried for up to
        `REGISTERED_WITHIN_SECONDS`.

        Raises:
            ReplyError: the function or the shard refused the call.
            ClusterError: the function is not registered, the shard cannot be reached, or the reply is not a list.
            QueueFull: too many commands wait for a connection.
        """
        until = monotonic() + REGISTERED_WITHIN_SECONDS
        while True:
            try:
                reply = await self.execute_on(shard, "RG.TRIGGER", name, *arguments, blocking=True)
                break
            except ReplyError as error:
                if NOT_REGISTERED not in str(error):
                    raise
                if monotonic() >= until:
                    raise without_function(shard, name) from error
            await asyncio.sleep(REGISTERED_PAUSE_SECONDS)
        if not isinstance(reply, list):
            raise ClusterError(f"shard {shard.address} answered {name} with {reply!r}"[:300])
        return reply

    async def execute_pipelines(
        self, commands: Mapping[Address, Sequence[tuple[Argument, ...]]], *, admitted: bool = False
    ) -> list[list[Any]]:
        """Run the commands of each server once, pipelined on a connection of its pool. All servers work in parallel.

        The replies are in the order of the servers. An error reply or a redirection is returned in place of a reply.

        Raises:
            QueueFull: too many commands of a server wait for a connection. Work that is `admitted` always waits.
            ClusterError: a shard is down (`ShardDown`), or a connection cannot be opened or is lost.
        """
        replies = await asyncio.gather(
            *(self._pipeline(address, wanted, admitted=admitted) for address, wanted in commands.items())
        )
        lost = next((reply for each in replies for reply in each if isinstance(reply, ConnectionLost)), None)
        if lost is not None:
            raise lost
        return list(replies)

    async def _pipeline(
        self, address: Address, commands: Sequence[tuple[Argument, ...]], *, admitted: bool
    ) -> list[Any]:
        with step("indexes", is_call=True) as call:
            if call is not None:
                about = {"server.address": address.host, "server.port": address.port, "qa.commands": len(commands)}
                call.note(about)
            return await self.pool(address).execute_pipeline(commands, admitted=admitted)

    async def _execute_here(self, address: Address, command: tuple[Argument, ...], *, blocking: bool) -> Any:
        try:
            if blocking:
                return await self.pool(address).execute_blocking(*command)
            return await (await self.pool(address).shared()).execute(*command)
        except ReplyError as error:
            if isinstance(from_reply(str(error)), CannotWrite):
                refused = CannotWrite(f"shard {address} cannot write: {remedy(str(error))}")
                raise refused.at(address) from error
            raise

    async def _execute_at(self, address: Address, command: tuple[Argument, ...], *, blocking: bool) -> Any:
        try:
            return await self._execute_here(address, command, blocking=blocking)
        except ReplyError as error:
            if error.code != "ASK":
                raise
            self.redirects["ASK"] += 1
            _, target = parse_redirect(str(error), address)
        connection = await self.pool(target).shared()
        _, reply = await asyncio.gather(*connection.send_many([("ASKING",), command]))
        if isinstance(reply, ReplyError | ConnectionLost):
            raise reply
        return reply

    async def execute_many(self, commands: Iterable[tuple[str, tuple[Argument, ...]]]) -> list[Any]:
        """Run (key, command) pairs, pipelined per shard, and return their replies in the order of the pairs.

        A command that fails is run again with `execute`, and the error of the second run is raised.
        """
        wanted = list(commands)
        by_address: dict[Address, list[int]] = {}
        for index, (key, _) in enumerate(wanted):
            by_address.setdefault(self.shard_of_key(key).address, []).append(index)
        replies: list[Any] = [ConnectionLost("not sent")] * len(wanted)

        async def run(address: Address, indexes: list[int]) -> None:
            try:
                connection = await self.pool(address).shared()
            except ClusterError as error:
                for index in indexes:
                    replies[index] = error
                return
            for first in range(0, len(indexes), MANY_AT_ONCE):
                some = indexes[first : first + MANY_AT_ONCE]
                for index, future in zip(some, connection.send_many([wanted[i][1] for i in some]), strict=True):
                    replies[index] = await future

        await asyncio.gather(*(run(address, indexes) for address, indexes in by_address.items()))
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError | ClusterError):
                replies[index] = await self.execute(wanted[index][0], *wanted[index][1])
        return replies

    async def retrying(self, attempt: Callable[[], Awaitable[Any]], seconds: float = RETRY_SECONDS) -> Any:
        """Await `attempt()` until it succeeds, or fails for a reason that a new topology or a pause does not resolve.

        The method gives up after `seconds`. A caller with its own deadline wraps the call in `asyncio.timeout`.

        Raises:
            ClusterError: `seconds` have passed, or a shard is down and no other server will replace it (`ShardDown`).
            QAError: the error of a reply that a retry does not resolve (`from_reply`), or another error of `attempt()`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        backoff = BACKOFF_SECONDS
        moved = 0
        while True:
            try:
                return await attempt()
            except ReplyError as error:
                self.redirects[error.code] += 1
                if error.code == "MOVED" and moved < 5:
                    moved += 1
                elif not passes(error):
                    raise from_reply(str(error)) from error
                else:
                    self._check_refusal(error)
                    backoff = await self._pause(backoff, until, seconds, error)
            except ShardDown as error:
                self.redirects["ShardDown"] += 1
                if not self._may_be_replaced(error.address):
                    raise
                backoff = await self._pause(backoff, until, seconds, error)
            except (ConnectionLost, NotServed, NotWhole) as error:
                self.redirects[type(error).__name__] += 1
                backoff = await self._pause(backoff, until, seconds, error)
            try:
                await self.refresh()
            except ClusterError as error:
                backoff = await self._pause(backoff, until, seconds, error)

    def _may_be_replaced(self, address: Address | None) -> bool:
        """Return whether another server serves the slots of this address now, or may serve them soon."""
        if address is None:
            return False
        shard = next((shard for shard in self.all if shard.address == address), None)
        return shard is None or shard in self.topology.spared

    def _check_refusal(self, error: ReplyError) -> None:
        """Raise ShardDown if the shards refuse commands because another shard is down without a replica."""
        lost = self.lost()
        if error.code == "CLUSTERDOWN" and lost:
            raise ShardDown(
                f"{self.why_down(lost)}; the other shards therefore refuse all commands (if most shards are up, set"
                f" cluster-require-full-coverage to no): {error}"
            ) from error

    @staticmethod
    async def _pause(backoff: float, until: float, seconds: float, error: Exception) -> float:
        if asyncio.get_running_loop().time() + backoff >= until:
            raise ClusterError(f"gave up after {seconds:g} s of retries: {error}") from error
        why = error.code if isinstance(error, ReplyError) else type(error).__name__
        with step("pause", {"error.type": why}):
            await asyncio.sleep(backoff)
        return min(backoff * 2, MAX_BACKOFF_SECONDS)


def without_function(shard: Shard, name: str) -> ClusterError:
    """Return the error for a shard on which the function is not registered."""
    return ClusterError(f"the function {name} is not registered on shard {shard.address}: run `qa-cluster up`")


def shard_facts(shard: Shard) -> dict[str, Fact]:
    """Return the attributes of a traced call that describe its shard."""
    return {"server.address": shard.address.host, "server.port": shard.address.port, "qa.shard": shard.name}
