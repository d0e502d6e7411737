"""Subcommands that are imported on first use, because imports take most of the time of a short command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import typer

from .fast_values import FastCommand, bypassing_pydantic
from .help_text import help_of

# Settings of subcommands that pass all options, --help included, to another program.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@dataclass(frozen=True)
class LazyCommand:
    """A subcommand: the function `function` of the module `module`, or a Typer object with the name `function`, which
    has subcommands itself. `context_settings` are settings of click for the subcommand.
    """

    module: str
    function: str
    context_settings: Mapping[str, Any] = field(default_factory=dict)

    def command(self, name: str) -> Any:
        """Import the module, and return the subcommand as a click command with this name."""
        found = getattr(import_module(self.module), self.function)
        if isinstance(found, typer.Typer):
            found.info.name = name
            return typer.main.get_command(found)
        alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
        settings = dict(self.context_settings)
        alone.command(name, cls=FastCommand, help=help_of(found), context_settings=settings)(found)
        return typer.main.get_command(alone)


class _LoadedCommands(Mapping[str, Any]):
    """The subcommands of a group by name, in the order of `table`. A subcommand is imported when it is first read from
    this mapping.
    """

    def __init__(self, table: Mapping[str, LazyCommand]) -> None:
        self._table = table
        self._command = cache(lambda name: table[name].command(name))

    def __getitem__(self, name: str) -> Any:
        return self._command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def lazy_group(table: Mapping[str, LazyCommand], description: str) -> typer.Typer:
    """Return a command that only has subcommands: those in `table`, by name. `description` is its help text."""
    group = typer.Typer(
        cls=group_of(table), help=description, no_args_is_help=True, add_completion=False, rich_markup_mode="rich"
    )
    # typer adds no subcommands here, and without subcommands it makes a group only if there is a callback
    group.callback()(lambda: None)
    return group


def group_of(table: Mapping[str, LazyCommand]) -> type[typer.core.TyperGroup]:
    """Return a class of click groups that have the subcommands in `table`, for the argument `cls` of a Typer."""

    class Group(typer.core.TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes | {"commands": _LoadedCommands(table)})

        def get_params(self, ctx: Any) -> list[Any]:
            return bypassing_pydantic(super().get_params(ctx))

    return Group
