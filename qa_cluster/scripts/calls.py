"""Describes calls that change keys atomically on their shard: Lua scripts, and commands of the module that run them.

A script is sent with ``EVALSHA``, and with ``EVAL`` if the server does not have it yet. It runs with the rights of the
calling user. A command of the module runs its script with the rights of the module. So the calling user needs rights to
the named keys only, not to the internal keys that the script also writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

# The scripts that change the internal keys of a document.
_OF_DOCUMENTS = (
    "put_document",
    "delete_document",
    "set_metadata",
    "index_document",
    "fail_document",
    "store_tokens",
    "embed_document",
    "loose_sentences",
    "settle_note",
)
# Files whose code precedes the code of several scripts, with the names of these scripts.
_SHARED = {
    "answer_lists": (*_OF_DOCUMENTS, "store_answer", "store_whole_answer", "drop_answers", "repair_partition"),
    "keys": _OF_DOCUMENTS,
    "sentence_offsets": ("read_sentence", "read_hits", "store_answer"),
}

# Scripts that only read. Their users need no right to write the keys.
_READ_ONLY = frozenset({"read_hits"})


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a script; all its keys are in one slot. `script` is the name of its file without ``.lua``."""

    script: str
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]

    @property
    def source(self) -> str:
        """The text of the script."""
        return load(self.script)

    def short(self) -> tuple[str | bytes | int, ...]:
        """Return the call by the script's hash. A server that does not have the script replies with NOSCRIPT."""
        return (self._verb("EVALSHA"), digest(self.script), len(self.keys), *self.keys, *self.args)

    def command(self) -> tuple[str | bytes | int, ...]:
        """Return the call as a command with the script's text.

        >>> ScriptCall("store_answer", ("a",), (1,)).command()[2:]
        (1, 'a', 1)
        """
        return (self._verb("EVAL"), self.source, len(self.keys), *self.keys, *self.args)

    def _verb(self, name: str) -> str:
        return f"{name}_RO" if self.script in _READ_ONLY else name


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a command of the module; all its keys are in one slot. `name` is the name of the command."""

    name: str
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]

    def short(self) -> tuple[str | bytes | int, ...]:
        """Return the result of `command`, because the module always has the script and needs no hash of it."""
        return self.command()

    def command(self) -> tuple[str | bytes | int, ...]:
        """Return the call as a command.

        >>> ModuleCall("QA.DELDOCUMENT", ("paragraphs:a:{06S}",), ("*",)).command()
        ('QA.DELDOCUMENT', 'paragraphs:a:{06S}', '*')
        """
        return (self.name, *self.keys, *self.args)


Call = ScriptCall | ModuleCall


@cache
def load(name: str) -> str:
    """Return the text of a script, after the text of the files that it shares with other scripts."""
    parts = [shared for shared, scripts in _SHARED.items() if name in scripts]
    folder = files(__package__)
    return "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in (*parts, name))


@cache
def digest(name: str) -> str:
    """Return the hash (SHA-1, in hexadecimal digits) under which a server stores the script."""
    return sha1(load(name).encode(), usedforsecurity=False).hexdigest()
