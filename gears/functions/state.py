"""Holds the state that the functions of this worker keep from one call to the next, all of it in one object.

Registered functions are stored by their names, so their state belongs to the process: it stays when the functions are
registered again, and a new worker begins without it. Each module describes its part as a dataclass whose fields all
have defaults; the part is made at its first use. Only the event loop's thread may use it.
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
        """Drop all parts, as if the worker were new."""
        self._parts.clear()


state = FunctionState()
