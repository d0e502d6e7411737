"""`qa-cluster model` and `qa-cluster bench`: readers, and the measurements."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError
from qa_cluster.manifest import MANIFEST_FILE, Manifest

from . import console
from .inspection import inspect_cluster
from .native import checkout_source
from .session import Session, cluster_url
from .setup import default_reader_folder, provision, read_reader

_MODELS_MODULE = "qa_cluster.models"
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

model = typer.Typer(
    help="Export a reader, load it onto the shards, see which one they hold.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(model, name="model")
    app.command("bench", context_settings=_PASSED_ON)(bench)


@model.command(context_settings=_PASSED_ON)
def export(context: typer.Context) -> None:
    """Turn a Hugging Face question-answering checkpoint into a reader that shards run.

    Needs the extra `export` (torch): pip install 'qa-cluster[export]'. Its options: qa-cluster model export --help

    Example: qa-cluster model export deepset/tinyroberta-squad2 my-reader
    """
    raise typer.Exit(
        subprocess.run([sys.executable, "-m", _MODELS_MODULE, "export", *context.args], check=False).returncode
    )


@model.command(context_settings=_PASSED_ON)
def evaluate(context: typer.Context) -> None:
    """Measure exact match and F1 of a reader on a SQuAD-format file.

    Example: qa-cluster model evaluate my-reader questions.json
    """
    arguments = [sys.executable, "-m", _MODELS_MODULE, "evaluate", *context.args]
    raise typer.Exit(subprocess.run(arguments, check=False).returncode)


@model.command()
def load(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a reader.", exists=True, file_okay=False, show_default="bundled")
    ] = None,
) -> None:
    """Store a reader on every shard, in place of the one that is there. Answers of the old one are not used any more.

    Example: qa-cluster model load my-reader
    """
    session: Session = context.obj
    settings = session.load().settings
    reader = read_reader(folder or default_reader_folder())
    provision(settings, cluster_url(settings), reader, console.step)
    console.say(f"loaded {reader.tag}")


@model.command("list")
def list_readers(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which reader each shard holds.

    Example: qa-cluster model list --json
    """
    session: Session = context.obj
    settings = session.load().settings
    report = inspect_cluster(settings, cluster_url(settings))
    rows = [
        {"shard": shard.address, "key": f"bert-qa{{{shard.tag}}}", "model": shard.model, "complete": shard.has_reader}
        for shard in report.shards
    ]
    if json:
        console.say_json(rows)
    else:
        console.table(rows)


@model.command()
def card(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of a reader.", exists=True, file_okay=False, show_default="bundled")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Show what a reader is: origin, licence, limits and what it scores.

    Example: qa-cluster model card
    """
    place = folder or default_reader_folder()
    manifest = Manifest.load(place / MANIFEST_FILE)
    if json:
        console.say_json({"revision": manifest.revision, **asdict(manifest)})
        return
    shown = ("model_id", "revision", "precision", "family", "max_tokens", "licence", "provenance", "created")
    console.table([{"": name, "value": getattr(manifest, name)} for name in shown], title=str(place))
    console.table(
        [
            {
                "question set": metric.dataset,
                "questions": metric.questions,
                "exact match": f"{metric.after.exact_match:.3f}",
                "F1": f"{metric.after.f1:.3f}",
                "F1 before export": f"{metric.before.f1:.3f}",
            }
            for metric in manifest.metrics
        ],
        right=("questions", "exact match", "F1", "F1 before export"),
    )


def _has_benchmarks(source: Path | None) -> bool:
    return source is not None and (source.parent / "tests" / "benchmarks" / "run.py").is_file()


def bench(context: typer.Context) -> None:
    """Run the measurements of the README. They live in the source checkout (tests/benchmarks), not in the package.

    Example: qa-cluster bench --help
    """
    source = checkout_source()
    if context.args in (["--help"], ["-h"]) and not _has_benchmarks(source):
        console.say(context.get_help())
        return
    if source is None or not _has_benchmarks(source):
        raise ConfigError("the benchmarks are part of the source checkout: clone it and run `make bench` there")
    arguments = [sys.executable, "-m", "tests.benchmarks.run", *context.args]
    raise typer.Exit(subprocess.run(arguments, cwd=source.parent, check=False).returncode)
