"""Loads a reader or an encoder on all shards, makes a reader the default, or removes a model.

A load stores the new reader under its own keys, alongside the readers in use, and the worker of each shard compiles it.
To make the new reader the default, one script for each shard renames the reader's keys. Before the renaming, users
notice no change. If the load of a reader that no shard had before fails or is interrupted, the command removes the
reader again. The command does not undo the renaming, because some shards may be unreachable. To complete an interrupted
renaming, repeat the command.

An encoder never becomes the default. After its load, the previous encoders are removed, unless the caller keeps them.
A worker *warms* a model: it runs the model once for each input shape, because the first run of a shape is slow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import redis

from qa_cluster.errors import ClusterError, InferenceFailed, InvalidInput, ModelError, NotFound, from_reply
from qa_cluster.shard_functions import PIPELINE_TRIGGER
from qa_cluster.vectors.encoder_manifest import parse_manifest

from ..nodes.all_shards import ClusterOperation, Failure, in_words, on_all, until_all
from ..nodes.connect import shards_of
from ..nodes.node import Node, command
from ..nodes.polling import HEAVY_POLL_SECONDS
from . import default_reader, shard_readers
from .reader_files import ReaderFiles
from .reader_listing import find, find_incomplete, incomplete_readers, listing
from .shard_readers import ShardReader

_UNDO_SECONDS = 20.0
# The input of a test: a question and a context of several windows, which a worker reads in one batch.
_TRIAL = json.dumps(
    {
        "inputs": {"question": "a", "context": "b c d e f g h i j k l m n o p q r s t u v w x y z"},
        "parameters": {"max_seq_len": 12},
    }
)


def load(
    operation: ClusterOperation, reader: ReaderFiles, *, make_default: bool = True, keep_old: bool = False
) -> list[str]:
    """Load a reader on every shard. Unless `make_default` is false, also make it the default reader. Then remove the
    previous default reader, unless `keep_old` is set.

    An encoder never becomes the default. With `make_default` and without `keep_old`, instead remove the previous
    encoders.

    Returns:
        The full names of the removed models, sorted.
    """
    name = reader.tag
    before = listing(operation)
    replaced = "is_encoder" if reader.is_encoder else "default"
    former = {entry.name for entries in before.values() for entry in entries if getattr(entry, replaced)} - {name}
    new = not any(entry.name == name for entries in before.values() for entry in entries)
    try:
        _store(operation, reader)
        until_all(operation, lambda node, client: _is_warm(client, reader), f"{name} is not ready on every shard")
        if not reader.is_encoder:
            until_all(
                operation, lambda node, client: _reads(node, client, name), f"{name} was not tried on every shard"
            )
    except BaseException:
        if new:
            _undo(operation, name)
        raise
    if not make_default:
        return []
    if not reader.is_encoder:
        default_reader.change(operation, name)
    removed = [] if keep_old else sorted(former)
    for old in removed:
        operation.on_step(f"removing {old}")
        _remove(operation, old, default=False)
    return removed


def use(operation: ClusterOperation, model: str) -> str:
    """Make the loaded reader that `model` means (`find`) the default on every shard. Return its full name. The previous
    default stays loaded.
    """
    found = listing(operation)
    name = find(found, model)
    if any(entry.is_encoder for entries in found.values() for entry in entries if entry.name == name):
        raise InvalidInput(f"{name} is an encoder: it makes vectors and cannot be the default reader, name a reader")
    until_all(operation, lambda node, client: _is_ready(client, name), f"{name} is not ready on every shard")
    default_reader.change(operation, name)
    return name


def unload(operation: ClusterOperation, model: str, *, force: bool = False) -> str:
    """Remove the reader or encoder that `model` means (`find`) from every shard, even if it is stored incompletely.
    Return its full name.

    Raises InvalidInput if the reader is the default of a shard and `force` is not set.
    """
    found = listing(operation)
    try:
        name = find(found, model)
    except NotFound:
        name = find_incomplete(incomplete_readers(operation, found), model)
        if not name:
            raise
    answering = [address for address, entries in found.items() for e in entries if e.name == name and e.default]
    if answering and not force:
        raise InvalidInput(
            f"{name} is the default reader of {', '.join(answering)}: first make another reader the default"
            " (`qa-cluster model use NAME`), or remove it with --force; no question can then be answered"
        )
    _remove(operation, name, default=force)
    return name


def add_encoder(operation: ClusterOperation, encoder: ReaderFiles) -> None:
    """Store an encoder on every shard, if no shard has an encoder. The function does not wait: the workers warm the
    encoder in the background.
    """
    if not any(entry.is_encoder for entries in listing(operation).values() for entry in entries):
        operation.on_step(f"storing the encoder {encoder.tag}")
        _store(operation, encoder)


def add_second_reader(operation: ClusterOperation, read: Callable[[], ReaderFiles], model_id: str) -> None:
    """Store the second reader on every shard, if no shard has it, and wait until the workers have warmed it.

    `read` returns the files of the second reader, which has the id `model_id`.
    """
    if any(entry.id == model_id for entries in listing(operation).values() for entry in entries):
        return
    reader = read()
    operation.on_step(f"storing the second reader {reader.tag}")
    _store(operation, reader)
    until_all(operation, lambda node, client: _is_warm(client, reader), f"{reader.tag} is not ready on every shard")


def spread(operation: ClusterOperation) -> None:
    """Store every reader and encoder that some shards have, except default readers, on the shards that lack it."""
    found = listing(operation)
    names = {entry.name for entries in found.values() for entry in entries if not entry.default}
    for name in sorted(names):
        lacking = [address for address, entries in found.items() if all(entry.name != name for entry in entries)]
        reader = read_loaded(operation, name) if lacking else None
        if reader is not None:  # otherwise only a worker's memory has the reader, and its shard will soon store it
            operation.on_step(f"storing {name} on {', '.join(lacking)}")
            _store(operation, reader)


def read_loaded(operation: ClusterOperation, name: str) -> ReaderFiles | None:
    """Return the files of the reader with the full name `name`, from the first shard that stores it. Return None if no
    shard stores the reader now, and only workers have it in memory.
    """
    with shards_of(operation.settings, operation.url) as shards:
        for node, client in shards:
            key_name = _key_name(node, client, name)
            if not key_name or shard_readers.manifest_name(client, node.tag, name) == name:
                return shard_readers.read_from(node, client, key_name)
    return None


def _key_name(node: Node, client: redis.Redis, name: str) -> str:
    """Return the name of a reader in the keys of a shard. For the default reader of the shard, this name is empty."""
    return "" if shard_readers.default_on(node, client) == name else name


def _store(operation: ClusterOperation, reader: ReaderFiles) -> None:
    """Store the tokenizer and the ONNX file on all shards, then the manifest, which completes the reader."""
    name = reader.tag
    size = f"{len(reader.model) / 1e6:.1f} MB"

    def store(node: Node, client: redis.Redis) -> str:
        key_name = _key_name(node, client, name)
        if shard_readers.model_tag(client, node.tag, key_name) != name:
            shard_readers.store_model(node, client, reader, key_name, time.monotonic())
            operation.on_step(f"compiled and stored {name} ({size}) on {node.address}")
        return ""

    def complete(node: Node, client: redis.Redis) -> str:
        shard_readers.store_texts(node, client, reader, _key_name(node, client, name))
        return ""

    for work in (store, complete):
        until_all(operation, work, f"{name} could not be stored on every shard")


def _remove(operation: ClusterOperation, name: str, *, default: bool) -> None:
    """Remove a reader from all shards, and wait until the workers have removed it. Without `default`, raise
    ClusterError if it is the default reader of a shard.
    """

    def check(node: Node, client: redis.Redis) -> str:
        return "" if default else _refuse_default(node, client, name)

    def remove(node: Node, client: redis.Redis) -> str:
        shard_readers.remove(client, node, name, default=default)
        return ""

    def is_gone(node: Node, client: redis.Redis) -> str:
        if all(entry.name != name for entry in shard_readers.readers_on(client)):
            return ""
        check(node, client)
        remove(node, client)  # the shard may have copied the reader from another shard
        return "its worker still has it"

    for work in (check, remove, is_gone):
        until_all(operation, work, f"{name} could not be removed from every shard")


def _refuse_default(node: Node, client: redis.Redis, name: str) -> str:
    if shard_readers.default_on(node, client) == name:
        raise ClusterError(
            f"{name} was not removed: another command has made it the default reader of {node.address} meanwhile"
        )
    return ""


def _undo(operation: ClusterOperation, name: str) -> None:
    """Remove a reader from the shards after its load has failed, for at most `_UNDO_SECONDS`. Report the shards from
    which it could not be removed.

    Raises ClusterError if another command has made the reader the default meanwhile.
    """
    operation.on_step(f"removing {name} again; the other readers are unchanged")
    limit = time.monotonic() + _UNDO_SECONDS

    def remove(node: Node, client: redis.Redis) -> str:
        shard_readers.remove(client, node, name, default=False)
        remains = any(entry.name == name for entry in shard_readers.readers_on(client))
        return "its worker still has it" if remains else ""

    left = f"run `qa-cluster model unload {name}` to remove the rest"
    try:
        on_all(operation, lambda node, client: _refuse_default(node, client, name))
        while problems := on_all(operation, remove):
            if time.monotonic() > limit:
                operation.on_step(f"{name} was not removed from every shard, {left}: {in_words(problems)}")
                return
            time.sleep(HEAVY_POLL_SECONDS)
    except KeyboardInterrupt:
        operation.on_step(f"interrupted, {left}")
        raise


def _reads(node: Node, client: redis.Redis, name: str) -> str:
    """Let a shard read a passage as a test, and return the problem that prevents the test for now, or an empty string.
    The test finds faults that warming does not find: wrong output shapes, and NaN logits. For such a fault, it raises
    ModelError.
    """
    try:
        command(client, "RG.TRIGGER", PIPELINE_TRIGGER, name, _TRIAL)
    except redis.exceptions.ResponseError as error:
        found = from_reply(str(error))
        if isinstance(found, NotFound):  # the worker was replaced meanwhile
            return str(found)
        if isinstance(found, ModelError | InferenceFailed):
            raise ModelError(
                f"{name} cannot answer; export it again, or with a different precision: shard {node.address}: {found}"
            ) from error
        raise
    return ""


def _is_warm(client: redis.Redis, reader: ReaderFiles) -> str:
    entry = _entry(shard_readers.readers_on(client, manifests=True), reader.tag)
    problem = _unready(entry)
    if not problem and entry is not None and parse_manifest(entry.manifest) != reader.manifest:
        problem = "its worker has not loaded the new manifest yet"
    return problem


def _is_ready(client: redis.Redis, name: str) -> str:
    return _unready(_entry(shard_readers.readers_on(client), name))


def _entry(entries: Sequence[ShardReader], name: str) -> ShardReader | None:
    return next((entry for entry in entries if entry.name == name), None)


def _unready(entry: ShardReader | None) -> str:
    if entry is None:
        return "its worker has not loaded it yet"
    if not entry.stored:
        return "only its worker's memory has it so far"
    return "" if entry.warm else Failure(entry.problem) or "its worker is still compiling it"
