"""The command `train`: its options, and its shutdown at Ctrl-C or SIGTERM."""

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
from .stopping import Interrupted, stop_signals
from .train import Distillation, train

_DESCRIPTION = """\
Fine-tune a Hugging Face question-answering checkpoint, or a bare encoder, on labelled questions, in plain PyTorch.
Needs the extra: pip install 'qa-cluster[train]' -c constraints.txt"""
_EPILOG = f"""\
FILE is .json in SQuAD format, or .jsonl(.gz) with the fields question, context, answer and answer_start (in code
points; -1: the context has no answer). The fields source, title and section are optional. If answer and answer_start
are null, the label is unknown and only a teacher can give it. `qa-cluster model mine` writes files of groups. Each
--data is a stage. Stages are trained one after the other.

examples:
  qa-cluster model train deepset/tinyroberta-squad2 my-checkpoint --data questions.json:2:3e-5
  qa-cluster model train encoder my-checkpoint --data stage1.jsonl.gz:1.5:1.5e-4 --data stage2.jsonl.gz:1.5:1.2e-4
  qa-cluster model train encoder my-checkpoint --data questions.json:2:5e-5:0.4 --hold-out 1000
  qa-cluster model train encoder student --data groups.jsonl.gz --teacher big --teacher-outputs big.npz
  qa-cluster model export my-checkpoint my-reader --held-out my-checkpoint/heldout.jsonl.gz

Ctrl-C saves the state and stops the run. To resume it, repeat the command with --resume. At the end, the folder has the
checkpoint and {RECORD_FILE}.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by Ctrl-C or SIGTERM with the state saved."""


def add_train(commands: Any) -> None:
    """Add the parser of the command `train` to the subcommands of `qa-cluster model`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="fine-tune a checkpoint or an encoder on labelled questions",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = {name: field.default for name, field in TrainingSettings.__dataclass_fields__.items()}
    parser.add_argument("base", help="folder of a checkpoint, an encoder or a BERT reader, or a hub id (owner/name)")
    parser.add_argument("out", type=Path, help="new folder to write the checkpoint to")
    parser.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="FILE[:EPOCHS[:RATE[:JOIN]]]",
        help="training file, number of epochs (default 2, may be a fraction), peak learning rate (default 1e-4), and "
        "share of the contexts to join with other contexts of the file (default 0); may be repeated",
    )
    parser.add_argument("--resume", action="store_true", help="resume the run that was stopped in this folder")

    def option(name: str, kind: Any, text: str) -> None:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=defaults[name], help=text.replace("%d", str(defaults[name])))

    option("seed", int, "seed of the new head, the order of the data and dropout (default %d)")
    option(
        "hold_out", int, "number of examples of the last file to hold out, for the measurement at the end (default %d)"
    )
    option("batch_size", int, "windows in a step (default %d)")
    option("batch_tokens", int, "limit of padded tokens in a step, which may reduce its number of windows (default %d)")
    option("max_tokens", int, "longest window in tokens, with the question; longer contexts are divided (default %d)")
    option("doc_stride", int, "tokens that neighbouring windows of a context share (default %d)")
    option("max_question_tokens", int, "longest question in tokens; longer questions are cut (default %d)")
    option("warmup", float, "share of a stage's steps in which the learning rate rises (default %d)")
    option("weight_decay", float, "weight decay of AdamW, except for biases and norms (default %d)")
    option("max_gradient_norm", float, "maximum norm of the gradient (default %d)")
    option(
        "attention_dropout",
        float,
        "dropout of attention; 0 saves a fifth of the time on a CPU (default: from the config of the base)",
    )
    option("null_weight", float, "in groups: weight of the loss of each single window without an answer (default %d)")
    option("title_share", float, "share of the questions whose contexts get title and section as a prefix (default %d)")
    option(
        "teacher_weight",
        float,
        "weight of the teacher in the loss, from 0 to 1; the labels have the other part (default %d)",
    )
    option("temperature", float, "temperature that softens the distributions of teacher and student (default %d)")
    option("save_minutes", float, "minutes between two saves of the state (default %d)")
    option("threads", int, "number of threads of PyTorch on a CPU (default %d)")
    parser.add_argument(
        "--normalisation",
        choices=NORMALISATIONS,
        default="auto",
        help="normalisation of the loss; window: each window alone; shared: all windows of a group together; auto: "
        "shared for groups, otherwise window (default auto)",
    )
    parser.add_argument("--teacher", default="", metavar="FOLDER", help="folder of a trained checkpoint to learn from")
    parser.add_argument(
        "--teacher-outputs",
        type=Path,
        metavar="FILE",
        help="file that stores the teacher's outputs, also for later runs (.npz)",
    )
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="auto: a GPU if the machine has one (default auto)"
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="auto: bfloat16 if the device computes it fast (default auto)",
    )


def run_train(chosen: argparse.Namespace) -> int:
    """Train with the parsed options, print the record as JSON, and return the exit code."""
    names = TrainingSettings.__dataclass_fields__.keys() - {"stages"}
    settings = TrainingSettings(
        stages=tuple(Stage.parse(text) for text in chosen.data), **{name: getattr(chosen, name) for name in names}
    )
    distillation = _distillation(chosen)
    with stop_signals() as stop, ConsoleWatcher(Console(stderr=True)) as watcher:
        try:
            record = train(
                chosen.base,
                chosen.out,
                settings,
                watcher,
                resume=chosen.resume,
                distillation=distillation,
                stopping=lambda: bool(stop.received),
            )
        except Interrupted as stopped:
            watcher.say(f"{stopped}; {_how_to_resume(chosen)}")
            return 128 + stop.received
    print(json.dumps(record, indent=2, ensure_ascii=False))
    sys.stdout.flush()
    return 0


def _distillation(chosen: argparse.Namespace) -> Distillation | None:
    if chosen.teacher and chosen.teacher_outputs is None:
        raise InvalidInput("--teacher needs --teacher-outputs, the file that stores its outputs")
    return None if chosen.teacher_outputs is None else Distillation(chosen.teacher_outputs, chosen.teacher)


def _how_to_resume(chosen: argparse.Namespace) -> str:
    if (chosen.out / STATE_FILE).is_file():
        return f"the state is saved in {chosen.out}. To resume, repeat the command with --resume"
    return "the outputs of the teacher so far are saved. To resume, repeat the command"
