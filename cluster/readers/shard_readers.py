"""Lists the readers of one shard, from its worker and from its keys; stores and removes a reader.

In the keys of a shard, a reader has its full name, `<id>@<revision>`. Only the default reader has an empty name there.
All keys of a reader have the tag of a shard (`keys.model_key`, `keys.manifest_key`, `keys.tokenizer_key`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from qa_cluster import keys
from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.scripts.calls import ScriptCall
from qa_cluster.shard_functions import MODELS_TRIGGER, WITH_MANIFESTS, missing_functions
from qa_cluster.vectors.encoder_manifest import parse_manifest

from ..nodes.node import Node, command, text_of
from ..nodes.polling import POLL_SECONDS
from .reader_files import ReaderFiles

# Models are sent in parts: a server closes the connection if an argument exceeds 512 MB (proto-max-bulk-len).
_PART_BYTES = 64 << 20
# Errors that occur while the worker of the shard is starting or being replaced.
_NO_WORKER = ("NOWORKER", "WORKERLOST")
# The error of a registration that another shard's worker has not acknowledged in time.
_OTHER_WORKER = "did not answer within"


@dataclass(frozen=True)
class ShardReader:
    """A reader or encoder as the worker of a shard reports it.

    `on_models` in gears/functions/readers/report.py, the trigger `qa.models`, describes the fields.
    """

    name: str
    id: str
    revision: str
    reading_revision: str
    default: bool
    warm: bool
    precision: str
    bytes: int
    context_tokens: int
    stored: bool
    settled: bool
    problem: str
    manifest: str = ""
    kind: str = "reader"

    @property
    def is_encoder(self) -> bool:
        """Whether the model makes vectors instead of answers."""
        return self.kind == "encoder"


def readers_on(client: redis.Redis, *, manifests: bool = False) -> list[ShardReader]:
    """Return the readers and encoders of a shard's worker, the default reader first. The field `manifest` is empty
    unless `manifests` is set. Raises redis' ResponseError if the worker does not answer.
    """
    (text,) = command(client, "RG.TRIGGER", MODELS_TRIGGER, *([WITH_MANIFESTS] if manifests else []))
    return [ShardReader(**entry) for entry in json.loads(text)]


def default_on(node: Node, client: redis.Redis) -> str:
    """Return the full name of the default reader in the keys of the shard; empty if the shard has no default reader."""
    return manifest_name(client, node.tag)


def manifest_name(client: redis.Redis, shard_tag: str, name: str = "") -> str:
    """Return the full name that the stored manifest of a reader states. Return an empty text if there is no valid
    manifest. `name` is the name in the key; an empty `name` means the default reader.
    """
    return _name_of(client.get(keys.manifest_key(shard_tag, name)))


def _name_of(manifest: Any) -> str:
    try:
        return parse_manifest(manifest).name if isinstance(manifest, bytes) else ""
    except ModelError:
        return ""


def read_from(node: Node, client: redis.Redis, name: str = "") -> ReaderFiles:
    """Return the files of a reader that a shard stores. An empty `name` means the default reader. Raises ModelError if
    a file is missing or damaged.
    """
    reply = command(client, "AI.MODELGET", keys.model_key(node.tag, name), "BLOB")
    model = b"".join(reply) if isinstance(reply, list) else reply
    manifest_text, tokenizer = client.mget(keys.manifest_key(node.tag, name), keys.tokenizer_key(node.tag, name))
    if not isinstance(manifest_text, bytes) or not isinstance(tokenizer, bytes):
        raise ModelError(
            f"shard {node.address} has the model {name or 'of the default reader'} without manifest or tokenizer: load"
            " the reader again"
        )
    manifest = parse_manifest(manifest_text)
    manifest.verify(model, tokenizer)
    return ReaderFiles(model, tokenizer, manifest_text.decode(), manifest)


def store_model(node: Node, client: redis.Redis, reader: ReaderFiles, name: str, deadline: float) -> None:
    """Store the tokenizer and the ONNX file of a reader under `name`; an empty `name` means the default reader. Before
    the server stores the ONNX file, its worker compiles the file. While the worker is starting, try again until
    `deadline`, a value of `time.monotonic`.
    """
    client.set(keys.tokenizer_key(node.tag, name), reader.tokenizer)
    model = memoryview(reader.model)
    parts = [model[at : at + _PART_BYTES] for at in range(0, len(model), _PART_BYTES)]
    key = keys.model_key(node.tag, name)
    options = ("ONNX", "CPU", "TAG", reader.tag)
    retry_while_starting(lambda: command(client, "AI.MODELSTORE", key, *options, "BLOB", *parts), deadline)


def store_texts(node: Node, client: redis.Redis, reader: ReaderFiles, name: str) -> None:
    """Store the tokenizer and the manifest of a reader atomically, under `name` (see `store_model`). A key is written
    only if its value differs, because a write makes the shard reload the reader.
    """
    texts = {
        keys.tokenizer_key(node.tag, name): reader.tokenizer,
        keys.manifest_key(node.tag, name): reader.manifest_text.encode(),
    }
    with client.pipeline(transaction=True) as pipeline:
        for key, wanted in texts.items():
            if client.get(key) != wanted:
                pipeline.set(key, wanted)
        pipeline.execute()


def model_tag(client: redis.Redis, shard_tag: str, name: str = "") -> str:
    """Return the value that a model has for ``TAG``: the id and revision of its reader, ``<id>@<revision>``.

    `name` is the reader's name in the keys of the shard with the hash tag `shard_tag`; empty for the default reader.
    The result is empty if the shard has no model with this name.
    """
    try:
        reply = command(client, "AI.MODELGET", keys.model_key(shard_tag, name), "META")
    except redis.exceptions.ResponseError:
        return ""
    found = dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply
    return text_of(found.get(b"tag", b""))


def make_default(node: Node, client: redis.Redis, name: str) -> str:
    """Make a stored reader the default of a shard, atomically. Return the problem that prevents this, or an empty
    string.
    """
    problem = _rename(node, client, name)
    if not problem:
        _remove_strays(node, client, name)
    return problem


def _rename(node: Node, client: redis.Redis, name: str) -> str:
    current = client.get(keys.manifest_key(node.tag))
    former = _name_of(current)
    if former == name:
        return ""
    wanted = [key(node.tag, name) for key in (keys.model_key, keys.manifest_key, keys.tokenizer_key)]
    default = [key(node.tag) for key in (keys.model_key, keys.manifest_key, keys.tokenizer_key)]
    own = [key(node.tag, former) for key in (keys.model_key, keys.manifest_key, keys.tokenizer_key)] if former else []
    call = ScriptCall("make_default", (*default, *wanted, *own), (current if isinstance(current, bytes) else b"",))
    status = command(client, *call.command())
    return {
        b"done": "",
        b"changed": "another client has just changed its default reader",
        b"missing": f"it does not have {name} under its tag {node.tag!r} yet",
    }[status]


def _remove_strays(node: Node, client: redis.Redis, name: str) -> None:
    """Remove the default readers whose keys have a tag other than the shard's tag, except the reader `name`.

    Such readers arrived with slots from other shards, and could become the default again when slots move.
    """
    for tag, key_name in _stored(client):
        if tag != node.tag and not key_name and manifest_name(client, tag) != name:
            client.unlink(*(key(tag) for key in (keys.manifest_key, keys.model_key, keys.tokenizer_key)))


def _stored(client: redis.Redis) -> list[tuple[str, str]]:
    """Return the tag and the name in the key of every reader whose model is on the server of `client`. The name of a
    default reader is empty.
    """
    found = []
    for key, _ in command(client, "AI._MODELSCAN"):
        try:
            parsed = keys.parse_model_key(key.decode(errors="replace"))
        except InvalidInput:  # a user's model whose key only starts like a reader's
            continue
        if parsed is not None:
            found.append(parsed)
    return found


def named_models(client: redis.Redis) -> set[str]:
    """Return the full names of the readers, except default readers, whose model is on the server of `client`."""
    return {name for _, name in _stored(client) if name}


def remove(client: redis.Redis, node: Node, name: str, *, default: bool) -> int:
    """Remove the keys of a reader from a shard, under all tags. If the reader is the default reader of the shard,
    remove it only with `default`.

    Returns:
        The number of removed keys.
    """
    named = [(tag, key_name) for tag, key_name in _stored(client) if (key_name or manifest_name(client, tag)) == name]
    # Without `default`, keep the keys of the shard's default reader. If another command makes this reader the default
    # now, that command renames the keys that contain the reader's name, so the removal does not find these keys.
    if not default:
        named = [(tag, key_name) for tag, key_name in named if key_name or tag != node.tag]
    removed = 0
    for tag, key_name in dict.fromkeys([(node.tag, name), *named]):
        names = [key(tag, key_name) for key in (keys.manifest_key, keys.model_key, keys.tokenizer_key)]
        removed += int(client.unlink(*names))
    return removed


def retry_while_starting(attempt: Callable[[], object], deadline: float) -> object:
    """Call `attempt`, which sends a command to a shard, until it succeeds, and return its result. Try again only while
    the shard, its worker, or the worker of another shard is starting. After `deadline`, a value of `time.monotonic`,
    raise the error.

    On a busy machine, the servers of a new cluster may lose contact for a moment.
    """
    while True:
        try:
            return attempt()
        except redis.exceptions.ResponseError as error:
            if not _is_starting(error) or time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


def _is_starting(error: redis.exceptions.ResponseError) -> bool:
    text = str(error)
    is_down = isinstance(error, redis.exceptions.ClusterDownError)
    return is_down or text.startswith(_NO_WORKER) or _OTHER_WORKER in text


def has_functions(client: redis.Redis) -> bool:
    """Return whether the shard has this version's function that lists the readers (the trigger `qa.models`)."""
    return not missing_functions(command(client, "RG.DUMPREGISTRATIONS"), [MODELS_TRIGGER])
