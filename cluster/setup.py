"""Makes a running cluster able to answer: partitions, the reader on every shard, the functions. Safe to repeat.

What is already as wanted is left alone, so a second run changes nothing, and a run after slots were moved brings the
reader to the shards that lack it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import redis

from qa_cluster import keys
from qa_cluster.config import Settings
from qa_cluster.errors import ClusterError, ModelError
from qa_cluster.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest

from .connect import shards_of
from .inspection import inspect_cluster, missing_commands, model_tag, registrations
from .topology import Node, command

PARTITIONS_PER_SHARD = 4
SESSION = "qa-functions"
REGISTER_SCRIPT = "from qa_cluster.gears.functions.register import register_all; register_all()"
# What the functions read with configGet(): how long a shard keeps what one sentence answers.
TTL_SETTING = "qa.answer-ttl-seconds"
_PARTITIONS_SECONDS = 8.0
_POLL_SECONDS = 0.05

Step = Callable[[str], None]


@dataclass(frozen=True)
class ReaderFiles:
    """A reader in a folder: ONNX file, tokenizer and manifest, checked to belong together."""

    model: bytes
    tokenizer: bytes
    manifest_text: str
    manifest: Manifest

    @property
    def tag(self) -> str:
        """How the stored model is marked."""
        return f"{self.manifest.model_id}@{self.manifest.revision}"


def default_reader_folder() -> Path:
    """The folder of the bundled reader."""
    return Path(str(files("qa_cluster.models"))) / "default"


def read_reader(folder: Path) -> ReaderFiles:
    """Read the reader in `folder`; ModelError names what is missing or does not fit."""
    manifest = Manifest.load(folder / MANIFEST_FILE)
    try:
        model = (folder / MODEL_FILE).read_bytes()
        tokenizer = (folder / TOKENIZER_FILE).read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {error.filename!r}: {error.strerror}") from error
    manifest.verify(model, tokenizer)
    return ReaderFiles(model, tokenizer, manifest.to_json(), manifest)


def reader_on(node: Node, client: redis.Redis) -> ReaderFiles:
    """The reader that a shard holds."""
    reply = command(client, "AI.MODELGET", keys.model_key(node.tag), "BLOB")
    model = b"".join(reply) if isinstance(reply, list) else reply
    manifest_text, tokenizer = client.mget(keys.manifest_key(node.tag), keys.tokenizer_key(node.tag))
    if not isinstance(manifest_text, bytes) or not isinstance(tokenizer, bytes):
        raise ModelError(f"{node.address} holds a model without manifest or tokenizer: load it again")
    manifest = Manifest.from_json(manifest_text)
    manifest.verify(model, tokenizer)
    return ReaderFiles(model, tokenizer, manifest_text.decode(), manifest)


def complete(settings: Settings, url: str, on_step: Step = lambda text: None) -> None:
    """Give the cluster what it lacks. A reader that is on some shards comes to all; without any, the bundled one."""
    report = inspect_cluster(settings, url)
    reader = None
    if not all(shard.has_reader for shard in report.shards):
        with ExitStack() as stack:
            shards = [(node, stack.enter_context(client)) for node, client in shards_of(settings, url)]
            having = {shard.node_id for shard in report.shards if shard.has_reader}
            source = next(((node, client) for node, client in shards if node.id in having), None)
            folder = Path(settings.reader) if settings.reader else default_reader_folder()
            reader = reader_on(*source) if source else read_reader(folder)
    provision(settings, url, reader, on_step)


def provision(settings: Settings, url: str, reader: ReaderFiles | None, on_step: Step = lambda text: None) -> None:
    """Bring partitions, `reader` (None: leave the models alone) and functions to the cluster at `url`."""
    deadline = time.monotonic() + settings.start_timeout_ms / 1000
    with ExitStack() as stack:
        shards = shards_of(settings, url)
        for _, client in shards:
            stack.enter_context(client)
        try:
            _need_module(shards)
            on_step("setting the number of partitions")
            _set_partitions(shards)
            if reader is not None:
                on_step(f"storing the reader {reader.tag} on {len(shards)} shards")
                _on_every_shard(shards, lambda node, client: store_reader(node, client, reader, deadline))
            for _, client in shards:
                command(client, "RG.CONFIGSET", TTL_SETTING, settings.sentence_ttl_s)
            on_step("registering the functions")
            _register(shards, deadline)
            on_step("waiting for the workers to warm up")
            _wait_workers(shards, deadline)
            _on_every_shard(shards, _wait_partitions)
        except redis.exceptions.RedisError as error:
            raise ClusterError(f"set-up failed: {error}") from error


def store_reader(node: Node, client: redis.Redis, reader: ReaderFiles, deadline: float) -> bool:
    """Store the reader under the shard's hash tag unless it is there; whether anything was written."""
    # Written only when they differ: a write makes the shard read them anew.
    texts = {keys.tokenizer_key(node.tag): reader.tokenizer, keys.manifest_key(node.tag): reader.manifest_text.encode()}
    for key, wanted in texts.items():
        if client.get(key) != wanted:
            client.set(key, wanted)
    if model_tag(client, node.tag) == reader.tag:
        return False
    arguments = (keys.model_key(node.tag), "ONNX", "CPU", "TAG", reader.tag, "BLOB", reader.model)
    _patiently(lambda: command(client, "AI.MODELSTORE", *arguments), deadline)
    return True


def _need_module(shards: list[tuple[Node, redis.Redis]]) -> None:
    without = [node.address for node, client in shards if missing_commands(client)]
    if without:
        raise ClusterError(
            f"the native module is not loaded on {', '.join(without)}: start the servers with"
            " `loadmodule <path of qa.so>` and `qa.worker-command` (`qa-cluster config --module` prints the lines)"
        )


def _set_partitions(shards: list[tuple[Node, redis.Redis]]) -> None:
    wanted = keys.slot(keys.PARTITIONS_KEY)
    for node, client in shards:
        if any(first <= wanted <= last for first, last in node.slots):
            client.set(keys.PARTITIONS_KEY, PARTITIONS_PER_SHARD * len(shards), nx=True)
            return
    raise ClusterError(f"no shard owns slot {wanted} of {keys.PARTITIONS_KEY!r}")


def _on_every_shard(shards: list[tuple[Node, redis.Redis]], work: Callable[[Node, redis.Redis], object]) -> None:
    with ThreadPoolExecutor(max_workers=min(len(shards), 16)) as pool:
        for done in [pool.submit(work, node, client) for node, client in shards]:
            done.result()


def _register(shards: list[tuple[Node, redis.Redis]], deadline: float) -> None:
    """Run the registration script on one shard and wait until every shard lists the same functions."""
    for _, client in shards:
        command(client, "RG.REFRESHCLUSTER")
    first = shards[0][1]
    script = ("RG.PYEXECUTE", REGISTER_SCRIPT, "ID", SESSION, "UPGRADE", "DESCRIPTION", "qa-cluster functions")
    reply = _patiently(lambda: command(first, *script), deadline)
    if reply not in (b"OK", "OK"):
        raise ClusterError(f"the functions could not be registered: {reply!r}")
    while True:
        names = [sorted(str(row.get("desc")) for row in registrations(client)) for _, client in shards]
        if names[0] and all(found == names[0] for found in names):
            return
        if time.monotonic() > deadline:
            counts = ", ".join(f"{node.address}: {len(n)}" for (node, _), n in zip(shards, names, strict=True))
            raise ClusterError(f"the functions are not registered on every shard ({counts})")
        time.sleep(_POLL_SECONDS)


def _wait_workers(shards: list[tuple[Node, redis.Redis]], deadline: float) -> None:
    """Wait until every shard's worker has loaded its models."""
    for node, client in shards:
        while (state := client.info("everything").get("qa_worker_state")) != "ready":
            if time.monotonic() > deadline:
                raise ClusterError(f"the worker of {node.address} did not get ready in time: it is {state}")
            time.sleep(_POLL_SECONDS)


def _wait_partitions(node: Node, client: redis.Redis) -> None:
    """Wait until the shard ranks its partitions: it may have to ask for their number first.

    A young cluster loses messages, so that may take seconds; what is not known by then the first question waits for.
    """
    until = time.monotonic() + _PARTITIONS_SECONDS
    while time.monotonic() < until:
        try:
            (reply,) = command(client, "RG.TRIGGER", "qa.rank", 1, "ready")
        except (redis.exceptions.ResponseError, redis.exceptions.TimeoutError):  # the worker is not there yet, or waits
            reply = "{}"
        if json.loads(reply).get("epochs"):
            return
        time.sleep(_POLL_SECONDS)


def _patiently(attempt: Callable[[], object], deadline: float) -> object:
    """Repeat a command while its shard's worker is still starting."""
    while True:
        try:
            return attempt()
        except redis.exceptions.ResponseError as error:
            if not str(error).startswith(("NOWORKER", "WORKERLOST")) or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_SECONDS)
