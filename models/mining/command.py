"""The command `mine`: its options and its output."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .mine import MiningSettings, Progress, mine

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
FILE has the format of the training files of `qa-cluster model train`. The output is a training file, too. Each line
is a group. Training normalises the loss over all passages of a group. Ctrl-C keeps the finished questions. To resume,
repeat the command.

examples:
  qa-cluster model mine groups.jsonl.gz --data questions.jsonl.gz --corpus handbook/ --negatives 6
  qa-cluster model mine groups.jsonl.gz --data questions.jsonl.gz --unlabelled pairs.jsonl.gz --unlabelled-pairs 2
"""


def add_mine(commands: "Commands") -> None:
    """Add the parser of the command `mine` to the subcommands of `qa-cluster model`."""
    parser = commands.add_parser(
        "mine",
        help="find passages that rank high for questions and do not answer them, for training",
        description="For each labelled question, find passages that rank high and do not contain the answer. Write "
        "them as a group with the passages that contain the answer. Passages are ranked as on the shards.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = MiningSettings()

    def option(flag: str, name: str, text: str) -> None:
        default = getattr(defaults, name)
        parser.add_argument(flag, dest=name, type=int, default=default, help=f"{text} (default {default})")

    parser.add_argument("out", type=Path, help="new file for the groups, .jsonl.gz")
    parser.add_argument(
        "--data", type=Path, action="append", required=True, metavar="FILE", help="labelled questions; may be repeated"
    )
    parser.add_argument(
        "--passages",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="more training files; their contexts are ranked, their questions are not asked; may be repeated",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="more documents to rank, a file or folder as for `qa-cluster ingest`; may be repeated",
    )
    option("--negatives", "negatives", "maximum number of passages in a group that do not contain the answer")
    option("--positives", "positives", "maximum number of passages in a group that contain the answer")
    option("--depth", "depth", "number of sentences that are ranked for a question")
    option("--context-tokens", "budget", "token budget of a sentence with its neighbours, as in the reader's manifest")
    option("--min-words", "min_words", "minimum number of words of a question; shorter questions get no mined passages")
    option("--seed", "seed", "seed that draws half of the negatives from the lower ranks")
    parser.add_argument(
        "--unlabelled",
        dest="pairs_file",
        type=Path,
        metavar="FILE",
        help="new file for pairs without a label, which a teacher can label, .jsonl.gz",
    )
    option(
        "--unlabelled-pairs",
        "unlabelled",
        "maximum number of these pairs for a question; their passages contain the words of the answer",
    )


def run_mine(chosen: argparse.Namespace, progress: Progress) -> str:
    """Run the command `mine`, and return its counts as JSON."""
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
