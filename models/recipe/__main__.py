"""`make reader`: makes a reader from the checkout and PyPI packages, and skips finished steps.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 or 143 stopped by Ctrl-C or SIGTERM. The same command resumes a stopped
run.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from qa_cluster.errors import QAError

from ..training.base import require_train_extra
from ..training.progress import ConsoleWatcher, Watcher
from ..training.stopping import Interrupted, stop_signals
from .ablations import run_ablations
from .plan import Plan
from .release import write_release
from .steps import Recipe

HERE = Path(__file__).parent
RECIPES = {False: HERE / "reader.toml", True: HERE / "small.toml"}
CHECKOUT = HERE.parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe that `arguments` (None: the command line of this process) choose, and return the exit code."""
    chosen = _parser().parse_args(arguments)
    return run(lambda watcher, stopping: _make(chosen, watcher, stopping))


def run(work: Callable[[Watcher, Callable[[], bool]], None]) -> int:
    """Do `work`, print its error if it fails, and return the exit code. `work` gets an object that shows its progress,
    and a function that returns whether a signal has asked it to stop.
    """
    with stop_signals() as stop, ConsoleWatcher(Console(stderr=True)) as watcher:
        try:
            work(watcher, lambda: bool(stop.received))
        except Interrupted as stopped:
            watcher.say(f"{stopped}. To resume, repeat the command")
            return 128 + stop.received
        except KeyboardInterrupt:
            return 130
        except (QAError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def _make(chosen: argparse.Namespace, watcher: Watcher, stopping: Callable[[], bool]) -> None:
    folder = chosen.folder or Path("build") / ("reader-small" if chosen.small else "reader")
    require_train_extra()
    plan = Plan.load(chosen.recipe or RECIPES[chosen.small])
    recipe = Recipe(
        plan, folder, watcher, checkout=CHECKOUT, shared=chosen.data, wheels=chosen.wheels, stopping=stopping
    )
    if chosen.ablations:
        print(run_ablations(recipe))
        return
    print(json.dumps(recipe.run(), indent=2, ensure_ascii=False))
    release, digest = write_release(folder / "reader", folder)
    watcher.say(f"the reader is in {folder / 'reader'}; the file to publish is {release}#sha256={digest}")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the option `--data`, the folder of additional data, to a parser."""
    parser.add_argument(
        "--data",
        type=Path,
        default=CHECKOUT.parent / "shared" / "data",
        help="folder with additional data; missing data is left out (default: ../shared/data from the checkout)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make reader ARGS=..",
        description="Make a reader: fetch encoders, mine passages, train a teacher, train a student with the teacher,"
        " export the student. Finished steps are skipped, and a stopped step is resumed.",
    )
    parser.add_argument("--small", action="store_true", help="use tiny random networks, to test all steps in a minute")
    parser.add_argument(
        "--recipe", type=Path, help=f"file with the settings (default: models/recipe/{RECIPES[False].name})"
    )
    parser.add_argument("--folder", type=Path, help="folder for all results (default: build/reader)")
    add_data(parser)
    parser.add_argument("--wheels", type=Path, help="folder with wheels that are already fetched")
    parser.add_argument(
        "--ablations",
        action="store_true",
        help="make no reader: train the student with all parts and without each part, and print a table",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
