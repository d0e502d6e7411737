"""Pins, synonyms, feedback and unanswered questions in a backup, with one JSON line for each.

Feedback and unanswered questions are entries of Redis streams. A restore adds the missing entries in the order of their
ids, and does not remove newer entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from qa_cluster.asking.editors.feedback import read_stream, restore_stream
from qa_cluster.asking.engine import Engine
from qa_cluster.asking.questions import fold
from qa_cluster.errors import InvalidInput
from qa_cluster.keys import check_collection, feedback_key, unanswered_key
from qa_cluster.types import Feedback, Pin, Synonyms, UnansweredQuestion

from .folder import BackupFolder
from .manifest import GUIDANCE_FILE

PIN, SYNONYMS, FEEDBACK, UNANSWERED = "pin", "synonyms", "feedback", "unanswered"
_TYPES: dict[str, type[Pin | Synonyms | Feedback | UnansweredQuestion]] = {
    PIN: Pin,
    SYNONYMS: Synonyms,
    FEEDBACK: Feedback,
    UNANSWERED: UnansweredQuestion,
}
_STREAMS = {FEEDBACK: feedback_key, UNANSWERED: unanswered_key}


@dataclass(frozen=True, slots=True)
class SavedGuidance:
    """A line of the backup: a pin, the synonyms of a collection, or an entry of a stream.

    Attributes:
        kind: a key of `_TYPES`, which names the class of `value`.
        id: the id of the entry of the stream; empty for pins and synonyms.
    """

    collection: str
    kind: str
    value: Any
    id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the object for the line in the backup, with values that JSON can represent."""
        return {"collection": self.collection, "kind": self.kind, "id": self.id, "value": self.value.to_dict()}

    @classmethod
    def from_dict(cls, line: Any) -> Self:
        """Read an object that `to_dict` returned; raises InvalidInput if the object is malformed."""
        try:
            value = _TYPES[line["kind"]].from_dict(line["value"])
            return cls(check_collection(line["collection"]), line["kind"], value, str(line["id"]))
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"not a pin, synonyms or feedback: {error!r}") from error


async def save(engine: Engine, folder: BackupFolder, chosen: frozenset[str] | None) -> None:
    """Save the pins, the synonyms, the feedback and the unanswered questions of all collections, or of the `chosen`
    collections, in a file of the backup.
    """
    writer = folder.lines(GUIDANCE_FILE)
    for name in await engine.collections.searchable():
        if chosen is None or name in chosen:
            for pin in await engine.guidance.pins(name):
                writer.add(SavedGuidance(name, PIN, pin).to_dict())
            if (synonyms := await engine.guidance.synonyms(name)).groups:
                writer.add(SavedGuidance(name, SYNONYMS, synonyms).to_dict())
            for kind, key_of in _STREAMS.items():
                key = key_of(engine.partitions.tag_of(name), name)
                for entry, raw in await read_stream(engine.shards, key):
                    writer.add(SavedGuidance(name, kind, _TYPES[kind].from_json(raw), entry).to_dict())
    folder.close(GUIDANCE_FILE)


def _of(saved: Iterable[SavedGuidance], chosen: Collection[str] | None) -> Iterator[SavedGuidance]:
    return (each for each in saved if chosen is None or each.collection in chosen)


async def differing(engine: Engine, saved: Iterable[SavedGuidance], chosen: Collection[str] | None) -> list[str]:
    """Return the names of the pins and synonyms that the cluster has with a different content than the backup."""
    found: list[str] = []
    present = await engine.collections.searchable()
    for each in _of(saved, chosen):
        if each.collection in present and await _kept(engine, each):
            found.append(_name(each))
    return found


async def restore(
    engine: Engine, saved: Iterable[SavedGuidance], chosen: Collection[str] | None, *, replace: bool
) -> list[str]:
    """Restore pins, synonyms and streams.

    With `replace`, pins and synonyms of the backup replace the values of the cluster. Otherwise, the cluster keeps its
    different values. Return the names of the pins and synonyms that it keeps for this reason.
    """
    kept: list[str] = []
    streams: dict[str, dict[str, bytes]] = {}
    for each in _of(saved, chosen):
        if each.kind in _STREAMS:
            key = _STREAMS[each.kind](engine.partitions.tag_of(each.collection), each.collection)
            streams.setdefault(key, {})[each.id] = each.value.to_json()
        elif not replace and await _kept(engine, each):
            kept.append(_name(each))
        elif each.kind == PIN:
            await engine.guidance.put_pin(each.value, each.collection)
        else:
            await engine.guidance.set_synonyms(each.value, each.collection)
    for key, entries in streams.items():
        await restore_stream(engine.shards, key, entries)
    return kept


async def _kept(engine: Engine, each: SavedGuidance) -> bool:
    """Return whether the cluster has a pin for the same question, or synonyms of the same collection, that differ from
    the saved values. Without `replace`, the cluster keeps them. For an entry of a stream, return False.
    """
    if each.kind == PIN:
        pins = {fold(pin.question): pin for pin in await engine.guidance.pins(each.collection)}
        return bool(pins.get(fold(each.value.question), each.value) != each.value)
    if each.kind == SYNONYMS:
        present = await engine.guidance.synonyms(each.collection)
        return bool(present.groups) and present != each.value
    return False


def _name(each: SavedGuidance) -> str:
    return f"pin {each.value.question!r}" if each.kind == PIN else f"synonyms of {each.collection}"
