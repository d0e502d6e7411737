"""The program behind `qa-cluster model export|evaluate|reference|mine|train`: `python -m qa_cluster.models`.

`qa-cluster` runs the program in a separate process. Results go to standard output as JSON, progress and errors to
standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, and 128 plus the number of the signal that stopped the
command (130: Ctrl-C).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from qa_cluster.errors import QAError
from qa_cluster.reading.runtimes import RUNTIMES

from .bundle import default_reader
from .evaluation.evaluate import Progress, evaluate
from .evaluation.reference import run_reference
from .exporting.command import add_export, run_export
from .mining.command import add_mine, run_mine
from .training.command import add_train, run_train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` (None: the command line of this process) name, and return its exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.command == "train":
            return run_train(chosen)
        with _bars() as progress:
            result = _COMMANDS[chosen.command](chosen, progress)
        # The result is printed after the progress bars have ended: while they run, rich sends standard output to
        # standard error.
        print(result)
    except (QAError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _evaluate(chosen: argparse.Namespace, progress: Progress) -> str:
    report = evaluate(
        chosen.model or default_reader(),
        chosen.dataset,
        runtime=chosen.runtime,
        window_tokens=chosen.window_tokens,
        doc_stride=chosen.doc_stride,
        threads=chosen.threads,
        limit=chosen.limit,
        seed=chosen.seed,
        progress=progress,
    )
    return json.dumps(report.to_dict(answers=chosen.answers), indent=2, ensure_ascii=False)


def _reference(chosen: argparse.Namespace, progress: Progress) -> str:
    found = run_reference(
        chosen.checkpoint,
        chosen.dataset,
        k=chosen.k,
        rank_weight=chosen.rank_weight,
        limit=chosen.limit,
        threads=chosen.threads,
        progress=progress,
    )
    return json.dumps(asdict(found), ensure_ascii=False)


_COMMANDS = {"export": run_export, "evaluate": _evaluate, "reference": _reference, "mine": run_mine}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="qa-cluster model", description="Train, export and measure readers.")
    commands = parser.add_subparsers(dest="command", required=True)
    to_export = add_export(commands)
    to_evaluate = commands.add_parser(
        "evaluate",
        help="measure exact match and F1 of an exported reader",
        description="Measure exact match and F1 of an exported reader on a question set. The reader gets the context "
        "of each question.",
    )
    to_evaluate.add_argument("model", nargs="?", type=Path, help="folder of the reader (default: the bundled reader)")
    to_evaluate.add_argument("dataset", type=Path, help="question set: .json in SQuAD format, or .jsonl(.gz)")
    to_evaluate.add_argument(
        "--runtime", choices=RUNTIMES, default=RUNTIMES[0], help=f"runtime that runs the reader (default {RUNTIMES[0]})"
    )
    to_evaluate.add_argument("--window-tokens", type=int, help="longest window in tokens (default: from the manifest)")
    to_evaluate.add_argument(
        "--doc-stride", type=int, help="tokens that neighbouring windows share (default: from the manifest)"
    )
    to_evaluate.add_argument("--limit", type=int, help="number of questions, spread over the file (default: all)")
    to_evaluate.add_argument("--seed", type=int, default=0, help="seed of the confidence intervals (default 0)")
    to_evaluate.add_argument("--answers", action="store_true", help="print the answer to every question, too")
    to_reference = _add_reference(commands)
    add_mine(commands)
    add_train(commands)
    for command in (to_export, to_evaluate, to_reference):
        command.add_argument("--threads", type=int, default=2, help="number of threads of the runtime (default 2)")
    return parser


def _add_reference(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "reference",
        help="answer questions with BM25 and plain PyTorch, as a baseline for `qa-cluster eval --checkpoint`",
        description="Rank the sentences of a question set with bm25s, and read the best sentences with PyTorch in"
        " float32. Needs the extra: pip install 'qa-cluster[bench]' -c constraints.txt",
    )
    parser.add_argument("checkpoint", type=Path, help="folder of a Hugging Face checkpoint")
    parser.add_argument("dataset", type=Path, help="question set: .json in SQuAD format, or .jsonl(.gz)")
    parser.add_argument("--k", type=int, default=8, help="number of sentences that are read for a question (default 8)")
    parser.add_argument(
        "--rank-weight",
        type=float,
        default=0.3,
        help="weight of the BM25 score that is added to the reader's score (default 0.3)",
    )
    parser.add_argument("--limit", type=int, help="number of questions, spread over the file (default: all)")
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
