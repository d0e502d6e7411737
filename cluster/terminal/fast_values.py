"""Converts simple option values without pydantic, whose import takes a quarter of the time of a short command.

Typer 0.28 and newer converts the value of every option and argument with pydantic. This module converts missing values,
defaults, strings, valid whole numbers and valid paths itself. Typer converts every other value, and raises every error.
With older versions of Typer, this module changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer.core

P = TypeVar("P")
_MAX_DIGITS = 18  # Typer converts longer numbers


class FastCommand(typer.core.TyperCommand):
    """A command that converts simple values without pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options (with `--help`) and the arguments of the command, which convert simple values without
        pydantic.
        """
        return bypassing_pydantic(super().get_params(ctx))


def bypassing_pydantic(parameters: list[P]) -> list[P]:
    """Make the parameters convert simple values without pydantic. Return the parameters."""
    for parameter in parameters:
        typers = getattr(parameter, "get_runtime_param", None)
        if typers is not None and not isinstance(getattr(typers, "__self__", None), _Converter):
            parameter.get_runtime_param = _Converter(parameter, typers).itself  # type: ignore[attr-defined]
    return parameters


# The following three functions convert a value of the command line to str, int and Path. They return None for a value
# that Typer must convert or refuse.


def _text(value: Any, _: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any, info: Any) -> int | None:
    if not (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS):
        return None
    number = int(value)
    fits = (info.min is None or number >= info.min) and (info.max is None or number <= info.max)
    return number if fits else None


def _path(value: Any, info: Any) -> Path | None:
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


class _Converter:
    """Converts simple values of a parameter itself, and all other values with Typer's converter (`usual`)."""

    def __init__(self, parameter: Any, usual: Callable[[], Any]) -> None:
        described = parameter.type_descriptor
        info = described.parameter_info
        plain = getattr(info, "parser", None) is None
        self._usual = usual
        self._info = info
        # The function that converts a single value, and the function that converts each item of a list. At most one of
        # them is set.
        self._single = self._item = None
        for kind, convert in _SIMPLE if plain else ():
            if described.annotation in (kind, kind | None):
                self._single = convert
            elif described.annotation in (list[kind], list[kind] | None):  # type: ignore[valid-type]
                self._item = convert
        self._default = parameter.default if isinstance(parameter.default, int | float | str) else None

    def itself(self) -> _Converter:
        """Return this converter. This method replaces a parameter's `get_runtime_param`."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if value is self._default:
            return value
        if self._single and (converted := self._single(value, self._info)) is not None:
            return converted
        if self._item and isinstance(value, list | tuple):
            items = [self._item(item, self._info) for item in value]
            if None not in items:
                return items
        return self._usual().coerce(value, param=param, ctx=ctx)
