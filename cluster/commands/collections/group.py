"""The subcommands of `qa-cluster collections`."""

from __future__ import annotations

import typer

from ...terminal.late_commands import Late, group_of

_COMMANDS = {
    "list": Late(f"{__package__}.list", "list_collections"),
    **{name: Late(f"{__package__}.{name}", name) for name in ("create", "count", "delete")},
}

collections = typer.Typer(
    cls=group_of(_COMMANDS),
    help="List, create, count and delete collections of documents. Questions to one see nothing of the others.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@collections.callback()
def _subcommands() -> None:
    """Does nothing: typer needs this callback to make a group, because the subcommands are added late."""
