"""`make reader`: from the checkout and PyPI packages to a reader, in steps that are skipped when they are done.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by Ctrl-C or SIGTERM; the same command goes on.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from qa_cluster.errors import QAError

from ..training.base import require_train_extra
from ..training.progress import ConsoleWatcher
from ..training.stopping import stop_signals
from ..training.train import Interrupted
from .ablations import run_ablations
from .plan import Plan
from .steps import Recipe

HERE = Path(__file__).parent
RECIPES = {False: HERE / "reader.toml", True: HERE / "small.toml"}
CHECKOUT = HERE.parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe and return the exit code."""
    chosen = _parser().parse_args(arguments)
    folder = chosen.folder or Path("build") / ("reader-small" if chosen.small else "reader")
    with stop_signals() as stop, ConsoleWatcher(Console(stderr=True)) as watcher:
        try:
            require_train_extra()
            plan = Plan.load(chosen.recipe or RECIPES[chosen.small])
            recipe = Recipe(
                plan,
                folder,
                watcher,
                checkout=CHECKOUT,
                shared=chosen.data,
                wheels=chosen.wheels,
                stopping=lambda: bool(stop.received),
            )
            if chosen.ablations:
                print(run_ablations(recipe))
            else:
                print(json.dumps(recipe.run(), indent=2, ensure_ascii=False))
                watcher.say(f"the reader is in {folder / 'reader'}")
        except Interrupted as stopped:
            watcher.say(f"{stopped}. To go on: the same command")
            return 128 + stop.received
        except KeyboardInterrupt:
            return 130
        except (QAError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make reader ARGS=..",
        description="Make a reader: fetch encoders, mine passages, train a teacher, have it teach a student, export. "
        "Steps that are done are skipped; a stopped one goes on.",
    )
    parser.add_argument("--small", action="store_true", help="tiny random networks: shows in a minute that all works")
    parser.add_argument("--recipe", type=Path, help=f"settings (default: {RECIPES[False].name} beside this program)")
    parser.add_argument("--folder", type=Path, help="where everything is kept (default: build/reader)")
    parser.add_argument(
        "--data",
        type=Path,
        default=CHECKOUT.parent / "shared" / "data",
        help="folder of other data, used where it is there (default: ../shared/data beside the checkout)",
    )
    parser.add_argument("--wheels", type=Path, help="folder with wheels that are there already")
    parser.add_argument(
        "--ablations",
        action="store_true",
        help="no reader: train the student with all parts and without each, and tabulate",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
