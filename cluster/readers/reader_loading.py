"""Loads a reader on all shards, makes one the default, or removes one; failed steps are undone, or can be repeated.

A reader is stored next to those in use, compiled by each shard's worker, and made the default by renaming its keys, in
one script per shard. Until then nothing changes for users, so a load that fails or is interrupted before is undone. The
renaming itself cannot be undone on a shard that is not reachable meanwhile: the same command, repeated, continues it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack

import redis

from qa_cluster.errors import ClusterError, InferenceFailed, InvalidInput, ModelError, NotFound, from_reply
from qa_cluster.reading.manifest import Manifest
from qa_cluster.shard_functions import PIPELINE_TRIGGER

from ..nodes.all_shards import Failure, Place, in_words, on_all, until_all
from ..nodes.connect import shards_of
from ..nodes.node import Node, command
from ..nodes.polling import HEAVY_POLL_SECONDS
from . import default_reader, shard_readers
from .reader_files import ReaderFiles
from .reader_listing import find, find_part, listing, parts
from .shard_readers import ShardReader

_TAKE_BACK_SECONDS = 20.0
# A passage of several windows, which a worker reads in one batch.
_TRIAL = json.dumps(
    {
        "inputs": {"question": "a", "context": "b c d e f g h i j k l m n o p q r s t u v w x y z"},
        "parameters": {"max_seq_len": 12},
    }
)


def load(place: Place, reader: ReaderFiles, *, beside: bool = False, keep_old: bool = False) -> list[str]:
    """Load a reader on every shard and, unless `beside`, make it the default and remove the former one.

    It returns the names of the readers that were removed.
    """
    name = reader.tag
    before = listing(place)
    former = {entry.name for entries in before.values() for entry in entries if entry.default} - {name}
    new = not any(entry.name == name for entries in before.values() for entry in entries)
    try:
        _store(place, reader)
        until_all(place, lambda node, client: _is_warm(client, reader), f"{name} did not get ready on every shard")
        until_all(place, lambda node, client: _reads(node, client, name), f"{name} was not tried on every shard")
    except BaseException:
        if new:
            _take_back(place, name)
        raise
    if beside:
        return []
    default_reader.change(place, name)
    removed = [] if keep_old else sorted(former)
    for old in removed:
        place.on_step(f"removing {old}")
        _remove(place, old, default=False)
    return removed


def use(place: Place, model: str) -> str:
    """Make a loaded reader the default one on every shard; return its name. The former one stays loaded."""
    name = find(listing(place), model)
    until_all(place, lambda node, client: _is_ready(client, name), f"{name} is not ready on every shard")
    default_reader.change(place, name)
    return name


def unload(place: Place, model: str, *, force: bool = False) -> str:
    """Remove a reader from every shard; return its name."""
    found = listing(place)
    try:
        name = find(found, model)
    except NotFound:
        name = find_part(parts(place, found), model)
        if not name:
            raise
    answering = [address for address, entries in found.items() for e in entries if e.name == name and e.default]
    if answering and not force:
        raise InvalidInput(
            f"{name} is the default reader of {', '.join(answering)}: make another one the default first"
            " (`qa-cluster model use NAME`), or remove it anyway with --force; then no question is answered"
        )
    _remove(place, name, default=force)
    return name


def spread(place: Place) -> None:
    """Store every reader that is on some shard, except the default one, on the shards that lack it."""
    found = listing(place)
    names = {entry.name for entries in found.values() for entry in entries if not entry.default}
    for name in sorted(names):
        lacking = [address for address, entries in found.items() if all(entry.name != name for entry in entries)]
        reader = read_loaded(place, name) if lacking else None
        if reader is not None:  # otherwise it is only in a worker's memory, and that shard will store it soon
            place.on_step(f"storing {name} on {', '.join(lacking)}")
            _store(place, reader)


def read_loaded(place: Place, name: str) -> ReaderFiles | None:
    """The files of a reader from the first shard that stores it; None if only workers' memories have it now."""
    with ExitStack() as stack:
        for node, client in shards_of(place.settings, place.url):
            stack.enter_context(client)
            key_name = _key_name(node, client, name)
            if not key_name or shard_readers.manifest_name(client, node.tag, name) == name:
                return shard_readers.read_from(node, client, key_name)
    return None


def _key_name(node: Node, client: redis.Redis, name: str) -> str:
    """The name in the keys of a reader on a shard: empty if it is the default one there."""
    return "" if shard_readers.default_on(node, client) == name else name


def _store(place: Place, reader: ReaderFiles) -> None:
    """Store tokenizer and ONNX file on all shards; then, on all of them, the manifest, which makes the reader whole."""
    name = reader.tag
    size = f"{len(reader.model) / 1e6:.1f} MB"

    def store(node: Node, client: redis.Redis) -> str:
        key_name = _key_name(node, client, name)
        if shard_readers.model_mark(client, node.tag, key_name) != name:
            shard_readers.store_model(node, client, reader, key_name, time.monotonic())
            place.on_step(f"{name} ({size}) is compiled and stored on {node.address}")
        return ""

    def complete(node: Node, client: redis.Redis) -> str:
        shard_readers.store_texts(node, client, reader, _key_name(node, client, name))
        return ""

    for work in (store, complete):
        until_all(place, work, f"{name} could not be stored on every shard")


def _remove(place: Place, name: str, *, default: bool) -> None:
    """Remove a reader from all shards; ClusterError if it is the default on one of them, unless `default` allows it."""

    def check(node: Node, client: redis.Redis) -> str:
        return "" if default else _refuse_default(node, client, name)

    def remove(node: Node, client: redis.Redis) -> str:
        shard_readers.remove(client, node, name, default=default)
        return ""

    def is_gone(node: Node, client: redis.Redis) -> str:
        if all(entry.name != name for entry in shard_readers.readers_on(client)):
            return ""
        check(node, client)
        remove(node, client)  # the shard may have copied it from one that still had it
        return "its worker still has it"

    for work in (check, remove, is_gone):
        until_all(place, work, f"{name} could not be removed from every shard")


def _refuse_default(node: Node, client: redis.Redis, name: str) -> str:
    if shard_readers.default_on(node, client) == name:
        raise ClusterError(f"{name} is the default reader of {node.address} now, by another command: it stays")
    return ""


def _take_back(place: Place, name: str) -> None:
    """Remove a reader whose loading failed from the shards that can be reached, and report what is left.

    It raises ClusterError if another command has made it the default meanwhile.
    """
    place.on_step(f"removing {name} again: the previous readers go on answering")
    limit = time.monotonic() + _TAKE_BACK_SECONDS

    def remove(node: Node, client: redis.Redis) -> str:
        shard_readers.remove(client, node, name, default=False)
        there = any(entry.name == name for entry in shard_readers.readers_on(client))
        return "its worker still has it" if there else ""

    left = f"`qa-cluster model unload {name}` removes the rest"
    try:
        on_all(place, lambda node, client: _refuse_default(node, client, name))
        while problems := on_all(place, remove):
            if time.monotonic() > limit:
                place.on_step(f"{name} is not gone from every shard, {left}: {in_words(problems)}")
                return
            time.sleep(HEAVY_POLL_SECONDS)
    except KeyboardInterrupt:
        place.on_step(f"interrupted, {left}")
        raise


def _reads(node: Node, client: redis.Redis, name: str) -> str:
    """Try a reading, which shows faults that warming does not: wrong output shapes, logits that are not numbers."""
    try:
        command(client, "RG.TRIGGER", PIPELINE_TRIGGER, name, _TRIAL)
    except redis.exceptions.ResponseError as error:
        found = from_reply(str(error))
        if isinstance(found, NotFound):  # the worker has been replaced meanwhile
            return str(found)
        if isinstance(found, ModelError | InferenceFailed):
            raise ModelError(
                f"{name} cannot read, export it again or in another precision: shard {node.address}: {found}"
            ) from error
        raise
    return ""


def _is_warm(client: redis.Redis, reader: ReaderFiles) -> str:
    entry = _entry(shard_readers.readers_on(client, manifests=True), reader.tag)
    problem = _unready(entry)
    if not problem and entry is not None and Manifest.from_json(entry.manifest) != reader.manifest:
        problem = "its worker has not taken up the new manifest yet"
    return problem


def _is_ready(client: redis.Redis, name: str) -> str:
    return _unready(_entry(shard_readers.readers_on(client), name))


def _entry(entries: Sequence[ShardReader], name: str) -> ShardReader | None:
    return next((entry for entry in entries if entry.name == name), None)


def _unready(entry: ShardReader | None) -> str:
    if entry is None:
        return "its worker has not loaded it yet"
    if not entry.stored:
        return "so far, only its worker's memory has it"
    return "" if entry.warm else Failure(entry.problem) or "its worker is still compiling it"
