"""Reads the readers in the keys of this shard; it remembers only the models that it saw last.

The default reader is in ``bert-qa{h}``, ``bert-qa:manifest{h}`` and ``bert-qa:tokenizer{h}``, any other in keys with
``@<name>`` before the brace. Making another one the default renames six keys in one script. All keys must be read
either before or after that, so the names of the models are read first and last, and must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.shard import slots
from qa_cluster.gears.functions.state import state
from qa_cluster.gears.scripting import api as rg
from qa_cluster.keys import manifest_key, model_key, parse_model_key, tokenizer_key

MAX_TRIES = 4
MAX_TAGS = 64


@dataclass(frozen=True, slots=True)
class StoredReader:
    """A reader in keys: `name` is empty for the default one, `mark` is its model's TAG, `ref` None without a model."""

    name: str
    manifest: bytes
    mark: str
    ref: int | None

    def where(self, tag: str) -> str:
        """The key of its model."""
        return model_key(tag, self.name)


@dataclass
class _LastSeen:
    """The models of readers by tag: name and TAG of each."""

    by_tag: dict[str, dict[str, str]] = field(default_factory=dict)


def readers(tag: str) -> list[StoredReader] | None:
    """The readers under a tag that have manifest and tokenizer; None while the tag's slot is not here.

    A named one is included only with its model; the default one may lack it.
    """
    seen = state.of(_LastSeen).by_tag
    marks = seen.get(tag, {})
    for _ in range(MAX_TRIES):
        names = ["", *(name for name in marks if name)]
        commands: list[tuple[str, ...]] = [("AI._MODELSCAN",)]
        for name in names:
            commands += [("GET", manifest_key(tag, name)), ("EXISTS", tokenizer_key(tag, name))]
        try:
            replies, refs = rg.with_references(
                [*commands, ("AI._MODELSCAN",)], [model_key(tag, name) for name in names]
            )
        except rg.error as error:
            if not slots.is_redirect(error):
                raise
            return None
        before, after = _of_tag(replies[0], tag), _of_tag(replies[-1], tag)
        if before == after == marks:
            found = zip(names, replies[1:-1:2], replies[2:-1:2], refs, strict=True)
            return [
                StoredReader(name, as_bytes(manifest), marks.get(name, ""), ref if name in marks else None)
                for name, manifest, has_tokenizer, ref in found
                if manifest is not None and has_tokenizer and (ref is not None or not name)
            ]
        marks = after
        if len(seen) > MAX_TAGS:
            seen.clear()
        seen[tag] = marks
    return None


def _of_tag(scan: Sequence[Any], tag: str) -> dict[str, str]:
    """The models of readers under a tag: name and TAG."""
    return {name: mark for key_tag, name, mark in _found(scan) if key_tag == tag}


def tags() -> set[str]:
    """The tags under which there are models of readers on this server."""
    return {tag for tag, _, _ in _found(rg.execute("AI._MODELSCAN"))}


def _found(scan: Sequence[Any]) -> list[tuple[str, str, str]]:
    found = []
    for key, mark in scan:
        try:
            parsed = parse_model_key(key) if isinstance(key, str) else None
        except InvalidInput:  # a user's own model whose name only begins like ours
            continue
        if parsed is not None:
            found.append((*parsed, str(mark)))
    return found


def tokenizer(tag: str, name: str) -> bytes | None:
    """The tokenizer of a reader, None if it is not here."""
    return read(tokenizer_key(tag, name))


def read(key: str) -> bytes | None:
    """The value of a key, None if it is empty or not on this shard."""
    try:
        (value,) = slots.read([("GET", key)])
    except rg.error as error:
        if not slots.is_redirect(error):
            raise
        return None
    return None if value is None else as_bytes(value)


def as_bytes(value: Any) -> bytes:
    """A value of a key as bytes: the worker gets valid UTF-8 as text."""
    return value.encode() if isinstance(value, str) else bytes(value)
