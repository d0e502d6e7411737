"""Exchanges readers with other shards: lists the readers, and sends a reader in pieces."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from qa_cluster.errors import ModelError, QAError
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.shard.commands import as_bytes
from qa_cluster.keys import model_key, slot, tokenizer_key
from qa_cluster.vectors.encoder_manifest import parse_manifest

from .stored import StoredReaders

REQUEST = "qa.reader"
PIECE_BYTES = 900_000
ANSWER_SECONDS = 5.0
KEEP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ReaderOffer:
    """A complete reader in keys with a hash tag. `key_name` is empty for the default reader of this tag."""

    name: str
    key_name: str
    manifest: bytes

    @property
    def is_default(self) -> bool:
        """Whether it is the default reader of its tag, which reads questions that name no reader."""
        return not self.key_name


class ReaderExchange:
    """Offers this shard's readers to other shards, and fetches readers from them.

    The parts of a reader are its tokenizer and its model, the model as a file or as a dump of its key. Another shard
    fetches a part in several pieces. So a requested part stays in memory for `KEEP_SECONDS`.
    """

    def __init__(self, shard: ShardContext, stored: StoredReaders) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._stored = stored
        self._parts: dict[tuple[str, str], bytes] = {}
        shard.commands.answer(REQUEST, self._answer)

    def under(self, tag: str) -> list[ReaderOffer]:
        """Return the complete readers on this server whose keys have the hash tag `tag`.

        A reader is complete if it has a manifest, a tokenizer and a model, and the manifest is valid.
        """
        offers = []
        for item in self._stored.under(tag) or []:
            try:
                if item.ref is not None:
                    offers.append(ReaderOffer(parse_manifest(item.manifest).name, item.name, item.manifest))
            except ModelError:  # for the shard's own keys, `ShardReaders` reports this error
                continue
        return offers

    def other_tags(self, view: View) -> list[str]:
        """Return the tags, other than the shard's own, under which this shard has readers."""
        return sorted(tag for tag in self._stored.tags() if tag != view.tag and view.has(slot(tag)))

    def dump(self, tag: str, name: str) -> bytes | None:
        """Return the server's dump of the key of a reader's model; None if the key is missing.

        `name` is the name of the reader in the key; it is empty for the default reader.
        """
        value = self._commands.execute("DUMP", model_key(tag, name))
        return None if value is None else as_bytes(value)

    async def offered(self, node: str) -> list[ReaderOffer]:
        """Return the readers that the shard with the node id `node` offers. Raise GearsError if it does not answer."""
        reply = await self._commands.ask(node, REQUEST, None, ANSWER_SECONDS)
        return [ReaderOffer(name, key_name, manifest) for name, key_name, manifest in reply]

    async def fetch(self, node: str, offer: ReaderOffer, part: str) -> bytes:
        """Fetch a part of another shard's reader: ``tokenizer``, ``dump`` (of its model's key) or ``model`` (the
        file).
        """
        pieces: list[bytes] = []
        size = 0
        while True:
            piece = await self._commands.ask(node, REQUEST, (offer.manifest, part, size), ANSWER_SECONDS)
            if piece is None:
                raise QAError(f"the reader was removed while its {part} was copied")
            pieces.append(piece)
            size += len(piece)
            if len(piece) < PIECE_BYTES:
                return b"".join(pieces)

    async def _answer(self, _sender: str, asked: tuple[bytes, str, int] | None) -> Any:
        """Answer a `REQUEST` of another shard with the list of readers on this server, or a piece of the requested
        part.

        `asked` is None for the list. Otherwise it has the manifest of the reader, the name of the part, and the offset
        of the piece in bytes. The list starts with readers under the shard's own tag. The answer is None if the part is
        missing.
        """
        view = self._slots.current()
        tags = [tag for tag in (view.tag, *self.other_tags(view)) if tag is not None]
        here = [(tag, offer) for tag in tags for offer in self.under(tag)]
        if asked is None:
            return [(offer.name, offer.key_name, offer.manifest) for _, offer in here]
        manifest, part, start = asked
        for tag, offer in here:
            if offer.manifest == manifest:
                found = await self._part(tag, offer, part)
                if found is not None:
                    return found[start : start + PIECE_BYTES]
        return None

    async def _part(self, tag: str, offer: ReaderOffer, part: str) -> bytes | None:
        name = (f"{offer.name} {offer.key_name}", part)
        found = self._parts.get(name)
        if found is None:
            command: dict[str, tuple[Any, ...]] = {
                "tokenizer": ("GET", tokenizer_key(tag, offer.key_name)),
                "dump": ("DUMP", model_key(tag, offer.key_name)),
                "model": ("AI.MODELGET", model_key(tag, offer.key_name), "BLOB"),
            }
            value = await asyncio.to_thread(self._commands.execute, *command[part])
            if value is None:
                return None
            found = b"".join(map(as_bytes, value)) if isinstance(value, list) else as_bytes(value)
            self._parts[name] = found
            asyncio.get_running_loop().call_later(KEEP_SECONDS, self._parts.pop, name, None)
        return found
