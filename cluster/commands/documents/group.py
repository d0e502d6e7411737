"""The subcommands of `qa-cluster documents`."""

from __future__ import annotations

import typer

from ...terminal.late_commands import Late, group_of

_COMMANDS = {
    "list": Late(f"{__package__}.list", "list_documents"),
    **{name: Late(f"{__package__}.{name}", name) for name in ("show", "count", "delete")},
}

documents = typer.Typer(
    cls=group_of(_COMMANDS),
    help="List, count, show and delete the stored documents.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@documents.callback()
def _subcommands() -> None:
    """Does nothing: typer needs this callback to make a group, because the subcommands are added late."""
