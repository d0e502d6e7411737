"""Exchanges readers with other shards: lists them, and transfers one in pieces."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.errors import ModelError, QAError
from qa_cluster.gears.functions.readers import stored
from qa_cluster.gears.functions.readers.stored import as_bytes
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import model_key, slot, tokenizer_key
from qa_cluster.reading.manifest import Manifest

REQUEST = "qa.reader"
PIECE_BYTES = 900_000
ANSWER_SECONDS = 5.0
KEEP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ReaderOffer:
    """A whole reader in keys of some tag. `key_name` is empty if it is the default one there."""

    name: str
    key_name: str
    manifest: bytes

    @property
    def is_default(self) -> bool:
        """Whether it is the default reader there, which answers questions that name no reader."""
        return not self.key_name


@dataclass
class _Served:
    """Parts that other shards have asked for a moment ago, by reader and part."""

    parts: dict[tuple[str, str], bytes] = field(default_factory=dict)


def under(tag: str) -> list[ReaderOffer]:
    """The whole readers under a tag on this server."""
    offers = []
    for item in stored.readers(tag) or []:
        try:
            if item.ref is not None:
                offers.append(ReaderOffer(Manifest.from_json(item.manifest).name, item.name, item.manifest))
        except ModelError:  # `loaded` reports it if these keys are the shard's own
            continue
    return offers


def other_tags(view: View) -> list[str]:
    """The tags, other than the shard's own, under which this shard has readers."""
    return sorted(tag for tag in stored.tags() if tag != view.tag and view.has(slot(tag)))


def dump(tag: str, name: str) -> bytes | None:
    """The server's dump of a model."""
    value = rg.execute("DUMP", model_key(tag, name))
    return None if value is None else as_bytes(value)


async def offered(node: str) -> list[ReaderOffer]:
    """The readers of another shard."""
    reply = await rg.ask_shard(node, REQUEST, None, ANSWER_SECONDS)
    return [ReaderOffer(name, key_name, manifest) for name, key_name, manifest in reply]


async def fetch(node: str, offer: ReaderOffer, part: str) -> bytes:
    """A part of a reader of another shard: ``tokenizer``, ``dump`` (of its model's key) or ``model`` (the file)."""
    pieces: list[bytes] = []
    size = 0
    while True:
        piece = await rg.ask_shard(node, REQUEST, (offer.manifest, part, size), ANSWER_SECONDS)
        if piece is None:
            raise QAError(f"the reader went away while its {part} was copied")
        pieces.append(piece)
        size += len(piece)
        if len(piece) < PIECE_BYTES:
            return b"".join(pieces)


async def answer(_sender: str, asked: tuple[bytes, str, int] | None) -> Any:
    """Answer another shard's `REQUEST`: the readers here or, if it asks for one, a piece of a part, None without.

    The shard's own tag comes first, then the tags that came with slots.
    """
    view = slots.current()
    tags = [tag for tag in (view.tag, *other_tags(view)) if tag is not None]
    here = [(tag, offer) for tag in tags for offer in under(tag)]
    if asked is None:
        return [(offer.name, offer.key_name, offer.manifest) for _, offer in here]
    manifest, part, start = asked
    for tag, offer in here:
        if offer.manifest == manifest:
            found = await _part(tag, offer, part)
            if found is not None:
                return found[start : start + PIECE_BYTES]
    return None


async def _part(tag: str, offer: ReaderOffer, part: str) -> bytes | None:
    """A part of a reader here; it is kept for a while, because its pieces are asked for one after the other."""
    name = (f"{offer.name} {offer.key_name}", part)
    served = state.of(_Served).parts
    found = served.get(name)
    if found is None:
        command: dict[str, tuple[Any, ...]] = {
            "tokenizer": ("GET", tokenizer_key(tag, offer.key_name)),
            "dump": ("DUMP", model_key(tag, offer.key_name)),
            "model": ("AI.MODELGET", model_key(tag, offer.key_name), "BLOB"),
        }
        value = await asyncio.to_thread(rg.execute, *command[part])
        if value is None:
            return None
        found = b"".join(map(as_bytes, value)) if isinstance(value, list) else as_bytes(value)
        served[name] = found
        asyncio.get_running_loop().call_later(KEEP_SECONDS, served.pop, name, None)
    return found
