"""Reads the readers in the keys of this shard, and remembers the names of the models from the last read.

The default reader is in ``bert-qa{h}``, ``bert-qa:manifest{h}`` and ``bert-qa:tokenizer{h}``. The keys of any other
reader have ``@<name>`` before the brace. A change of the default reader is one script that renames six keys. A read
must not mix keys from before and after this script. So the list of models is read at the start and at the end, and both
lists must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qa_cluster.errors import InvalidInput
from qa_cluster.gears.functions.shard.context import ShardContext
from qa_cluster.gears.functions.shard.slots import is_redirect
from qa_cluster.gears.shard.commands import as_bytes
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.keys import manifest_key, model_key, parse_model_key, tokenizer_key

MAX_TRIES = 4
MAX_TAGS = 64


@dataclass(frozen=True, slots=True)
class StoredReader:
    """A reader in keys.

    Attributes:
        name: empty for the default reader.
        mark: the text that `AI.MODELSTORE` stored with the reader's model as its option `TAG`. This is normally the
            name in the manifest, not a hash tag.
        ref: the reference of the reader's model (`QA.MODELREF`); None if the model is missing.
    """

    name: str
    manifest: bytes
    mark: str
    ref: int | None


class StoredReaders:
    """Reads the readers in keys. Remembers the name and the `TAG` of every model for each hash tag."""

    def __init__(self, shard: ShardContext) -> None:
        self._commands = shard.commands
        self._slots = shard.slots
        self._seen: dict[str, dict[str, str]] = {}

    def under(self, tag: str) -> list[StoredReader] | None:
        """Return the readers whose keys have the hash tag `tag`; None while the tag's slot is not on this shard, or if
        the keys change during each of `MAX_TRIES` reads.

        A reader without a manifest or tokenizer is left out. A named reader without a model is left out, too, but the
        default reader may lack its model.
        """
        marks = self._seen.get(tag, {})
        for _ in range(MAX_TRIES):
            names = ["", *(name for name in marks if name)]
            commands: list[tuple[str, ...]] = [("AI._MODELSCAN",)]
            for name in names:
                commands += [("GET", manifest_key(tag, name)), ("EXISTS", tokenizer_key(tag, name))]
            try:
                replies, refs = self._commands.with_references(
                    [*commands, ("AI._MODELSCAN",)], [model_key(tag, name) for name in names]
                )
            except GearsError as error:
                if not is_redirect(error):
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
            if len(self._seen) > MAX_TAGS:
                self._seen.clear()
            self._seen[tag] = marks
        return None

    def tags(self) -> set[str]:
        """Return the tags under which this server has models of readers."""
        return {tag for tag, _, _ in _found(self._commands.execute("AI._MODELSCAN"))}

    def read(self, key: str) -> bytes | None:
        """Return the value of a key; None if it is missing or on another shard."""
        try:
            (value,) = self._slots.read([("GET", key)])
        except GearsError as error:
            if not is_redirect(error):
                raise
            return None
        return None if value is None else as_bytes(value)


def _of_tag(scan: Sequence[Any], tag: str) -> dict[str, str]:
    """Return the option `TAG` of each reader's model (`StoredReader.mark`), by the name of the reader.

    `scan` is the reply to ``AI._MODELSCAN``. Only models whose keys have the hash tag `tag` are included.
    """
    return {name: mark for key_tag, name, mark in _found(scan) if key_tag == tag}


def _found(scan: Sequence[Any]) -> list[tuple[str, str, str]]:
    found = []
    for key, mark in scan:
        try:
            parsed = parse_model_key(key) if isinstance(key, str) else None
        except InvalidInput:  # a user's model whose name starts like the name of a reader
            continue
        if parsed is not None:
            found.append((*parsed, str(mark)))
    return found
