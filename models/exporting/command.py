"""The command `export`: its options and its output."""

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from qa_cluster.manifest_fields import PRECISIONS
from qa_cluster.reading.runtimes import RUNTIMES

from ..evaluation.evaluate import Progress
from ..quantization.rounding import BITS
from .export import CONTEXT_TOKENS, SMALLEST_BITS, TOLERANCE, ExportOptions, export
from .report import ExportReport

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
A question set is a .json file in SQuAD format, or a .jsonl(.gz) file with the fields question, context, answer and
answer_start (-1: no answer).

examples:
  qa-cluster model export deepset/tinyroberta-squad2 my-reader
  qa-cluster model export ./checkpoint my-reader --calibration train.jsonl.gz --held-out dev.jsonl.gz \\
      --evaluation squad-dev.json
  qa-cluster model export ./checkpoint my-reader --calibration train.jsonl.gz --evaluation squad-dev.json \\
      --compare --limit 500
"""


def add_export(commands: "Commands") -> argparse.ArgumentParser:
    """Add the parser of the command `export` to the subcommands of `qa-cluster model`, and return the parser."""
    parser = commands.add_parser(
        "export",
        help="export a Hugging Face question-answering checkpoint as a reader",
        description="Export a Hugging Face question-answering checkpoint as a reader for shards, and report its scores "
        "before and after. Needs the extra: pip install 'qa-cluster[export]' -c constraints.txt",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="folder of the checkpoint, or its hub id: owner/name or owner/name@revision")
    parser.add_argument("out", type=Path, help="folder for the reader, its manifest and the report")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="precision of the reader (default: int8 with --calibration, otherwise float32)",
    )
    parser.add_argument(
        "--weight-bits",
        type=int,
        default=BITS,
        help=f"bits of a weight's code in int8 and int8-dynamic, {SMALLEST_BITS} to {BITS} (default {BITS}): with fewer"
        " bits the file has the same size, but compresses better",
    )
    parser.add_argument("--compare", action="store_true", help="measure all precisions, not only the chosen one")
    parser.add_argument("--calibration", type=Path, help="question set on which the ranges of int8 are measured")
    parser.add_argument("--held-out", type=Path, help="question set that was not trained on, to fit the thresholds")
    parser.add_argument(
        "--evaluation",
        type=Path,
        action="append",
        default=[],
        help="question set on which the reader is scored; may be repeated",
    )
    parser.add_argument(
        "--context-tokens",
        type=int,
        default=CONTEXT_TOKENS,
        help=f"token budget of a sentence with its neighbours; 0: the sentence alone (default {CONTEXT_TOKENS})",
    )
    parser.add_argument(
        "--limit", type=int, help="number of questions of each evaluation set, spread over it (default: all)"
    )
    parser.add_argument("--max-examples", type=int, default=300, help="number of calibration examples (default 300)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        help=f"points of F1 that the export may lose on any evaluation set (default {TOLERANCE})",
    )
    parser.add_argument(
        "--force", action="store_true", help="write the reader even if it loses more than the tolerance"
    )
    parser.add_argument(
        "--runtime",
        choices=RUNTIMES,
        action="append",
        help="runtime in which the reader is measured; may be repeated (default: all)",
    )
    parser.add_argument("--model-id", help="id in the manifest (default: the name of the folder or the hub id)")
    parser.add_argument("--licence", help="licence in the manifest (default: from the checkpoint's card)")
    parser.add_argument("--provenance", help="training data, for the manifest")
    return parser


def run_export(chosen: argparse.Namespace, progress: Progress) -> str:
    """Export the checkpoint that the options `chosen` name, show the report on standard error, and return the manifest
    as JSON.
    """

    def show(report: ExportReport) -> None:
        console = Console(stderr=True)
        # a fixed width keeps the columns of tables when the output is redirected
        report.show(console if console.is_terminal else Console(stderr=True, width=160))

    given = {name: getattr(chosen, name) for name in ExportOptions.__dataclass_fields__ if hasattr(chosen, name)}
    runtimes = tuple(dict.fromkeys(chosen.runtime or RUNTIMES))
    options = ExportOptions(**given, runtimes=runtimes, progress=progress, report=show)
    with _ended_by_signals():
        return export(chosen.source, chosen.out, options).to_json().rstrip()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the export with an exception, as Ctrl-C does. Otherwise the unfinished files of the
    export would stay.
    """

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    # A signal that is ignored stays ignored.
    found = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ending = [number for number, handler in found.items() if handler is signal.SIG_DFL]  # nohup ignores SIGHUP
    for number in ending:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
