"""Runs the tests that failed last a second and a third time, alone, so that chance does not decide about a change.

    python -m tests.harness.again [PYTEST OPTION..]

The suite has 7,000 tests against real servers on two shared cores, and a busy machine makes a few of them fail without
a fault of the product. The exit status is 0 only if at most `MOST` tests failed, and each of them passes twice in a row
now. A fault fails again, and a change that breaks many tests exceeds `MOST`. The last lines name each flaky test, so
that its cause can be found. `make test-rounds` does not use this program.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.harness.programs import ROOT

MOST = 5
TIMES = 2


def failed(folder: Path) -> list[str]:
    """The tests that pytest noted as failed when it last ran in this folder."""
    noted = folder / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return sorted(json.loads(noted.read_text())) if noted.exists() else []


def again(folder: Path, options: Sequence[str] = ()) -> int:
    """Runs the failed tests again; the exit status."""
    names = failed(folder)
    if not names:
        print("no test is noted as failed: something else was wrong")
        return 1
    print("failed in the whole run:", *names, sep="\n  ", flush=True)
    if len(names) > MOST:
        print(f"more than {MOST} tests failed: this is not chance")
        return 1
    for _ in range(TIMES):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *names]
        if status := subprocess.run(command, check=False, cwd=folder).returncode:
            return status
    rule = "!" * 100
    print(rule, *(f"FLAKY: {name}" for name in names), rule, sep="\n")
    print(f"FLAKY: {len(names)} tests failed in the whole run and passed {TIMES} times alone: find out why")
    return 0


if __name__ == "__main__":
    sys.exit(again(ROOT, sys.argv[1:]))
