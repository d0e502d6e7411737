"""The subcommands of `qa-cluster documents`."""

from __future__ import annotations

import typer

from ...terminal.help_text import help_of
from .count import count
from .delete import delete
from .list import list_documents
from .show import show

documents = typer.Typer(
    help="List, count, show and delete the stored documents.", no_args_is_help=True, rich_markup_mode="rich"
)
for command in (show, count, delete):
    documents.command(help=help_of(command))(command)
documents.command("list", help=help_of(list_documents))(list_documents)
