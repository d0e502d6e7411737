"""Spares most commands the import of pydantic, which took a quarter of a short command's time.

Typer (from 0.28 on) has pydantic make the value of every option and argument. Those that are not given, plain texts and
defaults are already what they shall be. With a Typer that has nothing of the kind, this changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer.core

P = TypeVar("P")


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


class _Values:
    """Makes the values of a parameter, in the place of what Typer would make them with (`usual`)."""

    def __init__(self, parameter: Any, usual: Callable[[], Any]) -> None:
        described = parameter.type_descriptor
        plain = getattr(described.parameter_info, "parser", None) is None
        self._usual = usual
        self._is_text = plain and described.annotation in (str, str | None)
        self._is_texts = plain and described.annotation in (list[str], list[str] | None)
        self._default = parameter.default if isinstance(parameter.default, int | float | str) else None

    def itself(self) -> _Values:
        """What Typer asks a parameter for."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if value is self._default or (self._is_text and isinstance(value, str)):
            return value
        if self._is_texts and isinstance(value, list | tuple):
            return list(value)
        return self._usual().coerce(value, param=param, ctx=ctx)
