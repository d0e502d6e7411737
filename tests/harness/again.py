"""Runs the failed tests of the last run twice more, alone, to tell faults from chance.

    python -m tests.harness.again [PYTEST OPTION..]

The suite runs 7,000 tests against real servers on two shared cores. On a busy machine, a few tests fail although the
product is right. The exit status is 0 if at most `MOST` tests failed and each of them now passes twice in a row. The
last lines name each flaky test. `make test-rounds` does not use this program.
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
    """The tests that failed in pytest's last run in this folder."""
    noted = folder / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return sorted(json.loads(noted.read_text())) if noted.exists() else []


def again(folder: Path, options: Sequence[str] = ()) -> int:
    """Runs the failed tests again; returns the exit status."""
    names = failed(folder)
    if not names:
        print("pytest recorded no failed test: the run failed for another reason")
        return 1
    print("failed in the whole run:", *names, sep="\n  ", flush=True)
    if len(names) > MOST:
        print(f"more than {MOST} tests failed: too many to be flaky")
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
