"""What a cluster has and what it lacks to answer questions, shard by shard. Nothing is changed here."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ModelError
from qa_cluster.manifest import Manifest
from qa_cluster.topology import Address

from .connect import seed_client, server_client
from .topology import Node, command, incomplete, nodes_of, primaries

_NEEDED_COMMANDS = ("AI.MODELSTORE", "AI.TENSORSET", "RG.PYEXECUTE", "RG.TRIGGER")


@dataclass(frozen=True)
class ShardReport:
    """One shard. `problems` says in words what is missing; empty when it can answer."""

    address: str
    node_id: str
    tag: str
    slots: int
    replicas: int
    model: str = ""
    has_reader: bool = False
    registrations: int = 0
    documents: int = 0
    sentences: int = 0
    keys: int = 0
    memory_bytes: int = 0
    progress: dict[str, str] = field(default_factory=dict)
    module_info: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterReport:
    """The whole cluster."""

    address: str
    server: str
    partitions: int
    shards: tuple[ShardReport, ...]
    problems: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.all_problems()

    def all_problems(self) -> list[str]:
        """Every problem as one line; those of a shard begin with its address."""
        return [*self.problems, *(f"{shard.address}: {text}" for shard in self.shards for text in shard.problems)]


def inspect_cluster(settings: Settings, url: str) -> ClusterReport:
    """Look at every shard of the cluster at `url`; NotRunning when no server answers there."""
    with seed_client(settings, url) as seed:
        try:
            nodes = nodes_of(seed)
            missing = incomplete(seed)
        except redis.exceptions.ResponseError as error:
            raise ClusterError(f"the server at that address is not part of a cluster: {error}") from error
        info = seed.info("server")
    found = primaries(nodes)
    with ExitStack() as stack:
        clients = [stack.enter_context(server_client(settings, url, Address(node.host, node.port))) for node in found]
        partitions = _partitions(found, clients)
        shards = tuple(
            _shard(node, client, sum(other.primary_id == node.id for other in nodes), partitions)
            for node, client in zip(found, clients, strict=True)
        )
    problems = [missing] if missing else []
    if not found:
        problems.append("no primary owns slots")
    elif not partitions:
        problems.append(f"the number of partitions is not set (key {keys.PARTITIONS_KEY!r})")
    version = f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info.get('redis_version')}"
    return ClusterReport(found[0].address if found else url, version, partitions, shards, tuple(problems))


def missing_commands(client: redis.Redis) -> list[str]:
    """The commands of the native module that the server does not know."""
    # One word, "COMMAND INFO": redis-py would parse the reply to COMMAND, and fails on unknown commands.
    rows = command(client, "COMMAND INFO", *_NEEDED_COMMANDS)
    return [name for name, row in zip(_NEEDED_COMMANDS, rows, strict=True) if not row]


def model_tag(client: redis.Redis, shard_tag: str) -> str:
    """The TAG of the reader stored on a shard, ``<id>@<revision>``; empty when there is none."""
    try:
        reply = command(client, "AI.MODELGET", keys.model_key(shard_tag), "META")
    except redis.exceptions.ResponseError:
        return ""
    return str(pairs(reply).get("tag", ""))


def registrations(client: redis.Redis) -> list[dict[str, Any]]:
    """The functions registered on a shard, as RG.DUMPREGISTRATIONS tells them."""
    return [pairs(row) for row in command(client, "RG.DUMPREGISTRATIONS")]


def pairs(reply: Any) -> dict[str, Any]:
    """A flat array of name, value elements as a dictionary; bytes become text. A map stays a map."""
    if isinstance(reply, dict):
        return {_text(name): _text(value) for name, value in reply.items()}
    return {_text(name): _text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _shard(node: Node, client: redis.Redis, replicas: int, partitions: int) -> ShardReport:
    facts: dict[str, Any] = {}
    problems: list[str] = []
    try:
        absent = missing_commands(client)
        facts["memory_bytes"] = int(client.info("memory")["used_memory"])
        facts["keys"] = int(client.dbsize())
        if absent:
            problems.append(f"the native module is not loaded (no {', '.join(absent)})")
        else:
            _look_at_functions(node, client, facts, problems)
        _look_at_corpus(node, client, partitions, facts)
    except redis.exceptions.RedisError as error:
        problems.append(f"cannot be read: {error}")
    return ShardReport(
        address=node.address,
        node_id=node.id,
        tag=node.tag,
        slots=node.slot_count,
        replicas=replicas,
        problems=tuple(problems),
        **facts,
    )


def _look_at_functions(node: Node, client: redis.Redis, facts: dict[str, Any], problems: list[str]) -> None:
    before = len(problems)
    facts["model"] = model_tag(client, node.tag)
    if not facts["model"]:
        problems.append(f"no model ({keys.model_key(node.tag)})")
    manifest = client.get(keys.manifest_key(node.tag))
    if manifest is None:
        problems.append(f"no manifest ({keys.manifest_key(node.tag)})")
    else:
        try:
            found = Manifest.from_json(manifest)
            if facts["model"] and facts["model"] != f"{found.model_id}@{found.revision}":
                problems.append(f"model {facts['model']} and manifest {found.model_id}@{found.revision} differ")
        except ModelError as error:
            problems.append(f"unusable manifest: {error}")
    if not client.exists(keys.tokenizer_key(node.tag)):
        problems.append(f"no tokenizer ({keys.tokenizer_key(node.tag)})")
    facts["has_reader"] = len(problems) == before
    facts["registrations"] = len(registrations(client))
    if not facts["registrations"]:
        problems.append("no functions are registered")
    info = {name: value for name, value in client.info("everything").items() if name.startswith("qa_")}
    facts["module_info"] = info
    if info.get("qa_worker_state", "ready") != "ready":
        problems.append(f"its worker is {info['qa_worker_state']} ({info.get('qa_worker_restarts', 0)} restarts)")


def _look_at_corpus(node: Node, client: redis.Redis, partitions: int, facts: dict[str, Any]) -> None:
    tags = keys.partition_tags(partitions) if partitions else ()
    here = [tag for tag in tags if any(first <= keys.slot(tag) <= last for first, last in node.slots)]
    with client.pipeline(transaction=False) as pipeline:
        for tag in here:
            pipeline.hlen(keys.docs_key(tag))
            pipeline.hget(keys.stats_key(tag), "sentences")
        pipeline.hgetall(keys.progress_key(node.tag))
        replies = pipeline.execute()
    facts["documents"] = sum(replies[:-1:2])
    facts["sentences"] = sum(int(value or 0) for value in replies[1:-1:2])
    facts["progress"] = pairs(replies[-1])


def _partitions(nodes: list[Node], clients: list[redis.Redis]) -> int:
    wanted = keys.slot(keys.PARTITIONS_KEY)
    for node, client in zip(nodes, clients, strict=True):
        if any(first <= wanted <= last for first, last in node.slots):
            try:
                value = client.get(keys.PARTITIONS_KEY)
            except redis.exceptions.RedisError:
                return 0  # the shard's own report says that it cannot be reached
            return int(value) if isinstance(value, bytes) and value.isdigit() else 0
    return 0
