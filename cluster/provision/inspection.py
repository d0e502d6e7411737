"""Finds what a cluster has, and what it lacks to answer questions, shard by shard. It changes nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ModelError
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.reading.manifest import Manifest
from qa_cluster.shard_functions import READER_TRIGGER, TEXT_KEYS, missing_functions
from qa_cluster.topology import Address

from ..nodes.all_shards import at_once
from ..nodes.connect import ShardClient, seed_client, server_client, shards_of
from ..nodes.formation import UNREACHABLE, incomplete
from ..nodes.node import Node, command, nodes_of, primaries
from ..readers.shard_readers import model_mark
from .writability import write_refusal

# A server that is up answers in milliseconds; users should not wait long for one that is down.
_CONNECT_SECONDS, _ANSWER_SECONDS = 1.0, 3.0
_SCAN_SECONDS, _SCAN_KEYS = 1.0, 5000
_NEEDED_COMMANDS = ("AI.MODELSTORE", "AI.TENSORSET", "RG.PYEXECUTE", "RG.TRIGGER")


@dataclass(frozen=True)
class ShardReport:
    """One shard. `problems` names what is missing; it is empty if the shard can answer and be written to.

    `obstacles` are those of them that also keep documents from being stored.

    `collections` has the documents and sentences by collection, whose sums are `documents` and `sentences`. `earlier`
    counts its partitions whose documents an earlier version has indexed: the shard is indexing them anew.
    """

    address: str
    node_id: str
    tag: str
    slots: int
    replicas: int
    reachable: bool = True
    model: str = ""
    has_reader: bool = False
    registrations: int = 0
    documents: int = 0
    sentences: int = 0
    collections: dict[str, tuple[int, int]] = field(default_factory=dict)
    earlier: int = 0
    keys: int = 0
    memory_bytes: int = 0
    progress: dict[str, str] = field(default_factory=dict)
    module_info: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterReport:
    """The whole cluster. `partitions` is 0 if their number is not set, None if its shard is down.

    `hints` name settings that will matter once something fails; nothing is missing now.
    """

    address: str
    server: str
    partitions: int | None
    shards: tuple[ShardReport, ...]
    down: tuple[str, ...]
    problems: tuple[str, ...]
    hints: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return not self.all_problems() and not self.down

    @property
    def collections(self) -> dict[str, tuple[int, int]]:
        """Documents and sentences on the shards by collection, the default one first."""
        sums: dict[str, tuple[int, int]] = {keys.DEFAULT_COLLECTION: (0, 0)}
        for shard in self.shards:
            for name, (documents, sentences) in sorted(shard.collections.items()):
                before = sums.get(name, (0, 0))
                sums[name] = (before[0] + documents, before[1] + sentences)
        return sums

    @property
    def taking_over(self) -> str:
        """That documents of an earlier version are being indexed anew, in words; empty if none are."""
        return _in_words(sum(shard.earlier for shard in self.shards), self.partitions)

    def all_problems(self) -> list[str]:
        """All problems, each as one line; those of a shard begin with its address."""
        return [*self.problems, *(f"{shard.address}: {text}" for shard in self.shards for text in shard.problems)]


def inspect_cluster(settings: Settings, url: str) -> ClusterReport:
    """Look at all shards of the cluster at `url`, in parallel; NotRunning if no server answers there."""
    patience = {
        "socket_connect_timeout": min(settings.connect_timeout_ms / 1000, _CONNECT_SECONDS),
        "socket_timeout": _ANSWER_SECONDS,
    }
    with seed_client(settings, url, **patience) as seed:
        try:
            nodes = nodes_of(seed)
            missing = incomplete(seed)
        except redis.exceptions.ResponseError as error:
            raise ClusterError(f"the server at that address is not part of a cluster: {error}") from error
        info = seed.info("server")
    found = primaries(nodes)
    with ExitStack() as stack:
        connected = [
            (node, stack.enter_context(server_client(settings, url, Address(node.host, node.port), **patience)))
            for node in found
        ]
        partitions = _partitions(connected)
        replicas = Counter(node.primary_id for node in nodes)
        shards = tuple(at_once(connected, lambda node, client: _shard(node, client, replicas[node.id], partitions)))
    silent = [shard.address for shard in shards if not shard.reachable]
    down = tuple(dict.fromkeys([*(node.address for node in nodes if node.failed), *silent]))
    problems = [missing] if missing and not (down and missing.startswith(UNREACHABLE)) else []
    if not found:
        problems.append("no primary owns slots")
    elif partitions == 0:
        problems.append(f"the number of partitions is not set (key {keys.PARTITIONS_KEY!r})")
    if len(shards) > 1 and any(shard.module_info.get("qa_bus_key") == "none" for shard in shards):
        problems.append(
            "the shards share no key for messages between them: set qa.bus-key-file, or masterauth, on every server"
        )
    answering = {shard.model for shard in shards if shard.has_reader}
    if len(answering) > 1:
        problems.append(
            f"the shards use different readers ({', '.join(sorted(answering))}): `qa-cluster model use NAME`"
        )
    version = f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info.get('redis_version')}"
    address = found[0].address if found else url
    return ClusterReport(address, version, partitions, shards, down, tuple(problems), tuple(_hints(connected)))


def taking_over(settings: Settings, url: str) -> str:
    """`ClusterReport.taking_over` without a whole inspection: one request to each shard; empty if one cannot tell."""
    try:
        with ExitStack() as stack:
            shards = [(node, stack.enter_context(client)) for node, client in shards_of(settings, url)]
            partitions = _partitions(shards)
            tags = keys.partition_tags(partitions) if partitions else ()
            return _in_words(sum(at_once(shards, lambda node, client: _earlier(client, _own(node, tags)))), partitions)
    except (ClusterError, redis.exceptions.RedisError):  # it is no more than a notice
        return ""


def _in_words(earlier: int, partitions: int | None) -> str:
    if not earlier:
        return ""
    return (
        f"documents of an earlier version are being indexed anew ({earlier} of {partitions} partitions are"
        " left): until then some are not found; `qa-cluster documents count` shows how many"
    )


def _hints(shards: Sequence[ShardClient]) -> Iterator[str]:
    """Settings of the first server that can be read that will keep shards from answering when another one fails."""
    for _, client in shards if len(shards) > 1 else ():
        try:
            found = client.config_get("cluster-require-full-coverage")
        except redis.exceptions.RedisError:  # down, or the login may not read settings
            continue
        if found.get("cluster-require-full-coverage") == "yes":
            yield (
                "cluster-require-full-coverage is yes: while one shard is down, the others will refuse all questions;"
                " set it to no on every server"
            )
        return


def missing_commands(client: redis.Redis) -> list[str]:
    """The commands of the native module that the server does not know."""
    # "COMMAND INFO" is one word here: redis-py parses the reply to COMMAND, and that fails on unknown commands.
    rows = command(client, "COMMAND INFO", *_NEEDED_COMMANDS)
    return [name for name, row in zip(_NEEDED_COMMANDS, rows, strict=True) if not row]


def reader_in_use(client: redis.Redis) -> str:
    """``<id>@<revision>`` of the reader that a shard uses now, wherever its keys are; empty if it has none."""
    try:
        (text,) = command(client, "RG.TRIGGER", READER_TRIGGER)
        found = Manifest.from_json(text) if text else None
    except (redis.exceptions.ResponseError, ModelError):
        return ""
    return f"{found.model_id}@{found.revision}" if found is not None else ""


def registrations(client: redis.Redis) -> list[dict[str, Any]]:
    """The functions registered on a shard, as RG.DUMPREGISTRATIONS lists them."""
    return [pairs(row) for row in command(client, "RG.DUMPREGISTRATIONS")]


def pairs(reply: Any) -> dict[str, Any]:
    """A flat array of names and values, or a map, as a dictionary; bytes become text."""
    if isinstance(reply, dict):
        return {_text(name): _text(value) for name, value in reply.items()}
    return {_text(name): _text(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _shard(node: Node, client: redis.Redis, replicas: int, partitions: int | None) -> ShardReport:
    facts: dict[str, Any] = {}
    problems: list[str] = []
    obstacles: list[str] = []
    try:
        absent = missing_commands(client)
        facts["memory_bytes"] = int(client.info("memory")["used_memory"])
        facts["keys"] = int(client.dbsize())
        if absent:
            obstacles.append(f"the native module is not loaded (no {', '.join(absent)})")
        else:
            if refused := write_refusal(client):
                obstacles.append(refused)
            _look_at_functions(node, client, facts, problems, obstacles)
            _look_at_corpus(node, client, partitions, facts)
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        facts["reachable"] = False
        obstacles.append(f"does not answer, so no question is answered from its documents: {error}")
    except redis.exceptions.RedisError as error:
        problems.append(f"cannot be read: {error}")
    return ShardReport(
        address=node.address,
        node_id=node.id,
        tag=node.tag,
        slots=node.slot_count,
        replicas=replicas,
        problems=(*obstacles, *problems),
        obstacles=tuple(obstacles),
        **facts,
    )


def _look_at_functions(
    node: Node, client: redis.Redis, facts: dict[str, Any], problems: list[str], obstacles: list[str]
) -> None:
    before = len(problems)
    facts["model"] = model_mark(client, node.tag)
    in_use = "" if facts["model"] else reader_in_use(client)
    if in_use:
        # The reader's keys are moving: the shard can answer from memory, and will store a copy soon.
        facts["model"], facts["has_reader"] = in_use, True
    else:
        _look_at_reader(node, client, facts, problems)
        facts["has_reader"] = len(problems) == before
    found = registrations(client)
    facts["registrations"] = len(found)
    if not found:
        obstacles.append("no functions are registered, so no document is indexed: run `qa-cluster up`")
    elif lacking := missing_functions(found):
        # Without the first, nothing that is stored is found.
        (obstacles if missing_functions(found, [TEXT_KEYS]) else problems).append(lacking)
    info = {name: value for name, value in client.info("everything").items() if name.startswith("qa_")}
    facts["module_info"] = info
    if problem := worker_problem(info):
        problems.append(problem)


def worker_problem(info: Mapping[str, Any]) -> str:
    """Why a shard's worker cannot read, by its fields of INFO; empty if it can."""
    if info.get("qa_worker_state", "ready") != "ready":
        return f"its worker is {info['qa_worker_state']} (restarts: {info.get('qa_worker_restarts', 0)})"
    if int(info.get("qa_inference_workers", 0)) and not int(info.get("qa_inference_ready", 0)):
        restarts = info.get("qa_inference_restarts", 0)
        return f"none of its {info['qa_inference_workers']} inference workers is up (restarts: {restarts})"
    return ""


def _look_at_reader(node: Node, client: redis.Redis, facts: dict[str, Any], problems: list[str]) -> None:
    manifest = client.get(keys.manifest_key(node.tag))  # a server that refuses to read says nothing about the model
    if not facts["model"]:
        problems.append(f"no model ({keys.model_key(node.tag)})")
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


def _look_at_corpus(node: Node, client: redis.Redis, partitions: int | None, facts: dict[str, Any]) -> None:
    tags: Sequence[str] = keys.partition_tags(partitions) if partitions else ()
    if partitions is None:
        tags = _tags_in_use(client)
    here = _own(node, tags)
    facts["earlier"] = _earlier(client, here)
    with client.pipeline(transaction=False) as pipeline:
        for tag in here:
            pipeline.hkeys(keys.collections_key(tag))
        pipeline.hgetall(keys.progress_key(node.tag))
        *lists, progress = pipeline.execute()
    named = {keys.DEFAULT_COLLECTION, *(str(_text(name)) for names in lists for name in names)}
    facts["collections"] = {name: _held(client, here, name) for name in sorted(named)}
    facts["documents"], facts["sentences"] = map(sum, zip(*facts["collections"].values(), strict=True))
    facts["progress"] = pairs(progress)


def _own(node: Node, tags: Sequence[str]) -> list[str]:
    """The partitions of these whose slots a shard has."""
    return [tag for tag in tags if any(first <= keys.slot(tag) <= last for first, last in node.slots)]


def _earlier(client: redis.Redis, tags: Sequence[str]) -> int:
    """How many of these partitions have documents that an earlier version has indexed."""
    with client.pipeline(transaction=False) as pipeline:
        for tag in tags:
            pipeline.hget(keys.layout_key(tag), "analyzer")
            pipeline.exists(keys.index_key(tag), f"stats:{{{tag}}}")  # of versions without the module's index
        found = pipeline.execute()
    return sum(
        _text(analyzer) != ANALYZER_VERSION and held > 0 for analyzer, held in zip(found[::2], found[1::2], strict=True)
    )


def _held(client: redis.Redis, tags: Sequence[str], collection: str) -> tuple[int, int]:
    """The documents and sentences of a collection in these partitions."""
    with client.pipeline(transaction=False) as pipeline:
        for tag in tags:
            command(pipeline, "QA.INDEX.INFO", keys.index_key(tag, collection))
        indexes = [pairs(reply) for reply in pipeline.execute() if reply]
    return sum(int(index["documents"]) for index in indexes), sum(int(index["sentences"]) for index in indexes)


def _tags_in_use(client: redis.Redis) -> list[str]:
    """The partitions with documents on a shard, if a short scan of its keys finds them."""
    until = time.monotonic() + _SCAN_SECONDS
    found: set[str] = set()
    cursor = -1
    while cursor != 0 and time.monotonic() < until:
        cursor, names = client.scan(max(cursor, 0), match=keys.index_key("*"), count=_SCAN_KEYS)
        found |= {str(_text(name)).partition("{")[2].removesuffix("}") for name in names}
    return sorted(found)


def _partitions(shards: Sequence[ShardClient]) -> int | None:
    wanted = keys.slot(keys.PARTITIONS_KEY)
    for node, client in shards:
        if any(first <= wanted <= last for first, last in node.slots):
            try:
                value = client.get(keys.PARTITIONS_KEY)
            except redis.exceptions.RedisError:
                return None  # the report of that shard shows that it cannot be reached
            return int(value) if isinstance(value, bytes) and value.isdigit() else 0
    return None
