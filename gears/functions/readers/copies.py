"""Keeps a copy of every reader on this shard, whatever happens to its slots, without help from outside.

The shard's own copies are in keys with the tag of its lowest slot. When that slot moves, these keys move with it. The
shard then takes a copy that came to it under another tag, or one from another shard, piece by piece, over the workers'
own messages. A shard without slots keeps the others' readers in memory, so that they are warm when its first slot
comes. Copies under other tags are removed when they equal the shard's own. A reader that no shard has any more is
dropped.

The other shards are asked for their readers when this shard's keys lack one that it has in memory, when its slots have
changed, and one after the other all the time. A reader that is not known here is taken only if it still exists a moment
later, because a removal does not reach all shards at once.

The model travels as the server's own dump of its key, so the copy is identical, is checked when it is restored, and
never overwrites what a client has stored meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from qa_cluster.errors import QAError
from qa_cluster.gears.functions.readers import exchange, loaded, stored, warming
from qa_cluster.gears.functions.readers.exchange import ReaderOffer
from qa_cluster.gears.functions.readers.reader import Reader
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.shard.slots import View
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import manifest_key, model_key, slot, tokenizer_key
from qa_cluster.reading.tokenization import ReaderTokenizer

GIVE_UP_SECONDS = 2.0
SETTLED_SECONDS = 1.5
ASK_NEXT_SECONDS = 1.0
# An unknown reader is taken when it still exists on another shard this long after it was first seen there.
STAYS_SECONDS = 1.5
FORGET_SECONDS = 30.0
# Keys that exist but do not make a whole reader are not overwritten: a client may still be storing them.
IN_VAIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Origin:
    """A place to copy a reader from: keys under a tag on this server, or another shard."""

    tag: str
    node: str
    offer: ReaderOffer


@dataclass
class _Copies:
    nowhere_since: dict[str, float] = field(default_factory=dict)
    in_vain: dict[tuple[str, str], float] = field(default_factory=dict)
    seen_elsewhere: dict[str, float] = field(default_factory=dict)
    view: View | None = None
    view_since: float = 0.0
    tidied: bool = False
    compared: bool = False
    asked_at: float = 0.0
    turn: int = 0


async def keep(view: View) -> None:
    """Do the next step towards having all readers under the shard's own tag; `watch` calls it again and again."""
    copies = state.of(_Copies)
    if view != copies.view:
        copies.view, copies.view_since, copies.tidied, copies.compared = view, time.monotonic(), False, False
        copies.in_vain.clear()
    # A rebalance moves slot after slot, the lowest first: a copy made in between would move away with the next slot.
    settled = time.monotonic() - copies.view_since > SETTLED_SECONDS and not view.leaving and not view.coming
    whole = view.tag is not None and loaded.look()
    warming.go_on()
    if not view.is_primary:
        return
    if view.tag is None or not settled:
        is_due = view.tag is None and time.monotonic() - copies.asked_at >= ASK_NEXT_SECONDS
        if is_due or loaded.if_loaded() is None:
            await _to_memory(view)
        return
    lacking = [reader for reader in loaded.everyone() if reader.tag != view.tag]
    for reader in loaded.everyone():
        if reader.tag == view.tag:
            copies.nowhere_since.pop(reader.name, None)
    if not whole or lacking:
        await _complete(view, view.tag, lacking, whole)
    else:
        await _compare(view, view.tag)
    if whole and not copies.tidied:
        copies.tidied = True
        _remove_others(view)


async def _to_memory(view: View) -> None:
    """Load the other shards' readers into memory: this shard has no slots, or no default reader while slots move."""
    copies = state.of(_Copies)
    nodes = [node for node, _ in view.others]
    copies.asked_at = time.monotonic()
    all_answered, origins = await _ask(view, nodes)
    default = next((origin.offer.name for origin in origins if origin.offer.is_default), "")
    for origin in _distinct(origins):
        known = next((r for r in loaded.everyone() if r.model and r.manifest_text == origin.offer.manifest), None)
        reader = known if known is not None else await _read(origin)
        is_default = reader.name == default
        if known is None or (is_default and not loaded.is_default(reader)):
            loaded.add(reader, default=is_default)
    if view.tag is None and all_answered and nodes:
        offered = {origin.offer.name for origin in origins}
        for reader in loaded.everyone():
            if reader.name in offered:
                copies.nowhere_since.pop(reader.name, None)
            else:
                _give_up(reader)


async def _read(origin: _Origin) -> Reader:
    """A reader loaded from another shard into memory, not into keys."""
    manifest = origin.offer.manifest
    tokenizer = await exchange.fetch(origin.node, origin.offer, "tokenizer")
    model = await exchange.fetch(origin.node, origin.offer, "model")
    reader = Reader(ReaderTokenizer(tokenizer), manifest, None, None)
    reader.manifest.verify(model, tokenizer)
    reader.model = await rg.HeldModel.compiled("ONNX", "CPU", model)
    rg.log(f"reader {reader.name}: loaded from shard {origin.node[:8]} into memory")
    return reader


async def _complete(view: View, tag: str, lacking: list[Reader], whole: bool) -> None:
    """Get the readers, or parts of them, that the shard's keys lack, the default one first."""
    all_answered, elsewhere = await _ask(view, [node for node, _ in view.others])
    origins = [*_here(view), *elsewhere]
    if not whole:
        await _complete_default(tag, origins, all_answered)
    for reader in lacking:
        if loaded.is_default(reader) or reader.tag == tag:
            continue
        found = next((origin for origin in origins if origin.offer.name == reader.name), None)
        if found is not None:
            await _copy(tag, reader.name, found)
        elif all_answered:
            _give_up(reader)


async def _complete_default(tag: str, origins: list[_Origin], all_answered: bool) -> None:
    own = stored.read(manifest_key(tag))
    known = loaded.if_loaded()
    fitting = [origin for origin in origins if own in (None, origin.offer.manifest)]
    same = [origin for origin in fitting if known is not None and origin.offer.name == known.name]
    defaults = [origin for origin in fitting if origin.offer.is_default]
    # A default that was never in this shard's keys may be outdated: the others' default comes first then.
    in_memory_only = known is not None and known.model is not None and known.model.ref < 0
    found = next(iter([*defaults, *same] if in_memory_only else [*same, *defaults]), None)
    if found is not None:
        await _copy(tag, "", found)
    elif all_answered and known is not None:
        _give_up(known)


async def _compare(view: View, tag: str) -> None:
    """Take readers of other shards that are unknown here: ask all shards when slots have changed, else the next one."""
    copies = state.of(_Copies)
    now = time.monotonic()
    if copies.compared and now - copies.asked_at < ASK_NEXT_SECONDS:
        return
    nodes = [node for node, _ in view.others]
    if copies.compared and nodes:
        copies.turn += 1
        nodes = [nodes[copies.turn % len(nodes)]]
    copies.asked_at, copies.compared = now, True
    _, elsewhere = await _ask(view, nodes)
    known = {reader.name for reader in loaded.everyone()}
    unknown = {origin.offer.name: origin for origin in [*_here(view), *elsewhere] if origin.offer.name not in known}
    for name, origin in unknown.items():
        if now - copies.seen_elsewhere.setdefault(name, now) >= STAYS_SECONDS:
            await _copy(tag, name, origin)
    for name, since in list(copies.seen_elsewhere.items()):
        if name in known or now - since > FORGET_SECONDS:
            del copies.seen_elsewhere[name]


async def _ask(view: View, nodes: list[str]) -> tuple[bool, list[_Origin]]:
    """Whether all of these shards have answered, and the readers that they offer."""
    origins: list[_Origin] = []
    all_answered = True
    for node in nodes:
        try:
            origins += [_Origin("", node, offer) for offer in await exchange.offered(node)]
        except (rg.error, QAError) as error:
            all_answered = False
            rg.log(f"reader: shard {node[:8]} does not report its readers: {error}", "warning")
    return all_answered, origins


def _here(view: View) -> list[_Origin]:
    """The readers on this server under other tags than the shard's own; they came with slots."""
    return [_Origin(tag, "", offer) for tag in exchange.other_tags(view) for offer in exchange.under(tag)]


def _distinct(origins: list[_Origin]) -> list[_Origin]:
    """One origin of each reader, preferably one where it is the default."""
    found: dict[str, _Origin] = {}
    for origin in sorted(origins, key=lambda origin: not origin.offer.is_default):
        found.setdefault(origin.offer.name, origin)
    return list(found.values())


async def _copy(tag: str, name: str, origin: _Origin) -> None:
    """Store a reader under the shard's own tag, as the default one if `name` is empty."""
    copies = state.of(_Copies)
    offer = origin.offer
    if time.monotonic() - copies.in_vain.get((tag, name), -IN_VAIN_SECONDS) < IN_VAIN_SECONDS:
        return
    try:
        if origin.tag:
            tokenizer = stored.read(tokenizer_key(origin.tag, offer.key_name))
            dump = await asyncio.to_thread(exchange.dump, origin.tag, offer.key_name)
        else:
            tokenizer = await exchange.fetch(origin.node, offer, "tokenizer")
            dump = await exchange.fetch(origin.node, offer, "dump")
            # Fetching a large reader takes seconds: one that was removed everywhere meanwhile must not come back.
            if offer not in await exchange.offered(origin.node):
                return
        if tokenizer is None or dump is None or slots.current(0).tag != tag:
            return
        has_written = await asyncio.to_thread(_store, tag, name, offer.manifest, tokenizer, dump)
    except (rg.error, QAError) as error:
        rg.log(f"reader {offer.name}: no copy: {error}", "warning")
        return
    if not has_written:
        copies.in_vain[tag, name] = time.monotonic()
        key = model_key(tag, name)
        rg.log(f"reader {offer.name}: {key}, tokenizer and manifest do not belong together: load it again", "warning")
        return
    loaded.forget()
    place = f"that came with slot {slot(origin.tag)}" if origin.tag else f"of shard {origin.node[:8]}"
    rg.log(f"reader {offer.name}: copied from that {place}, {len(dump)} bytes")


def _store(tag: str, name: str, manifest: bytes, tokenizer: bytes, dump: bytes) -> bool:
    """Write the keys that are missing, the manifest last, as it makes the reader whole; return whether any was."""
    has_written = True
    try:
        rg.execute("RESTORE", model_key(tag, name), 0, dump)
    except rg.error as error:
        if "BUSYKEY" not in str(error):
            raise
        has_written = False
    replies = rg.execute_many(
        [("SET", tokenizer_key(tag, name), tokenizer, "NX"), ("SET", manifest_key(tag, name), manifest, "NX")]
    )
    return has_written or any(reply is not None for reply in replies)


def _give_up(reader: Reader) -> None:
    """Drop a reader that is on no shard, but only after a while: it may merely seem so for a moment."""
    copies = state.of(_Copies)
    now = time.monotonic()
    if now - copies.nowhere_since.setdefault(reader.name, now) > GIVE_UP_SECONDS:
        del copies.nowhere_since[reader.name]
        if loaded.is_default(reader):
            rg.log("no shard has the default reader any more: questions fail until one is loaded", "warning")
        loaded.drop(reader)


def _remove_others(view: View) -> None:
    """Remove copies that came with slots, and a second copy of the default: the shard needs one of each reader."""
    own = exchange.under(str(view.tag))
    have = {offer.manifest for offer in own}
    default = next((offer for offer in own if offer.is_default), None)
    surplus = [(str(view.tag), offer) for offer in own if offer.key_name and default and offer.name == default.name]
    surplus += [(tag, offer) for tag in exchange.other_tags(view) for offer in exchange.under(tag)]
    for tag, offer in surplus:
        if offer.manifest in have:
            rg.execute("UNLINK", *(key(tag, offer.key_name) for key in (model_key, tokenizer_key, manifest_key)))
            rg.log(f"reader {offer.name}: the copy in slot {slot(tag)} is removed")
