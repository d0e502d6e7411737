"""A cluster of real servers whose scripted functions can be slow, refuse, or return wrong replies.

The real indexes rank. On each shard, the scripted function ``rank`` makes the last reply of a ranking.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from qa_cluster import keys
from qa_cluster.asking.connecting import Target
from qa_cluster.asking.engine import EngineOptions
from qa_cluster.asking.questions import AskLimits
from qa_cluster.errors import ReplyError
from qa_cluster.hashtags import hashtag_for_slot
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.reading.manifest import Manifest
from qa_cluster.routing.connection import Connection, Login
from qa_cluster.shard_functions import FUNCTIONS
from qa_cluster.topology import Address
from qa_cluster.vectors.encoder_manifest import EncoderManifest
from tests.client import scripted_functions as functions
from tests.client.scripted_functions import PARTITIONS, manifest
from tests.client.scripted_proxy import Proxy, Reply
from tests.harness.clusters import Cluster
from tests.harness.ports import free_port
from tests.harness.programs import binary_or_skip
from tests.harness.servers import Server

SHARDS = 3

Trigger = Callable[["Node", list[str]], Awaitable[Any]]


async def never(node: Node, arguments: list[str]) -> Any:
    """A function that never replies."""
    return await asyncio.Future()


def refusal(text: str) -> Trigger:
    """A function that replies with the error `text`."""

    async def refuse(node: Node, arguments: list[str]) -> list[bytes]:
        raise ReplyError(text)

    return refuse


class Node(Proxy):
    """One server and the proxy in front of it; `commands` is a connection to the server without the proxy."""

    commands: Connection

    def __init__(self, cluster: ScriptedCluster, server: Server, number: int) -> None:
        super().__init__(free_port(), server.port)
        self.cluster = cluster
        self.server = server
        self.tag = hashtag_for_slot(number * (16384 // SHARDS))
        last = keys.partition_tags(PARTITIONS)[(number + 1) * PARTITIONS // SHARDS - 1]
        self.last_partition = f"{{{last}}}"  # a ranking sends the command for this partition last

    def own_reply(self, command: list[bytes]) -> Callable[[], Awaitable[Reply]] | None:
        match [word.decode(errors="replace") for word in command]:
            case ["RG.TRIGGER", *arguments]:
                return partial(self._trigger, arguments)
            case ["QA.INDEX.RANK", index, *_] if index.endswith(self.last_partition):
                return partial(self._trigger, ["rank", *(word.decode("latin-1") for word in command)])
            case ["RG.DUMPREGISTRATIONS"]:
                names = [name.encode() for name in self.cluster.functions]
                return partial(_constant, [[b"RegistrationData", [b"args", [b"trigger", name]]] for name in names])
            case ["INFO", "qa" | "qa_worker"]:
                return partial(_constant, b"# qa_worker\r\nqa_worker_state:ready\r\nqa_jobs_trigger:ok=3,failed=0\r\n")
        return None

    async def _trigger(self, arguments: list[str]) -> Reply:
        self.cluster.calls.append((self.port, arguments))
        trigger = self.cluster.triggers.get(arguments[0], refusal("ERR subcommand not found"))
        try:
            reply: Reply = await trigger(self, arguments)
            return reply
        except asyncio.CancelledError:
            self.cluster.cancelled += 1
            raise

    def afterwards(self, command: list[bytes]) -> Callable[[], Awaitable[None]] | None:
        if command[0] != b"QA.PUTDOCUMENT" or not self.cluster.tokenizing:
            return None
        return partial(functions.split, self.commands, command[1].decode())

    async def store(self, model: Manifest, name: str = "") -> None:
        """Store the keys of a model. Without a name, it is the default model."""
        for key in (keys.model_key(self.tag, name), keys.tokenizer_key(self.tag, name)):
            await self.commands.execute("SET", key, "x")
        await self.commands.execute("SET", keys.manifest_key(self.tag, name), model.to_json())


async def _constant(reply: Reply) -> Reply:
    return reply


class ScriptedCluster:
    """The nodes, their scripted functions, and the calls of these functions."""

    default: Manifest
    named: dict[str, Manifest]
    triggers: dict[str, Trigger]
    calls: list[tuple[int, list[str]]]
    cancelled: int
    tokenizing: bool
    functions: list[str]

    def __init__(self, servers: list[Server]) -> None:
        self.nodes = [Node(self, server, number) for number, server in enumerate(servers)]
        self.epoch = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}"

    def target(self, **options: Any) -> Target:
        """The options for engines that connect to this cluster, with timeouts for a busy machine."""
        options.setdefault("limits", AskLimits(timeout_ms=60_000))
        options.setdefault("shard_patience_seconds", 10.0)
        login = Login(connect_timeout_seconds=10)
        return Target([Address("127.0.0.1", self.nodes[0].port)], login, EngineOptions(**options))

    def count(self, trigger: str) -> int:
        return sum(arguments[0] == trigger for _, arguments in self.calls)

    def well_behaved(self) -> None:
        """Restore the functions of this file, and clear the list of calls."""
        self.triggers = {
            "rank": self.rank,
            "qa.read": self.read,
            "qa.models": self.models,
            "qa.partitions": self.partitions,
        }
        self.functions = list(FUNCTIONS)
        self.calls = []
        self.cancelled = 0
        self.tokenizing = True

    async def reset(self) -> None:
        """Delete all keys. Disconnect the clients of the previous test: late calls would count for the next test."""
        async with asyncio.timeout(30):
            while any(node.clients for node in self.nodes):
                for node in self.nodes:
                    node.drop_clients()
                await asyncio.sleep(0.005)
        self.well_behaved()
        self.named = {}
        self.encoders: list[EncoderManifest] = []
        self.epoch += 1  # no answer that was cached for earlier documents becomes valid again
        for node in self.nodes:
            await node.commands.execute("FLUSHALL")
        for tag in keys.partition_tags(PARTITIONS):
            await self.set(keys.epoch_key(tag), self.epoch)
            await self.at(keys.layout_key(tag), "HSET", keys.layout_key(tag), "analyzer", ANALYZER_VERSION)
        await self.set(keys.PARTITIONS_KEY, PARTITIONS)
        await self.set_manifest("a")

    async def set(self, key: str, value: object) -> None:
        """Send SET to the shard that serves the key."""
        await self.at(key, "SET", key, str(value))

    async def at(self, key: str, *command: str | bytes | int) -> Any:
        """Send a command to the shard that serves the key."""
        number = next(n for n in reversed(range(SHARDS)) if keys.slot(key) >= n * (16384 // SHARDS))
        return await self.nodes[number].commands.execute(*command)

    async def set_manifest(self, revision: str, context_tokens: int = 0) -> None:
        """Store another default model."""
        self.default = replace(manifest(revision), context_tokens=context_tokens)
        for node in self.nodes:
            await node.store(self.default)

    async def load(self, model: Manifest) -> None:
        """Load a model in addition to the default model."""
        self.named[model.name] = model
        for node in self.nodes:
            await node.store(model, model.name)

    async def rank(self, node: Node, arguments: list[str]) -> Any:
        """The server's reply to the last ``QA.INDEX.RANK`` of a ranking on this shard."""
        return await node.commands.execute(*(word.encode("latin-1") for word in arguments[1:]))

    async def read(self, node: Node, arguments: list[str]) -> list[bytes]:
        model = self.named.get(arguments[1], self.default)
        return await functions.read(node.commands, model, arguments[2], arguments[3:])

    async def partitions(self, node: Node, arguments: list[str]) -> list[bytes]:
        return [str(PARTITIONS).encode()]

    async def models(self, node: Node, arguments: list[str]) -> list[bytes]:
        models = [(self.default, True), *((model, False) for model in self.named.values())]
        listed = [functions.listed(*model) for model in models]
        return [json.dumps([*listed, *map(functions.listed_encoder, self.encoders)]).encode()]


@contextmanager
def plain_server() -> Iterator[Server]:
    """One server that serves all slots, without a proxy."""
    with Cluster(binary_or_skip("valkey"), size=1) as cluster:
        yield cluster.nodes[0]


@asynccontextmanager
async def scripted_cluster() -> AsyncIterator[ScriptedCluster]:
    """A running cluster."""
    with Cluster(binary_or_skip("valkey"), size=SHARDS) as servers, ExitStack() as at_the_end:
        cluster = ScriptedCluster(servers.nodes)
        for node in cluster.nodes:
            await node.listen()
            at_the_end.callback(node.cut)
            node.commands = await Connection.open("127.0.0.1", node.server_port, Login())
            at_the_end.callback(node.commands.close)
            await node.commands.execute("CONFIG", "SET", "cluster-announce-port", node.port)
        async with asyncio.timeout(60):
            while not all([await _announced(node) for node in cluster.nodes]):
                await asyncio.sleep(0.02)
        yield cluster


async def _announced(node: Node) -> bool:
    """Whether the server's slot map has the addresses of all proxies."""
    slots = await node.commands.execute("CLUSTER", "SLOTS")
    return {entry[2][1] for entry in slots} == {each.port for each in node.cluster.nodes}
