"""`python -m qa_cluster.models export|evaluate`, which `qa-cluster model` runs in a process of its own.

Results go to standard output as JSON, progress and errors to standard error. Exit codes: 0 done, 1 failed, 2 wrong
usage.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from qa_cluster.errors import QAError
from qa_cluster.runtimes import RUNTIMES

from .bundle import default_reader
from .evaluate import Progress, evaluate
from .export import export


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        with _bars() as progress:
            print(_export(chosen, progress) if chosen.command == "export" else _evaluate(chosen, progress))
    except (QAError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _export(chosen: argparse.Namespace, progress: Progress) -> str:
    manifest = export(
        chosen.source,
        chosen.out,
        calibration=chosen.calibration,
        held_out=chosen.held_out,
        evaluation=chosen.evaluation,
        max_examples=chosen.max_examples,
        model_id=chosen.model_id,
        licence=chosen.licence,
        provenance=chosen.provenance,
        threads=chosen.threads,
        progress=progress,
    )
    return manifest.to_json().rstrip()


def _evaluate(chosen: argparse.Namespace, progress: Progress) -> str:
    report = evaluate(
        chosen.model or default_reader(),
        chosen.dataset,
        runtime=chosen.runtime,
        window_tokens=chosen.window_tokens,
        doc_stride=chosen.doc_stride,
        threads=chosen.threads,
        limit=chosen.limit,
        progress=progress,
    )
    return json.dumps(report.to_dict(), indent=2, ensure_ascii=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qa-cluster model", description="Export and measure readers.")
    commands = parser.add_subparsers(dest="command", required=True)
    to_export = commands.add_parser(
        "export",
        help="turn a Hugging Face question-answering checkpoint into a reader that shards run",
        description="Turn a Hugging Face question-answering checkpoint into a reader that shards run. "
        "Needs the extra: pip install 'qa-cluster[export]' -c constraints.txt",
        epilog="Question sets are SQuAD-format .json, or .jsonl(.gz) with question, context, answer, answer_start.",
    )
    to_export.add_argument("source", help="folder of the checkpoint, or its hub id (owner/name)")
    to_export.add_argument("out", type=Path, help="folder to write reader.onnx, tokenizer.json and manifest.json to")
    to_export.add_argument("--calibration", type=Path, help="question set that sets the int8 ranges; without: float32")
    to_export.add_argument("--held-out", type=Path, help="question set not trained on, to fit the thresholds")
    to_export.add_argument(
        "--evaluation", type=Path, action="append", default=[], help="question set to score on; may be repeated"
    )
    to_export.add_argument("--max-examples", type=int, default=300, help="calibration examples used (default 300)")
    to_export.add_argument("--model-id", help="name in the manifest (default: that of the folder or the hub id)")
    to_export.add_argument("--licence", help="licence in the manifest (default: that of the checkpoint's card)")
    to_export.add_argument("--provenance", help="what it was trained on, for the manifest")
    to_evaluate = commands.add_parser(
        "evaluate",
        help="measure exact match and F1 of an exported reader",
        description="Measure exact match and F1 of an exported reader on a question set, the context given.",
    )
    to_evaluate.add_argument("model", nargs="?", type=Path, help="folder of the reader (default: the bundled one)")
    to_evaluate.add_argument("dataset", type=Path, help="SQuAD-format .json, or .jsonl(.gz)")
    to_evaluate.add_argument("--runtime", choices=RUNTIMES, default=RUNTIMES[0])
    to_evaluate.add_argument("--window-tokens", type=int, help="longest input (default: the manifest's)")
    to_evaluate.add_argument("--doc-stride", type=int, help="overlap of windows (default: the manifest's)")
    to_evaluate.add_argument("--limit", type=int, help="only so many questions")
    for command in (to_export, to_evaluate):
        command.add_argument("--threads", type=int, default=2, help="threads of the runtime (default 2)")
    return parser


@contextmanager
def _bars() -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
                if not console.is_terminal:
                    console.print(stage)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


if __name__ == "__main__":
    sys.exit(main())
