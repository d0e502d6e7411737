"""Spares most commands the import of pydantic, which took a quarter of a short command's time.

Typer (from 0.28 on) has pydantic make the value of every option and argument. Those that are not given, plain texts and
defaults are already what they shall be; whole numbers and paths that fit are simple to make. All else is Typer's, as
errors are. With a Typer that has nothing of the kind, this changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer.core

P = TypeVar("P")
_DIGITS = 18  # of the numbers that are made here


class PlainCommand(typer.core.TyperCommand):
    """A command whose values pydantic makes only where they need it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its options and arguments, `--help` included."""
        return sparing_pydantic(super().get_params(ctx))


def sparing_pydantic(parameters: list[P]) -> list[P]:
    """The parameters, whose values pydantic makes only where they need it."""
    for parameter in parameters:
        made_by = getattr(parameter, "get_runtime_param", None)
        if made_by is not None and not isinstance(getattr(made_by, "__self__", None), _Values):
            parameter.get_runtime_param = _Values(parameter, made_by).itself  # type: ignore[attr-defined]
    return parameters


def _text(value: Any, _: Any) -> str | None:
    """A text as it is; None if Typer has to look at it."""
    return value if isinstance(value, str) else None


def _number(value: Any, info: Any) -> int | None:
    """The whole number that a text is, if it is within bounds; None if Typer has to look at it."""
    if not (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _DIGITS):
        return None
    number = int(value)
    fits = (info.min is None or number >= info.min) and (info.max is None or number <= info.max)
    return number if fits else None


def _path(value: Any, info: Any) -> Path | None:
    """The path that a text is, if it fits its parameter; None if Typer has to look at it."""
    if not isinstance(value, str) or info.path_type or info.resolve_path or info.allow_dash or info.writable:
        return None
    path = Path(value)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None if info.exists else path
    except (OSError, ValueError):
        return None
    kind_fits = (info.file_okay or not stat.S_ISREG(mode)) and (info.dir_okay or not stat.S_ISDIR(mode))
    return path if kind_fits and (not info.readable or os.access(path, os.R_OK)) else None


_SIMPLE: tuple[tuple[type, Callable[[Any, Any], Any]], ...] = ((str, _text), (int, _number), (Path, _path))


class _Values:
    """Makes the values of a parameter, in the place of what Typer would make them with (`usual`)."""

    def __init__(self, parameter: Any, usual: Callable[[], Any]) -> None:
        described = parameter.type_descriptor
        info = described.parameter_info
        plain = getattr(info, "parser", None) is None
        self._usual = usual
        self._info = info
        # of a parameter with one value, and of the items of one with many
        self._one = self._many = None
        for kind, make in _SIMPLE if plain else ():
            if described.annotation in (kind, kind | None):
                self._one = make
            elif described.annotation in (list[kind], list[kind] | None):  # type: ignore[valid-type]
                self._many = make
        self._default = parameter.default if isinstance(parameter.default, int | float | str) else None

    def itself(self) -> _Values:
        """What Typer asks a parameter for."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if value is self._default:
            return value
        if self._one and (made := self._one(value, self._info)) is not None:
            return made
        if self._many and isinstance(value, list | tuple):
            items = [self._many(item, self._info) for item in value]
            if None not in items:
                return items
        return self._usual().coerce(value, param=param, ctx=ctx)
