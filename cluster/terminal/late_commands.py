"""Subcommands whose files are imported only when they are used: imports would take most of a short command's time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import typer

from .help_text import help_of
from .plain_values import PlainCommand, sparing_pydantic

# For programs that parse their own options, including --help.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@dataclass(frozen=True)
class Late:
    """A subcommand: the function `function` of `module`, or a Typer of that name, which has subcommands of its own."""

    module: str
    function: str
    context_settings: Mapping[str, Any] = field(default_factory=dict)

    def command(self, name: str) -> Any:
        """The subcommand as a click command."""
        found = getattr(import_module(self.module), self.function)
        if isinstance(found, typer.Typer):
            found.info.name = name
            return typer.main.get_command(found)
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        settings = dict(self.context_settings)
        alone.command(name, cls=PlainCommand, help=help_of(found), context_settings=settings)(found)
        return typer.main.get_command(alone)


class _Commands(Mapping[str, Any]):
    """The subcommands of a group by their names, in the order of their table."""

    def __init__(self, table: Mapping[str, Late]) -> None:
        self._table = table
        self._made = cache(lambda name: table[name].command(name))

    def __getitem__(self, name: str) -> Any:
        return self._made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def late_group(table: Mapping[str, Late], description: str) -> typer.Typer:
    """A command that has only these subcommands; `description` is its help."""
    group = typer.Typer(
        cls=group_of(table), help=description, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
    )
    # typer needs a callback to make a group, because the subcommands are added late
    group.callback()(lambda: None)
    return group


def group_of(table: Mapping[str, Late]) -> type[typer.core.TyperGroup]:
    """The class (`cls` of a Typer) of groups with these subcommands."""

    class Group(typer.core.TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes | {"commands": _Commands(table)})

        def get_params(self, ctx: Any) -> list[Any]:
            return sparing_pydantic(super().get_params(ctx))

    return Group
