"""Reports the state of a cluster, shard by shard, and what it lacks to answer questions. Nothing is changed."""

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
from qa_cluster.documents.stored import RECORD_FIELDS, parse_record
from qa_cluster.errors import ClusterError, ModelError
from qa_cluster.ranking.terms import ANALYZER_VERSION
from qa_cluster.reading.manifest import Manifest
from qa_cluster.shard_functions import READER_TRIGGER, TEXT_KEYS, missing_functions
from qa_cluster.topology import Address

from ..nodes.all_shards import at_once
from ..nodes.connect import ShardClient, host_and_port, seed_client, server_client, shards_of
from ..nodes.formation import UNREACHABLE, incomplete
from ..nodes.node import Node, command, nodes_of, primaries
from ..readers.shard_readers import model_tag
from .writability import write_refusal

# The time limits for a connection to a server and for its answer. A running server answers within milliseconds, and
# users should not wait long for a server that is down.
_CONNECT_SECONDS, _ANSWER_SECONDS = 1.0, 3.0
_SCAN_SECONDS, _SCAN_KEYS = 1.0, 5000
_NEEDED_COMMANDS = ("AI.MODELSTORE", "AI.TENSORSET", "RG.PYEXECUTE", "RG.TRIGGER")


@dataclass(frozen=True)
class ShardReport:
    """The state of a shard.

    Attributes:
        collections: the numbers of documents and sentences by collection; `documents` and `sentences` are the sums.
        earlier: the number of partitions that an earlier version of qa-cluster has indexed; the shard is reindexing
            these partitions.
        failed: the documents that could not be indexed, as `<collection>/<id>: <reason>`; for the default collection,
            `<id>: <reason>`.
        unembedded: the number of documents that have no vectors of the shard's encoder yet. The worker makes these
            vectors in the background.
        progress: the fields of the shard's progress key (`keys.progress_key`), which describe the last `prepare` on the
            shard; empty if `prepare` has never run there.
        problems: why the shard cannot answer or accept documents; empty if it can do both.
        obstacles: the part of `problems` that prevents storing or indexing documents.
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
    failed: tuple[str, ...] = ()
    unembedded: int = 0
    progress: dict[str, str] = field(default_factory=dict)
    module_info: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClusterReport:
    """The state of the cluster.

    Attributes:
        partitions: the number of partitions; 0 if it is unset, None if it cannot be read.
        down: the addresses of the servers (primaries and replicas) that do not answer, or that the cluster reports as
            down.
        problems: the problems of the cluster as a whole, such as an unset number of partitions. The problems of a
            single shard are in its `ShardReport`.
        address: the address of the first shard; the URL of the cluster if no primary owns slots.
        server: the name and version of the server program, from the server that answered first.
        hints: warnings about settings that will cause problems when a shard is down.
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
        """Whether neither the cluster nor a shard has a problem (`all_problems`), and no server is down."""
        return not self.all_problems() and not self.down

    @property
    def collections(self) -> dict[str, tuple[int, int]]:
        """The numbers of documents and sentences on all shards by collection, the default collection first."""
        sums: dict[str, tuple[int, int]] = {keys.DEFAULT_COLLECTION: (0, 0)}
        for shard in self.shards:
            for name, (documents, sentences) in sorted(shard.collections.items()):
                before = sums.get(name, (0, 0))
                sums[name] = (before[0] + documents, before[1] + sentences)
        return sums

    @property
    def reindexing(self) -> str:
        """A note about the reindexing of documents that an earlier version of qa-cluster indexed; empty if this
        reindexing is complete.
        """
        return _reindexing_note(sum(shard.earlier for shard in self.shards), self.partitions)

    def all_problems(self) -> list[str]:
        """Return all problems, each as one line; the problems of a shard start with its address."""
        return [*self.problems, *(f"{shard.address}: {text}" for shard in self.shards for text in shard.problems)]


def inspect_cluster(settings: Settings, url: str) -> ClusterReport:
    """Inspect all shards of the cluster at `url`, in parallel. Raises NotRunning if no server answers."""
    patience = {
        "socket_connect_timeout": min(settings.connect_timeout_ms / 1000, _CONNECT_SECONDS),
        "socket_timeout": _ANSWER_SECONDS,
    }
    with seed_client(settings, url, **patience) as seed:
        try:
            nodes = nodes_of(seed)
            missing = incomplete(seed)
        except redis.exceptions.ResponseError as error:
            raise ClusterError(f"the server at {host_and_port(seed)} is not part of a cluster: {error}") from error
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
        problems.append("no primary owns slots: form the cluster with `qa-cluster up --form`")
    elif partitions == 0:
        problems.append(f"the number of partitions is not set (key {keys.PARTITIONS_KEY!r}): run `qa-cluster up`")
    sources = {shard.module_info.get("qa_bus_key") for shard in shards}
    hosts = {shard.address.rpartition(":")[0] for shard in shards}
    if len(shards) > 1 and (sources & {"none", "server"} or ("user" in sources and len(hosts) > 1)):
        problems.append(
            "the shards have no common key for messages between them: write the same line of at least 32 characters"
            " into a file on every host, and add the line `qa.bus-key-file FILE` to the configuration of every server"
        )
    answering = {shard.model for shard in shards if shard.has_reader}
    if len(answering) > 1:
        problems.append(
            f"the shards use different readers ({', '.join(sorted(answering))}): run `qa-cluster model use NAME`"
        )
    version = f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info.get('redis_version')}"
    address = found[0].address if found else url
    return ClusterReport(address, version, partitions, shards, down, tuple(problems), tuple(_hints(connected)))


def reindexing(settings: Settings, url: str) -> str:
    """Return `ClusterReport.reindexing` without inspecting everything else; empty if a shard does not answer."""
    try:
        with shards_of(settings, url) as shards:
            partitions = _partitions(shards)
            tags = keys.partition_tags(partitions) if partitions else ()
            earlier = sum(at_once(shards, lambda node, client: _earlier(client, _own(node, tags))))
            return _reindexing_note(earlier, partitions)
    except (ClusterError, redis.exceptions.RedisError):  # the note is not important enough for an error
        return ""


def _reindexing_note(earlier: int, partitions: int | None) -> str:
    if not earlier:
        return ""
    return (
        f"the shards are reindexing documents that an earlier version of qa-cluster indexed ({earlier} of {partitions}"
        " partitions remain): some documents are not found until then; `qa-cluster documents count` shows how many"
        " are pending"
    )


def _hints(shards: Sequence[ShardClient]) -> Iterator[str]:
    """Yield warnings about settings that prevent shards from answering while another shard is down."""
    for _, client in shards if len(shards) > 1 else ():
        try:
            found = client.config_get("cluster-require-full-coverage")
        except redis.exceptions.RedisError:  # the server is down, or the login may not read settings
            continue
        if found.get("cluster-require-full-coverage") == "yes":
            yield (
                "cluster-require-full-coverage is yes: while one shard is down, the other shards will refuse all"
                " questions; set it to no on every server"
            )
        return


def missing_commands(client: redis.Redis) -> list[str]:
    """Return the commands of the native module that the server does not have."""
    # "COMMAND INFO" as one word: redis-py parses the reply to COMMAND, and fails on unknown commands.
    rows = command(client, "COMMAND INFO", *_NEEDED_COMMANDS)
    return [name for name, row in zip(_NEEDED_COMMANDS, rows, strict=True) if not row]


def reader_in_use(client: redis.Redis) -> str:
    """Return ``<id>@<revision>`` of the reader that a shard uses now, even if the keys of the reader are on another
    shard. Return an empty text if the shard uses no reader.
    """
    try:
        (text,) = command(client, "RG.TRIGGER", READER_TRIGGER)
        found = Manifest.from_json(text) if text else None
    except (redis.exceptions.ResponseError, ModelError):
        return ""
    return f"{found.model_id}@{found.revision}" if found is not None else ""


def registrations(client: redis.Redis) -> list[dict[str, Any]]:
    """Return the registrations of functions on a shard, as RG.DUMPREGISTRATIONS lists them, each as a dictionary."""
    return [pairs(row) for row in command(client, "RG.DUMPREGISTRATIONS")]


def pairs(reply: Any) -> dict[str, Any]:
    """Convert a reply (a flat array of names and values, or a map) to a dictionary. Bytes become text."""
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
            _inspect_functions(node, client, facts, problems, obstacles)
            _inspect_documents(node, client, partitions, facts)
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        facts["reachable"] = False
        obstacles.append(f"the server does not answer, so its documents cannot answer questions: {error}")
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


def _inspect_functions(
    node: Node, client: redis.Redis, facts: dict[str, Any], problems: list[str], obstacles: list[str]
) -> None:
    before = len(problems)
    facts["model"] = model_tag(client, node.tag)
    in_use = "" if facts["model"] else reader_in_use(client)
    if in_use:
        # The keys of the reader are migrating. The shard answers from memory, and will soon store a copy.
        facts["model"], facts["has_reader"] = in_use, True
    else:
        _inspect_reader(node, client, facts, problems)
        facts["has_reader"] = len(problems) == before
    found = registrations(client)
    facts["registrations"] = len(found)
    if not found:
        obstacles.append("no functions are registered, so no document is indexed: run `qa-cluster up`")
    elif lacking := missing_functions(found):
        # Without the function for texts, stored documents are not indexed.
        (obstacles if missing_functions(found, [TEXT_KEYS]) else problems).append(lacking)
    info = {name: value for name, value in client.info("everything").items() if name.startswith("qa_")}
    facts["module_info"] = info
    facts["unembedded"] = int(info.get("qa_unembedded_documents", 0))
    if problem := worker_problem(info):
        problems.append(problem)


def worker_problem(info: Mapping[str, Any]) -> str:
    """Return why the worker of a shard cannot run models; empty if it can. `info` has the fields of the shard's INFO
    reply.
    """
    if info.get("qa_worker_state", "ready") != "ready":
        return f"its worker is {info['qa_worker_state']} (restarts: {info.get('qa_worker_restarts', 0)})"
    if int(info.get("qa_inference_workers", 0)) and not int(info.get("qa_inference_ready", 0)):
        restarts = info.get("qa_inference_restarts", 0)
        return f"none of its {info['qa_inference_workers']} inference workers is running (restarts: {restarts})"
    return ""


def _inspect_reader(node: Node, client: redis.Redis, facts: dict[str, Any], problems: list[str]) -> None:
    manifest = client.get(
        keys.manifest_key(node.tag)
    )  # This is the first command, because a server that refuses reads raises an error here.
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


def _inspect_documents(node: Node, client: redis.Redis, partitions: int | None, facts: dict[str, Any]) -> None:
    tags: Sequence[str] = keys.partition_tags(partitions) if partitions else ()
    if partitions is None:
        tags = _tags_in_use(client)
    own = _own(node, tags)
    facts["earlier"] = _earlier(client, own)
    with client.pipeline(transaction=False) as pipeline:
        for tag in own:
            pipeline.hkeys(keys.collections_key(tag))
        pipeline.hgetall(keys.progress_key(node.tag))
        *lists, progress = pipeline.execute()
    named = {keys.DEFAULT_COLLECTION, *(str(_text(name)) for names in lists for name in names)}
    facts["collections"] = {name: _counts(client, own, name) for name in sorted(named)}
    facts["documents"], facts["sentences"] = map(sum, zip(*facts["collections"].values(), strict=True))
    facts["progress"] = pairs(progress)
    facts["failed"] = tuple(_failed(client, own))


def _failed(client: redis.Redis, tags: Sequence[str]) -> Iterator[str]:
    """Yield the failed documents of the partitions `tags`, each as text with the reason (see `ShardReport.failed`).

    Documents that were written again after the failure are left out.
    """
    with client.pipeline(transaction=False) as pipeline:
        for tag in tags:
            pipeline.hkeys(keys.failures_key(tag))
        found = [
            (keys.DocumentName(_text(name)), tag)
            for tag, names in zip(tags, pipeline.execute(), strict=True)
            for name in names
        ]
    with client.pipeline(transaction=False) as pipeline:
        for name, tag in found:
            pipeline.hmget(keys.document_key(name, tag), RECORD_FIELDS)
        records = map(parse_record, pipeline.execute())
    for (name, _), record in zip(found, records, strict=True):
        if record is not None and record.failure:
            where = "" if name.collection == keys.DEFAULT_COLLECTION else f"{name.collection}/"
            yield f"{where}{name.id}: {record.failure}"


def _own(node: Node, tags: Sequence[str]) -> list[str]:
    """Return those of the partitions `tags` whose slots the shard owns."""
    return [tag for tag in tags if any(first <= keys.slot(tag) <= last for first, last in node.slots)]


def _earlier(client: redis.Redis, tags: Sequence[str]) -> int:
    """Return how many of the partitions `tags` an earlier version of qa-cluster has indexed."""
    with client.pipeline(transaction=False) as pipeline:
        for tag in tags:
            pipeline.hget(keys.layout_key(tag), "analyzer")
            pipeline.exists(keys.index_key(tag))
        found = pipeline.execute()
    return sum(
        _text(analyzer) != ANALYZER_VERSION and indexed > 0
        for analyzer, indexed in zip(found[::2], found[1::2], strict=True)
    )


def _counts(client: redis.Redis, tags: Sequence[str], collection: str) -> tuple[int, int]:
    """Return the numbers of documents and sentences of a collection in the partitions `tags`."""
    with client.pipeline(transaction=False) as pipeline:
        for tag in tags:
            command(pipeline, "QA.INDEX.INFO", keys.index_key(tag, collection))
        indexes = [pairs(reply) for reply in pipeline.execute() if reply]
    return sum(int(index["documents"]) for index in indexes), sum(int(index["sentences"]) for index in indexes)


def _tags_in_use(client: redis.Redis) -> list[str]:
    """Return the tags of the partitions that have an index on a shard. Some may be missing, because the scan of the
    keys ends after `_SCAN_SECONDS`.
    """
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
                return None  # the report of this shard says that it does not answer
            return int(value) if isinstance(value, bytes) and value.isdigit() else 0
    return None
