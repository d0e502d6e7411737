"""The subcommands of `qa-cluster model`."""

from __future__ import annotations

import typer

from ...terminal.late_commands import PASSED_ON, Late, group_of

_COMMANDS = {
    **{name: Late(f"{__package__}.{name}", name, PASSED_ON) for name in ("mine", "train", "export", "evaluate")},
    **{name: Late(f"{__package__}.{name}", name) for name in ("card", "load", "use", "unload", "bench")},
    "list": Late(f"{__package__}.list", "list_readers"),
}

model = typer.Typer(
    cls=group_of(_COMMANDS),
    help="Train and export a reader, load it onto the shards, and choose which of the loaded ones answers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@model.callback()
def _subcommands() -> None:
    """Does nothing: typer needs this callback to make a group, because the subcommands are added late."""
