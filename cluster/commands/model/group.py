"""The subcommands of `qa-cluster model`."""

from __future__ import annotations

import typer

from ...terminal.help_text import help_of
from .bench import bench
from .card import card
from .evaluate import evaluate
from .export import export
from .list import list_readers
from .load import load
from .train import train
from .unload import unload
from .use import use

# The programs of `qa_cluster.models` know their own options, --help among them.
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

model = typer.Typer(
    help="Train and export a reader, load it onto the shards, and choose which of the loaded ones answers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
for program in (export, train, evaluate):
    model.command(help=help_of(program), context_settings=_PASSED_ON)(program)
for command in (card, load, use, unload, bench):
    model.command(help=help_of(command))(command)
model.command("list", help=help_of(list_readers))(list_readers)
