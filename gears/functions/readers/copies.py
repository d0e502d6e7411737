"""Makes sure that this shard has a copy of every reader and encoder, even while slots migrate.

The shard's own copies are in keys with the tag of the shard's lowest slot (the shard's *own tag*). When this slot
migrates to another shard, these keys migrate with it, and the shard needs new copies:

- If a reader has arrived with another slot, the shard copies it from the keys of that slot.
- Otherwise it copies a reader from another shard, piece by piece, in messages between the workers.

A shard without slots loads the readers of other shards into memory, so that the readers are warm when its first slot
arrives. A copy under another tag is removed if it equals the shard's own copy. A reader is dropped when no shard has it
any more.

The shard asks other shards for their readers in three cases:

- its keys lack a reader that it has in memory;
- its slots have changed;
- periodically, one shard after the other.

A removal does not reach all shards at once. So an unknown reader is copied only if another shard still has it after a
short time.

The model is sent as the server's dump of its key. So the copy is identical, and the server checks the dump when it
restores the key. A copy never overwrites a value that a client has stored in the meantime.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from qa_cluster.errors import QAError
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.inference.model_store import ModelStore
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import manifest_key, model_key, slot, tokenizer_key
from qa_cluster.reading.tokenization import ReaderTokenizer

from .exchange import ReaderExchange, ReaderOffer
from .loaded import ShardReaders, loaded_model
from .reader_model import ReaderModel
from .shard_model import ShardModel
from .stored import StoredReaders
from .warming import Warming

GIVE_UP_SECONDS = 2.0
SETTLED_SECONDS = 1.5
ASK_NEXT_SECONDS = 1.0
# An unknown reader is copied if another shard still has it after this time.
STAYS_SECONDS = 1.5
FORGET_SECONDS = 30.0
# A copy cannot complete a reader whose keys all exist but do not belong together, because a copy never overwrites a
# key. The copy is tried again after this time, because a client may still be storing the reader.
RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Origin:
    """A source to copy a reader from: keys under `tag` on this server (`node` is empty), or the shard `node` (`tag` is
    empty).
    """

    tag: str
    node: str
    offer: ReaderOffer


class ReaderCopies:
    """Copies every reader to the shard's own tag, in steps."""

    def __init__(self, shard: ShardContext, stored: StoredReaders, readers: ShardReaders, models: ModelStore) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._stored = stored
        self._readers = readers
        self._models = models
        self._exchange = ReaderExchange(shard, stored)
        self._warming = Warming(shard, readers)
        self._missing_since: dict[str, float] = {}  # when each reader was first missing on all shards
        self._incomplete_at: dict[tuple[str, str], float] = {}
        self._seen_elsewhere: dict[str, float] = {}
        self._view: View | None = None
        self._view_since = 0.0
        self._tidied = False
        self._compared = False
        self._asked_at = 0.0
        self._turn = 0

    async def keep(self, view: View) -> None:
        """Do the next step of copying all readers to the shard's own tag. `watch` calls this repeatedly."""
        if view != self._view:
            self._view, self._view_since, self._tidied, self._compared = view, time.monotonic(), False, False
            self._incomplete_at.clear()
        # A rebalance migrates the slots one after the other, lowest first. A copy during the rebalance would migrate
        # with the next slot.
        settled = time.monotonic() - self._view_since > SETTLED_SECONDS and not view.leaving and not view.coming
        whole = view.tag is not None and self._readers.read_keys()
        self._warming.start_due()
        if not view.is_primary:
            return
        if view.tag is None or not settled:
            is_due = view.tag is None and time.monotonic() - self._asked_at >= ASK_NEXT_SECONDS
            if is_due or self._readers.if_loaded() is None:
                await self._load_into_memory(view)
            return
        lacking = [reader for reader in self._readers.all_models() if reader.tag != view.tag]
        for reader in self._readers.all_models():
            if reader.tag == view.tag:
                self._missing_since.pop(reader.name, None)
        if not whole or lacking:
            await self._complete(view, view.tag, lacking, whole)
        else:
            await self._compare(view, view.tag)
        if whole and not self._tidied:
            self._tidied = True
            self._remove_surplus(view, view.tag)

    async def _load_into_memory(self, view: View) -> None:
        """Load other shards' readers into memory if this shard has no slot, or lacks a default reader while slots
        migrate.
        """
        nodes = [node for node, _ in view.others]
        self._asked_at = time.monotonic()
        all_answered, origins = await self._ask(nodes)
        default = next((origin.offer.name for origin in origins if origin.offer.is_default), "")
        for origin in _distinct(origins):
            known = next(
                (r for r in self._readers.all_models() if r.model and r.manifest_text == origin.offer.manifest), None
            )
            reader = known if known is not None else await self._fetched(origin)
            is_default = reader.name == default
            if known is None or (is_default and not self._readers.is_default(reader)):
                self._readers.add(reader, default=is_default)
        if view.tag is None and all_answered and nodes:
            offered = {origin.offer.name for origin in origins}
            for reader in self._readers.all_models():
                if reader.name in offered:
                    self._missing_since.pop(reader.name, None)
                else:
                    self._drop_if_missing(reader)

    async def _fetched(self, origin: _Origin) -> ShardModel:
        """Load a reader from another shard into memory, without storing it in keys."""
        manifest = origin.offer.manifest
        tokenizer = await self._exchange.fetch(origin.node, origin.offer, "tokenizer")
        model = await self._exchange.fetch(origin.node, origin.offer, "model")
        reader = loaded_model(ReaderTokenizer(tokenizer), manifest, None, None)
        reader.manifest.verify(model, tokenizer)
        reader.model = await ReaderModel.compiled(self._models, model)
        self._commands.log(f"reader {reader.name}: loaded from shard {origin.node[:8]} into memory")
        return reader

    async def _complete(self, view: View, tag: str, lacking: list[ShardModel], whole: bool) -> None:
        """Copy the readers in `lacking` to the shard's own keys, from other tags on this server or from other shards.

        `whole`: whether the default reader is complete in the shard's own keys. If not, it is copied first. A reader
        that no shard has any more is dropped.
        """
        all_answered, elsewhere = await self._ask([node for node, _ in view.others])
        origins = [*self._under_other_tags(view), *elsewhere]
        if not whole:
            await self._complete_default(tag, origins, all_answered)
        for reader in lacking:
            if self._readers.is_default(reader) or reader.tag == tag:
                continue
            found = next((origin for origin in origins if origin.offer.name == reader.name), None)
            if found is not None:
                await self._copy(tag, reader.name, found)
            elif all_answered:
                self._drop_if_missing(reader)

    async def _complete_default(self, tag: str, origins: list[_Origin], all_answered: bool) -> None:
        own = self._stored.read(manifest_key(tag))
        known = self._readers.if_loaded()
        fitting = [origin for origin in origins if own in (None, origin.offer.manifest)]
        same = [origin for origin in fitting if known is not None and origin.offer.name == known.name]
        defaults = [origin for origin in fitting if origin.offer.is_default]
        # A default reader that was never in this shard's keys may be outdated. Then the default reader of the other
        # shards has precedence.
        in_memory_only = known is not None and known.model is not None and not known.model.has_key
        found = next(iter([*defaults, *same] if in_memory_only else [*same, *defaults]), None)
        if found is not None:
            await self._copy(tag, "", found)
        elif all_answered and known is not None:
            self._drop_if_missing(known)

    async def _compare(self, view: View, tag: str) -> None:
        """Copy the readers that the shard does not use yet: readers of other shards, and readers that have arrived with
        slots. A reader is copied when it has been seen for `STAYS_SECONDS`.

        At the first call after a change of slots, ask all other shards for their readers. After that, ask one shard
        every `ASK_NEXT_SECONDS`, each shard in turn.
        """
        now = time.monotonic()
        if self._compared and now - self._asked_at < ASK_NEXT_SECONDS:
            return
        nodes = [node for node, _ in view.others]
        if self._compared and nodes:
            self._turn += 1
            nodes = [nodes[self._turn % len(nodes)]]
        self._asked_at, self._compared = now, True
        _, elsewhere = await self._ask(nodes)
        known = {reader.name for reader in self._readers.all_models()}
        found = [*self._under_other_tags(view), *elsewhere]
        unknown = {origin.offer.name: origin for origin in found if origin.offer.name not in known}
        for name, origin in unknown.items():
            if now - self._seen_elsewhere.setdefault(name, now) >= STAYS_SECONDS:
                await self._copy(tag, name, origin)
        for name, since in list(self._seen_elsewhere.items()):
            if name in known or now - since > FORGET_SECONDS:
                del self._seen_elsewhere[name]

    async def _ask(self, nodes: list[str]) -> tuple[bool, list[_Origin]]:
        """Ask shards for their readers; return whether all have answered, and the readers that the shards have named.

        `nodes` are the node ids of the shards. The error of a shard that does not answer is logged.
        """
        origins: list[_Origin] = []
        all_answered = True
        for node in nodes:
            try:
                origins += [_Origin("", node, offer) for offer in await self._exchange.offered(node)]
            except (GearsError, QAError) as error:
                all_answered = False
                self._commands.log(f"reader: shard {node[:8]} does not report its readers: {error}", "warning")
        return all_answered, origins

    def _under_other_tags(self, view: View) -> list[_Origin]:
        """Return the readers on this server that are not under the shard's own tag, because they arrived with slots."""
        tags = self._exchange.other_tags(view)
        return [_Origin(tag, "", offer) for tag in tags for offer in self._exchange.under(tag)]

    async def _copy(self, tag: str, name: str, origin: _Origin) -> None:
        """Fetch a reader from `origin`, and store it under the shard's own tag `tag`.

        `name` is the name of the reader in the keys. If it is empty, the reader is stored as the default reader. A
        failure is logged, not raised, and later calls of `keep` try again. If all keys of the reader exist but do not
        belong together, the next try is after `RETRY_SECONDS`.
        """
        offer = origin.offer
        if time.monotonic() - self._incomplete_at.get((tag, name), -RETRY_SECONDS) < RETRY_SECONDS:
            return
        try:
            if origin.tag:
                tokenizer = self._stored.read(tokenizer_key(origin.tag, offer.key_name))
                dump = await asyncio.to_thread(self._exchange.dump, origin.tag, offer.key_name)
            else:
                tokenizer = await self._exchange.fetch(origin.node, offer, "tokenizer")
                dump = await self._exchange.fetch(origin.node, offer, "dump")
                # Fetching a large reader takes seconds. A reader that was removed meanwhile must not be stored again.
                if offer not in await self._exchange.offered(origin.node):
                    return
            if tokenizer is None or dump is None or self._slots.current(0).tag != tag:
                return
            has_written = await asyncio.to_thread(self._store, tag, name, offer.manifest, tokenizer, dump)
        except (GearsError, QAError) as error:
            self._commands.log(f"reader {offer.name} could not be copied: {error}", "warning")
            return
        if not has_written:
            self._incomplete_at[tag, name] = time.monotonic()
            self._commands.log(
                f"reader {offer.name}: {model_key(tag, name)}, tokenizer and manifest do not belong together: load the"
                " reader again",
                "warning",
            )
            return
        self._readers.forget()
        place = f"slot {slot(origin.tag)}" if origin.tag else f"shard {origin.node[:8]}"
        self._commands.log(f"reader {offer.name}: copied from {place}, {len(dump)} bytes")

    def _store(self, tag: str, name: str, manifest: bytes, tokenizer: bytes, dump: bytes) -> bool:
        """Write the missing keys; return whether any key was missing.

        The manifest is last, because it makes the reader complete.
        """
        has_written = True
        try:
            self._commands.execute("RESTORE", model_key(tag, name), 0, dump)
        except GearsError as error:
            if "BUSYKEY" not in str(error):
                raise
            has_written = False
        replies = self._commands.execute_many(
            [("SET", tokenizer_key(tag, name), tokenizer, "NX"), ("SET", manifest_key(tag, name), manifest, "NX")]
        )
        return has_written or any(reply is not None for reply in replies)

    def _drop_if_missing(self, reader: ShardModel) -> None:
        """Drop a reader if no shard has offered it for `GIVE_UP_SECONDS`.

        Until then, keep the reader, because it may be missing only for a moment.
        """
        now = time.monotonic()
        if now - self._missing_since.setdefault(reader.name, now) > GIVE_UP_SECONDS:
            del self._missing_since[reader.name]
            if self._readers.is_default(reader):
                self._commands.log(
                    "no shard has the default reader any more: questions fail until a default reader is loaded",
                    "warning",
                )
            self._readers.drop(reader)

    def _remove_surplus(self, view: View, tag: str) -> None:
        """Remove copies that came with slots, and a second copy of the default reader: the shard needs each reader
        once.
        """
        own = self._exchange.under(tag)
        have = {offer.manifest for offer in own}
        default = next((offer for offer in own if offer.is_default), None)
        surplus = [(tag, offer) for offer in own if offer.key_name and default and offer.name == default.name]
        surplus += [(origin.tag, origin.offer) for origin in self._under_other_tags(view)]
        for other, offer in surplus:
            if offer.manifest in have:
                keys = (key(other, offer.key_name) for key in (model_key, tokenizer_key, manifest_key))
                self._commands.execute("UNLINK", *keys)
                self._commands.log(f"reader {offer.name}: the copy in slot {slot(other)} is removed")


def _distinct(origins: list[_Origin]) -> list[_Origin]:
    """Return one origin for each reader. Prefer an origin where it is the default reader."""
    found: dict[str, _Origin] = {}
    for origin in sorted(origins, key=lambda origin: not origin.offer.is_default):
        found.setdefault(origin.offer.name, origin)
    return list(found.values())
