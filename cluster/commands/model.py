"""`qa-cluster model` and `qa-cluster bench`: readers, and the measurements."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.errors import ConfigError
from qa_cluster.reading.manifest import MANIFEST_FILE, Manifest

from ..readers.reader_files import default_reader_folder
from ..servers.native import checkout_source
from . import console
from . import readers as cmd_readers

_MODELS_MODULE = "qa_cluster.models"
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

model = typer.Typer(
    help="Train and export a reader, load it onto the shards, choose which of those there answers.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    cmd_readers.add_to(model)
    app.add_typer(model, name="model")
    app.command("bench", context_settings=_PASSED_ON)(bench)


@model.command(context_settings=_PASSED_ON)
def export(context: typer.Context) -> None:
    """Turn a Hugging Face question-answering checkpoint into a reader that shards run.

    Needs the extra `export` (torch): pip install 'qa-cluster[export]'. Its options: qa-cluster model export --help

    SOURCE is a folder or a hub id, owner/name or owner/name@revision. A report says what the checkpoint and the file
    made of it score, side by side; a file that loses more than --tolerance points of F1 is refused.

    Example: qa-cluster model export deepset/tinyroberta-squad2 my-reader --evaluation questions.json
    """
    raise typer.Exit(_run_to_its_end([sys.executable, "-m", _MODELS_MODULE, "export", *context.args]))


@model.command(context_settings=_PASSED_ON)
def train(context: typer.Context) -> None:
    """Fine-tune a Hugging Face checkpoint, or a bare encoder, on SQuAD-format files; to be exported then.

    Needs the extra `train` (torch): pip install 'qa-cluster[train]'. Its options: qa-cluster model train --help

    Example: qa-cluster model train deepset/tinyroberta-squad2 my-checkpoint --data ours.json:2:3e-5
    """
    raise typer.Exit(_run_to_its_end([sys.executable, "-m", _MODELS_MODULE, "train", *context.args]))


def _run_to_its_end(arguments: list[str]) -> int:
    """Run a program that saves its work when it is stopped; subprocess.run would kill it a moment after Ctrl-C."""
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to the program too
    with subprocess.Popen(arguments) as program:
        signal.signal(signal.SIGTERM, lambda *_: program.terminate())
        return program.wait()


@model.command(context_settings=_PASSED_ON)
def evaluate(context: typer.Context) -> None:
    """Measure exact match and F1 of a reader on a SQuAD-format file.

    Example: qa-cluster model evaluate my-reader questions.json
    """
    arguments = [sys.executable, "-m", _MODELS_MODULE, "evaluate", *context.args]
    raise typer.Exit(subprocess.run(arguments, check=False).returncode)


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
