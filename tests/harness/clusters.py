"""Real clusters for tests: some primaries that share the slots evenly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER

MEET_AGAIN_SECONDS = 5.0


class Cluster:
    """Some primaries that share the slots evenly; a context manager. `own` has additional settings by node."""

    def __init__(
        self,
        binary: Path,
        settings: Mapping[str, object] | None = None,
        *,
        worker: str | None = None,
        size: int = 3,
        own: Sequence[Mapping[str, object]] = (),
    ) -> None:
        values = {"cluster-enabled": "yes", "cluster-node-timeout": 5000, **(settings or {})}
        each = [*own, *[{}] * (size - len(own))]
        self.nodes = [Server(binary, {**values, **extra}, worker=worker) for extra in each]
        self._clients = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._form()
        except BaseException:
            self._end(True)
            raise
        return self

    def _form(self) -> None:
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_started()
        step = 16384 // len(self.nodes)
        for index, node in enumerate(self.nodes):
            last = 16383 if index == len(self.nodes) - 1 else (index + 1) * step - 1
            with node.client() as client:
                client.execute_command("CLUSTER ADDSLOTSRANGE", index * step, last)
        _meet(self.nodes[1:], self.nodes[0], lambda: all(self._complete(node) for node in self.nodes))

    def _complete(self, node: Server) -> bool:
        with node.client() as client:
            fields = client.execute_command("CLUSTER INFO")
        # without cluster-require-full-coverage, the state is ok before a node knows the slots of the others
        wanted = {
            "cluster_known_nodes": str(len(self.nodes)),
            "cluster_slots_ok": "16384",
            "cluster_state": "ok",
        }
        return all(fields[name] == value for name, value in wanted.items())

    def client(self) -> Any:
        """A redis.RedisCluster of the whole cluster, which is closed when the cluster stops."""
        client = redis.RedisCluster(
            host="127.0.0.1", port=self.nodes[0].port, decode_responses=True, socket_timeout=120
        )
        self._clients.callback(client.close)
        return client

    def _end(self, failed: bool) -> None:
        self._clients.close()
        for node in self.nodes:
            node.__exit__(AssertionError if failed else None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(kind is not None)


def meet(young: Server, known: Server) -> None:
    """Makes a new server and a server of a cluster meet."""
    names = [execute(server, "CLUSTER", "MYID") for server in (young, known)]

    def met() -> bool:
        nodes = [str(execute(server, "CLUSTER", "NODES")) for server in (young, known)]
        return names[1] in nodes[0] and names[0] in nodes[1]

    _meet([young], known, met)


def _meet(young: Sequence[Server], known: Server, met: Callable[[], bool]) -> None:
    """Repeats CLUSTER MEET until the servers have met: a server forgets a handshake that fails."""
    told_at = -MEET_AGAIN_SECONDS

    def told_and_met() -> bool:
        nonlocal told_at
        if time.monotonic() - told_at >= MEET_AGAIN_SECONDS:
            told_at = time.monotonic()
            for server in young:
                with server.client() as client:
                    client.execute_command("CLUSTER MEET", "127.0.0.1", known.port)
        return met()

    eventually(told_and_met, 120)


def reaches(node: Server, shards: int) -> bool:
    """Whether a run that starts on this node gets the records of all shards (a new bus loses messages)."""
    with node.client() as client:
        client.execute_command("RG.CONFIGSET", "ExecutionMaxIdleTime", 1000)
        results, errors = client.execute_command("RG.PYEXECUTE", "GB('ShardsIDReader').repartition(str).run()")
        client.execute_command("RG.CONFIGSET", "ExecutionMaxIdleTime", 5000)
    return len(results) == shards and not errors


def linked(node: Server) -> set[str]:
    """The ids of the nodes to which a server has a link."""
    return {link["node"] for link in execute(node, "CLUSTER", "LINKS") if link["direction"] == "to"}


@contextmanager
def ready_cluster(
    binary: Path,
    settings: Mapping[str, object] | None = None,
    *,
    worker: str = WORKER,
    size: int = 3,
    own: Sequence[Mapping[str, object]] = (),
) -> Iterator[Cluster]:
    """A cluster whose workers are ready and whose runs reach all shards from each shard."""
    with Cluster(binary, settings, worker=worker, size=size, own=own) as cluster:
        for node in cluster.nodes:
            node.wait_ready()
        for node in cluster.nodes:
            eventually(partial(reaches, node, size), 120)
        yield cluster


@contextmanager
def ready_shards(
    binary: Path, count: int, settings: Mapping[str, object] | None = None, *, worker: str = WORKER
) -> Iterator[list[Server]]:
    """The servers of a ready cluster, or a single server without a cluster."""
    if count > 1:
        with ready_cluster(binary, settings, worker=worker, size=count) as cluster:
            yield cluster.nodes
    else:
        with Server(binary, settings, worker=worker) as server:
            server.wait_ready()
            yield [server]
