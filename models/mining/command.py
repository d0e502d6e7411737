"""The command `mine`: its options and its output."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .mine import MiningSettings, Progress, mine

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
Data are those of `qa-cluster model train`; so is what is written: its lines are groups, which training normalises
together. Ctrl-C keeps what is done; the same command goes on.

examples:
  qa-cluster model mine groups.jsonl.gz --data ours.jsonl.gz --corpus handbook/ --negatives 6
  qa-cluster model mine groups.jsonl.gz --data ours.jsonl.gz --unlabelled pairs.jsonl.gz --unlabelled-pairs 2
"""


def add_mine(commands: "Commands") -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "mine",
        help="find passages that rank high for questions and do not answer them, for training",
        description="For each labelled question, find the passages that rank high as shards rank and that do not hold "
        "the answer, and write them with those that do as groups.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = MiningSettings()

    def option(flag: str, name: str, text: str) -> None:
        default = getattr(defaults, name)
        parser.add_argument(flag, dest=name, type=int, default=default, help=f"{text} (default {default})")

    parser.add_argument("out", type=Path, help="new file of groups, .jsonl.gz")
    parser.add_argument(
        "--data", type=Path, action="append", required=True, metavar="FILE", help="labelled questions; may be repeated"
    )
    parser.add_argument(
        "--passages",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="further training data, whose contexts rank too; may be repeated",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="further documents to rank, a file or folder as `qa-cluster ingest` takes it; may be repeated",
    )
    option("--negatives", "negatives", "most passages of a group that do not hold the answer")
    option("--positives", "positives", "most passages of a group that hold it")
    option("--depth", "depth", "sentences ranked for a question")
    option("--context-tokens", "budget", "tokens of a sentence with its neighbours, as the reader will get it")
    option("--min-words", "min_words", "questions of fewer words get no mined passages")
    option("--seed", "seed", "draws half of the negatives from the lower ranks")
    parser.add_argument(
        "--unlabelled",
        dest="pairs_file",
        type=Path,
        metavar="FILE",
        help="new file for pairs that only a teacher can label, .jsonl.gz",
    )
    option("--unlabelled-pairs", "unlabelled", "most such pairs of a question: they hold the answer's words")


def run_mine(chosen: argparse.Namespace, progress: Progress) -> str:
    """Mine, and return what was made as JSON."""
    names = MiningSettings.__dataclass_fields__
    settings = MiningSettings(**{name: getattr(chosen, name) for name in names})
    made = mine(
        chosen.data,
        chosen.out,
        settings,
        passages=chosen.passages,
        corpus=chosen.corpus,
        unlabelled=chosen.pairs_file,
        progress=progress,
    )
    return json.dumps(made, indent=2)
