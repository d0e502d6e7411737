"""A worker's process for tests: `python -S tests/harness/fake_worker BEHAVIOUR OPTION..`.

BEHAVIOUR is a module of this folder, or any module by its full name, with a class `Behaviour`. These modules need only
the standard library, so that a worker starts at once.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[3])


def main(name: str, *options: str) -> None:
    """Runs the worker until its server ends."""
    module = importlib.import_module(name if "." in name else f"tests.harness.fake_worker.{name}")
    try:
        module.Behaviour(options).serve()
    except (EOFError, OSError):
        print("server is gone", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
