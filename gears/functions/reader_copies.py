"""Keeps a copy of the reader on this shard, whatever happens to its slots, with nobody's help.

The shard's own copy is in keys with the tag of its lowest slot. Slots move, and those keys with them: then the shard
takes a copy that came to it under another tag, else one from another shard, piece by piece, over the workers' own
messages. A shard that has no slot yet keeps it in memory and is warm when the first one comes. Copies under other tags
than the shard's own are removed when they are the same. A reader that no shard has any more is given up.

The model travels as the server's own dump of its key, so a copy differs in nothing, is checked when it is restored, and
never overwrites what somebody has stored meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from qa_cluster.gears import api as rg
from qa_cluster.gears.functions import reader as readers
from qa_cluster.gears.functions import slots
from qa_cluster.gears.functions.reader import Reader, as_bytes
from qa_cluster.gears.functions.slots import View
from qa_cluster.gears.held_model import HeldModel

from qa_cluster.errors import QAError
from qa_cluster.keys import manifest_key, model_key, slot, tokenizer_key
from qa_cluster.manifest import Manifest
from qa_cluster.tokenization import ReaderTokenizer

REQUEST = "qa.reader"
PIECE_BYTES = 900_000
ANSWER_SECONDS = 5.0
KEEP_SECONDS = 10.0
GIVE_UP_SECONDS = 2.0
SETTLED_SECONDS = 1.5


class _Copies:
    def __init__(self) -> None:
        self.served: dict[tuple[str, str], bytes] = {}
        self.nowhere_since: float | None = None
        self.view: View | None = None
        self.view_since = 0.0
        self.tidied = False


_state = _Copies()


async def keep(view: View) -> None:
    """Bring the shard a step nearer to a reader under its own tag; called again and again."""
    if view != _state.view:
        _state.view, _state.view_since, _state.tidied = view, time.monotonic(), False
    # A rebalance takes slot after slot, the lowest first: a copy made in between would only travel with the next one.
    settled = time.monotonic() - _state.view_since > SETTLED_SECONDS and not view.leaving and not view.coming
    if view.tag is not None and readers.look():
        _state.nowhere_since = None
        await _warm()
        if settled and not _state.tidied and view.is_primary:
            _state.tidied = True
            _remove_others(view)
    elif view.is_primary and (settled or readers.if_loaded() is None):
        await _bring(view, view.tag if settled else None)


async def _warm() -> None:
    """Compile the model when it comes, not when somebody asks."""
    found = readers.if_loaded()
    if found is not None and found.model is not None:
        await found.model.load()


async def _bring(view: View, into: str | None) -> None:
    """The shard's keys lack the reader, or a part of it: get it into the keys of a tag, or into memory."""
    if into is None and readers.if_loaded() is not None:
        return
    own = _read(manifest_key(into)) if into is not None else None
    if into is not None:
        for tag in _other_tags(view):
            found = _read(manifest_key(tag))
            if found is not None and own in (None, found):
                await asyncio.to_thread(_store, into, found, _read(tokenizer_key(tag)), _dump(tag))
                return
    everyone_told = True
    for node, _ in view.others:
        try:
            offered = await rg.ask_shard(node, REQUEST, None, ANSWER_SECONDS)
            if offered is None or own not in (None, offered):
                continue
            await (_fetch(into, node, offered) if into is not None else _fetch_to_memory(node, offered))
            _state.nowhere_since = None
            return
        except (rg.error, QAError) as error:
            everyone_told = False
            rg.log(f"reader: no copy from shard {node[:8]}: {error}", "warning")
    if everyone_told and into is not None:
        _give_up()


def _give_up() -> None:
    now = time.monotonic()
    if _state.nowhere_since is None:
        _state.nowhere_since = now
    elif now - _state.nowhere_since > GIVE_UP_SECONDS and readers.if_loaded() is not None:
        rg.log("reader: it is on no shard any more: no question is answered until one is loaded", "warning")
        readers.use(None)


async def _fetch(tag: str, node: str, manifest: bytes) -> None:
    tokenizer = await _pieces(node, manifest, "tokenizer")
    dump = await _pieces(node, manifest, "dump")
    if slots.current(0).tag == tag:
        await asyncio.to_thread(_store, tag, manifest, tokenizer, dump)
        rg.log(f"reader: copied from shard {node[:8]}, {len(dump)} bytes")


async def _fetch_to_memory(node: str, manifest: bytes) -> None:
    tokenizer = await _pieces(node, manifest, "tokenizer")
    model = await _pieces(node, manifest, "model")
    Manifest.from_json(manifest).verify(model, tokenizer)
    held = await HeldModel.compiled("ONNX", "CPU", model)
    readers.use(Reader(ReaderTokenizer(tokenizer), manifest, held, None))
    rg.log(f"reader: loaded from shard {node[:8]} before this shard has a slot")


async def _pieces(node: str, manifest: bytes, part: str) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        piece = await rg.ask_shard(node, REQUEST, (manifest, part, size), ANSWER_SECONDS)
        if piece is None:
            raise QAError(f"the reader went away while its {part} was copied")
        pieces.append(piece)
        size += len(piece)
        if len(piece) < PIECE_BYTES:
            return b"".join(pieces)


def _store(tag: str, manifest: bytes, tokenizer: bytes | None, dump: bytes | None) -> None:
    """Write what is not there; the manifest last, as it makes the reader whole."""
    if tokenizer is None or dump is None:
        return
    try:
        rg.execute("RESTORE", model_key(tag), 0, dump)
    except rg.error as error:
        if "BUSYKEY" not in str(error):
            raise
    rg.execute_many([("SET", tokenizer_key(tag), tokenizer, "NX"), ("SET", manifest_key(tag), manifest, "NX")])


def _other_tags(view: View) -> list[str]:
    """Tags, not the shard's own, under which there is a model of that name here."""
    prefix = model_key("").removesuffix("}")
    names = [str(entry[0]) for entry in rg.execute("AI._MODELSCAN")]
    tags = [name[len(prefix) : -1] for name in names if name.startswith(prefix) and name.endswith("}")]
    return [tag for tag in tags if tag != view.tag and view.has(slot(model_key(tag)))]


def _remove_others(view: View) -> None:
    """Copies that came with slots: the shard needs one."""
    own = _read(manifest_key(str(view.tag)))
    for tag in _other_tags(view):
        if own is not None and _read(manifest_key(tag)) == own:
            rg.execute("UNLINK", model_key(tag), tokenizer_key(tag), manifest_key(tag))
            rg.log(f"reader: the copy that came with slot {slot(model_key(tag))} is removed")


def _read(key: str) -> bytes | None:
    try:
        value = rg.execute("GET", key)
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        return None
    return None if value is None else as_bytes(value)


def _dump(tag: str) -> bytes | None:
    value = rg.execute("DUMP", model_key(tag))
    return None if value is None else as_bytes(value)


async def answer(_sender: str, asked: tuple[bytes, str, int] | None) -> bytes | None:
    """Another shard asks (`REQUEST`): the manifest of the reader here, or a piece of one of its parts; None without."""
    view = slots.current()
    tags = [tag for tag in (view.tag, *_other_tags(view)) if tag is not None]
    for tag in tags:
        manifest, has_tokenizer = _read(manifest_key(tag)), _read(tokenizer_key(tag)) is not None
        if manifest is None or not has_tokenizer or (asked is not None and asked[0] != manifest):
            continue
        if asked is None:
            return manifest
        found = await _part(tag, manifest, asked[1])
        if found is not None:
            return found[asked[2] : asked[2] + PIECE_BYTES]
    return None


async def _part(tag: str, manifest: bytes, part: str) -> bytes | None:
    """A part of the reader here, kept for a while: its pieces are asked for one after the other."""
    name = (Manifest.from_json(manifest).revision, part)
    found = _state.served.get(name)
    if found is None:
        command: dict[str, tuple[Any, ...]] = {
            "tokenizer": ("GET", tokenizer_key(tag)),
            "dump": ("DUMP", model_key(tag)),
            "model": ("AI.MODELGET", model_key(tag), "BLOB"),
        }
        value = await asyncio.to_thread(rg.execute, *command[part])
        if value is None:
            return None
        found = b"".join(map(as_bytes, value)) if isinstance(value, list) else as_bytes(value)
        _state.served[name] = found
        asyncio.get_running_loop().call_later(KEEP_SECONDS, _state.served.pop, name, None)
    return found
