"""The Lua scripts that change documents atomically on the shard that holds them.

A script is sent with ``EVAL``; servers cache it by its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_SHARED = "keys"
_DOCUMENT_SCRIPTS = frozenset(
    {"put_document", "delete_document", "split_document", "index_document", "tokenize_sentences"}
)


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One call of a script; all its keys are in one slot."""

    script: str
    keys: tuple[str, ...]
    args: tuple[str | bytes | int, ...]

    @property
    def source(self) -> str:
        """The script's text."""
        return load(self.script)

    def command(self) -> tuple[str | bytes | int, ...]:
        """The call as a command for any client.

        >>> ScriptCall("store_answer", ("a",), (1,)).command()[2:]
        (1, 'a', 1)
        """
        return ("EVAL", self.source, len(self.keys), *self.keys, *self.args)


@cache
def load(name: str) -> str:
    """The text of the script ``name``; a document script is preceded by the part that all of them share."""
    folder = files(__package__) / "scripts"
    source = (folder / f"{name}.lua").read_text(encoding="utf-8")
    if name in _DOCUMENT_SCRIPTS:
        source = (folder / f"{_SHARED}.lua").read_text(encoding="utf-8") + source
    return source
