"""`python -m qa_cluster.models train`: its options, and its orderly end at Ctrl-C or SIGTERM."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from qa_cluster.errors import InvalidInput

from ..checkpoints.record import RECORD_FILE
from .progress import ConsoleWatcher
from .settings import DEVICES, NORMALISATIONS, PRECISIONS, Stage, TrainingSettings
from .state import STATE_FILE
from .stopping import stop_signals
from .train import Interrupted, Lessons, train

_DESCRIPTION = """\
Fine-tune a Hugging Face question-answering checkpoint, or a bare encoder, on labelled questions, in plain PyTorch.
Needs the extra: pip install 'qa-cluster[train]' -c constraints.txt"""
_EPILOG = f"""\
FILE is SQuAD-format .json, or .jsonl(.gz) with question, context, answer, answer_start (code points; -1: the context
does not hold the answer) and, if you like, source, title and section; answer and answer_start null: no label, a teacher
has to say. `qa-cluster model mine` writes files of groups. Several --data are stages: trained one after the other.

examples:
  qa-cluster model train deepset/tinyroberta-squad2 my-checkpoint --data ours.json:2:3e-5
  qa-cluster model train encoder my-checkpoint --data stage1.jsonl.gz:1.5:1.5e-4 --data stage2.jsonl.gz:1.5:1.2e-4
  qa-cluster model train encoder my-checkpoint --data ours.json:2:5e-5:0.4 --hold-out 1000
  qa-cluster model train encoder student --data groups.jsonl.gz --teacher big --teacher-outputs big.npz
  qa-cluster model export my-checkpoint my-reader --held-out my-checkpoint/heldout.jsonl.gz

Ctrl-C saves and ends; the same command with --resume goes on. The folder then holds the checkpoint and {RECORD_FILE}.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by Ctrl-C or SIGTERM, the state being saved."""


def add_train(commands: Any) -> None:
    """Add the command to the subparsers of `qa-cluster model`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="fine-tune a checkpoint or an encoder on labelled questions",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = {name: field.default for name, field in TrainingSettings.__dataclass_fields__.items()}
    parser.add_argument("base", help="folder of a checkpoint or encoder, or its hub id (owner/name)")
    parser.add_argument("out", type=Path, help="new folder to write the checkpoint to")
    parser.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="FILE[:EPOCHS[:RATE[:JOIN]]]",
        help="what to train on, how often (default 2, fractions allowed), at which peak learning rate (default 1e-4), "
        "and which share of the contexts to set among others of the file (default 0); may be repeated",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run that was stopped in this folder")

    def option(name: str, kind: Any, text: str) -> None:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=defaults[name], help=text.replace("%d", str(defaults[name])))

    option("seed", int, "fixes the new head, the order of the data and dropout (default %d)")
    option("hold_out", int, "examples of the last file to keep out, measured at the end (default %d)")
    option("batch_size", int, "windows a step (default %d)")
    option("batch_tokens", int, "fewer windows where they would take more tokens, padded (default %d)")
    option("max_tokens", int, "longest window, question included; longer contexts are cut (default %d)")
    option("doc_stride", int, "tokens that windows of one context share (default %d)")
    option("max_question_tokens", int, "longer questions are cut (default %d)")
    option("warmup", float, "share of a stage's steps in which the learning rate rises (default %d)")
    option("weight_decay", float, "of AdamW, biases and norms apart (default %d)")
    option("max_gradient_norm", float, "longer gradients are cut to it (default %d)")
    option("attention_dropout", float, "0 saves a fifth of the time on a CPU (default: as in the base's config)")
    option("null_weight", float, "of the own null of windows without an answer, in groups (default %d)")
    option("title_share", float, "share of the questions whose contexts get title and section (default %d)")
    option("teacher_weight", float, "the teacher's part in the loss, labels have the rest (default %d)")
    option("temperature", float, "softens teacher's and student's distributions (default %d)")
    option("save_minutes", float, "minutes between two saved states (default %d)")
    option("threads", int, "threads of PyTorch on a CPU (default %d)")
    parser.add_argument(
        "--normalisation",
        choices=NORMALISATIONS,
        default="auto",
        help="of the loss: each window alone, or all windows of a group together (auto: groups together, others alone)",
    )
    parser.add_argument("--teacher", default="", metavar="FOLDER", help="trained checkpoint to learn from as well")
    parser.add_argument(
        "--teacher-outputs", type=Path, metavar="FILE", help="keeps what the teacher says, for later runs too (.npz)"
    )
    parser.add_argument("--device", choices=DEVICES, default="auto", help="auto: a GPU if there is one")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help="auto: bfloat16 where it is fast")


def run_train(chosen: argparse.Namespace) -> int:
    """Train with the parsed options, print the record as JSON, and return the exit code."""
    names = TrainingSettings.__dataclass_fields__.keys() - {"stages"}
    settings = TrainingSettings(
        stages=tuple(Stage.parse(text) for text in chosen.data), **{name: getattr(chosen, name) for name in names}
    )
    lessons = _lessons(chosen)
    with stop_signals() as stop, ConsoleWatcher(Console(stderr=True)) as watcher:
        try:
            record = train(
                chosen.base,
                chosen.out,
                settings,
                watcher,
                resume=chosen.resume,
                lessons=lessons,
                stopping=lambda: bool(stop.received),
            )
        except Interrupted as stopped:
            watcher.say(f"{stopped}; {_how_to_go_on(chosen)}")
            return 128 + stop.received
    print(json.dumps(record, indent=2, ensure_ascii=False))
    sys.stdout.flush()
    return 0


def _lessons(chosen: argparse.Namespace) -> Lessons | None:
    if chosen.teacher and chosen.teacher_outputs is None:
        raise InvalidInput("--teacher needs --teacher-outputs: the file that keeps what it says")
    return None if chosen.teacher_outputs is None else Lessons(chosen.teacher_outputs, chosen.teacher)


def _how_to_go_on(chosen: argparse.Namespace) -> str:
    if (chosen.out / STATE_FILE).is_file():
        return f"saved in {chosen.out}. To go on: the same command with --resume"
    return "what the teacher has read is saved. To go on: the same command"
