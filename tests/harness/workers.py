"""The commands that servers use to start their worker: the real worker, or the scriptable worker of `fake_worker/`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness.programs import ROOT

FAKE_WORKER = Path(__file__).with_name("fake_worker")

FEW_TOKENS = 64
"""`qa.max-batch-tokens` of most tests: with it, the bundled reader is warm after a few small runs instead of 47."""

COMPILED = ROOT / "build" / "compiled-models"
"""`qa.model-cache-dir` of all workers that the tests start, so that a machine compiles the bundled reader once."""
COMPILED.parent.mkdir(exist_ok=True)

WORKER = f'"{sys.executable}" -m qa_cluster.gears.worker'
"""The real worker, as a user's server starts it."""


def fake_worker(behaviour: str, *options: object) -> str:
    """The command of the scriptable worker with a behaviour: a module of `fake_worker/`, or one by its full name."""
    # without site: the worker needs only the standard library, and starts in a fraction of the time
    return " ".join([f'"{sys.executable}" -S "{FAKE_WORKER}"', behaviour, *map(str, options)])
