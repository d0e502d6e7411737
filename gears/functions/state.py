"""Holds what the functions of this worker remember from one call to the next: one object, in this place only.

Registered functions are stored by their names, so what they remember is the process's and not theirs: it stays when the
functions are registered again, and a new worker begins without it. Each module describes its part by a dataclass whose
fields all have defaults; the part is made when somebody first asks for it. All of it belongs to the event loop.
"""

from __future__ import annotations

from typing import Any, TypeVar

_Part = TypeVar("_Part")


class FunctionState:
    """The parts of all modules, by their classes."""

    def __init__(self) -> None:
        self._parts: dict[type[Any], Any] = {}

    def of(self, kind: type[_Part]) -> _Part:
        """The part of that class; always the same object until `forget`."""
        part = self._parts.get(kind)
        if part is None:
            part = self._parts[kind] = kind()
        found: _Part = part
        return found

    def forget(self) -> None:
        """Begin anew, as a new worker does."""
        self._parts.clear()


state = FunctionState()
