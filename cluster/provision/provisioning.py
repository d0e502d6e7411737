"""Sets up a running cluster to answer questions: partitions, readers on every shard, qa-cluster's functions.

The set-up is idempotent and adds only what is missing. For example, shards can lack readers after slots were moved. A
worker *warms* a model: it runs the model once for each input shape, because the first run of a shape is slow.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import redis

from qa_cluster import keys
from qa_cluster.config import NO_ENCODER, Settings
from qa_cluster.errors import ClusterError
from qa_cluster.reading.bundled import bundled_encoder, bundled_reader
from qa_cluster.reading.plan import SECOND_READER
from qa_cluster.shard_functions import PARTITIONS_TRIGGER, SENTENCE_ANSWER_TTL_OPTION, SENTENCE_ANSWERS_OPTION, SESSION

from ..nodes.all_shards import ClusterOperation, OnStep, at_once
from ..nodes.connect import ShardClient, shards_of
from ..nodes.node import Node, command
from ..nodes.polling import POLL_SECONDS
from ..nodes.worker_start import wait_workers
from ..readers import reader_loading
from ..readers.reader_files import ReaderFiles, budget_of, read_reader
from ..readers.shard_readers import default_on, model_tag, read_from, retry_while_starting, store_model, store_texts
from .inspection import inspect_cluster, missing_commands, registrations

PARTITIONS_PER_SHARD = 4
REGISTER_SCRIPT = "from qa_cluster.gears.scripts.own_functions import register_all; register_all()"
_PARTITIONS_SECONDS = 8.0


def complete(settings: Settings, url: str, on_step: OnStep = lambda text: None) -> None:
    """Add everything that the cluster at `url` lacks to answer questions.

    Models that only some shards have are stored on all shards. If no shard has a reader, the reader of the settings or
    the bundled reader is stored. `add_models` describes the rule for the encoder and the second reader.
    """
    report = inspect_cluster(settings, url)
    reader = None
    if not all(shard.has_reader for shard in report.shards):
        with shards_of(settings, url) as shards:
            having = {shard.node_id for shard in report.shards if shard.has_reader}
            source = next(((node, client) for node, client in shards if node.id in having), None)
            folder = Path(settings.reader) if settings.reader else bundled_reader()
            reader = read_from(*source) if source else read_reader(folder, budget_of(settings))
    provision(settings, url, reader, on_step)
    reader_loading.spread(add_models(settings, url, on_step))


def add_models(settings: Settings, url: str, on_step: OnStep = lambda text: None) -> ClusterOperation:
    """Store the encoder and the second reader, each if the cluster at `url` has none. Return the operation that this
    function has used, for further work on the cluster.

    The encoder is the encoder of the settings or the bundled encoder, unless the settings switch the encoder off. The
    second reader, which the plan `accurate` uses, is stored only if the settings name one. The workers warm the encoder
    in the background.
    """
    operation = ClusterOperation.begin(settings, url, settings.start_timeout_ms / 1000, on_step)
    if settings.encoder != NO_ENCODER:
        reader_loading.add_encoder(operation, read_reader(Path(settings.encoder or bundled_encoder())))
    if settings.second_reader:
        folder = Path(settings.second_reader)
        reader_loading.add_second_reader(operation, lambda: read_reader(folder, model_id=SECOND_READER), SECOND_READER)
    return operation


def provision(settings: Settings, url: str, reader: ReaderFiles | None, on_step: OnStep = lambda text: None) -> None:
    """Set the number of partitions, store `reader` (unless it is None) on the shards that lack a complete default
    reader, and register qa-cluster's own functions. Wait until the workers are warm.
    """
    patience_seconds = settings.start_timeout_ms / 1000
    deadline = time.monotonic() + patience_seconds
    with shards_of(settings, url) as shards:
        try:
            _need_module(shards)
            on_step("setting the number of partitions")
            _set_partitions(shards, deadline)
            if reader is not None:
                on_step(f"storing the reader {reader.tag} on {len(shards)} shards")
                at_once(
                    shards,
                    lambda node, client: retry_while_starting(
                        lambda: _store_default(node, client, reader, deadline), deadline
                    ),
                    on_step,
                )
            for _, client in shards:
                command(client, "RG.CONFIGSET", SENTENCE_ANSWER_TTL_OPTION, settings.sentence_answer_ttl_s)
                command(client, "RG.CONFIGSET", SENTENCE_ANSWERS_OPTION, settings.sentence_answers_mb)
            on_step("waiting until the workers have started")
            wait_workers(shards, patience_seconds)
            on_step("registering the functions")
            _register(shards, time.monotonic() + patience_seconds)
            on_step("waiting until the workers are warm")
            wait_workers(shards, patience_seconds)
            at_once(shards, _wait_partitions, on_step)
        except redis.exceptions.RedisError as error:
            raise ClusterError(f"the set-up of the cluster failed: {error}") from error


def _store_default(node: Node, client: redis.Redis, reader: ReaderFiles, deadline: float) -> None:
    """Store `reader` as the default reader of a shard, unless the shard has a different, complete default reader."""
    tag = model_tag(client, node.tag)
    if tag not in ("", reader.tag) and default_on(node, client) == tag:
        return
    if tag != reader.tag:
        store_model(node, client, reader, "", deadline)
    store_texts(node, client, reader, "")


def _need_module(shards: list[ShardClient]) -> None:
    without = [node.address for node, client in shards if missing_commands(client)]
    if without:
        raise ClusterError(
            f"the native module is not loaded on {', '.join(without)}: add the lines from `qa-cluster config --module`"
            " to the configuration of these servers, and restart them"
        )


def _set_partitions(shards: list[ShardClient], deadline: float) -> None:
    wanted = keys.slot(keys.PARTITIONS_KEY)
    count = PARTITIONS_PER_SHARD * len(shards)
    for node, client in shards:
        if any(first <= wanted <= last for first, last in node.slots):
            retry_while_starting(partial(client.set, keys.PARTITIONS_KEY, count, nx=True), deadline)
            return
    raise ClusterError(f"no shard owns slot {wanted} of the key {keys.PARTITIONS_KEY!r}: see `qa-cluster status`")


def _register(shards: list[ShardClient], deadline: float) -> None:
    """Run the registration script on one shard, which sends the functions to the other shards. Wait until every shard
    has the same functions. Raises ClusterError after the deadline.
    """
    for _, client in shards:
        command(client, "RG.REFRESHCLUSTER")
    first = shards[0][1]
    script = ("RG.PYEXECUTE", REGISTER_SCRIPT, "ID", SESSION, "UPGRADE", "DESCRIPTION", "qa-cluster functions")
    reply = retry_while_starting(lambda: command(first, *script), deadline)
    if reply not in (b"OK", "OK"):
        raise ClusterError(f"the functions could not be registered: {reply!r}")
    while True:
        names = [sorted(str(row.get("desc")) for row in registrations(client)) for _, client in shards]
        if names[0] and all(found == names[0] for found in names):
            return
        if time.monotonic() > deadline:
            counts = ", ".join(f"{node.address}: {len(n)}" for (node, _), n in zip(shards, names, strict=True))
            raise ClusterError(f"the functions were not registered on every shard within start_timeout_ms ({counts})")
        time.sleep(POLL_SECONDS)


def _wait_partitions(node: Node, client: redis.Redis) -> None:
    """Wait until the worker of a shard knows the number of partitions, because the worker may have to ask another shard
    first.

    A new cluster can lose messages between shards, so this may take seconds. After `_PARTITIONS_SECONDS`, the function
    returns anyway. Then only the first question is delayed.
    """
    deadline = time.monotonic() + _PARTITIONS_SECONDS
    while time.monotonic() < deadline:
        try:
            (reply,) = command(client, "RG.TRIGGER", PARTITIONS_TRIGGER)
        except (redis.exceptions.ResponseError, redis.exceptions.TimeoutError):  # no worker, or no reply yet
            reply = b"0"
        if int(reply):
            return
        time.sleep(POLL_SECONDS)
