"""Prints the adapters that CI tests: `ALWAYS`, one recently changed adapter, and more of these if the time allows.

    python3 -m tests.adapters.chosen

A change is recent if its commit is at most a day older than the checked-out commit, because a submission has many
commits. Commits without their parent, as in a shallow clone, are ignored, because they would contain all files.
The program reports the changed adapters that take too long on standard error, with the command that tests them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = "langchain"  # its environment is small, and needs no npm
# The approximate seconds to install an adapter's environment and to run its tests, on 2 cores.
SECONDS = {"langchain": 60, "llama_index": 60, "openai": 90, "haystack": 90, "kserve": 120}
OTHER_SECONDS = 300
MOST_SECONDS = 90
# Folders that several adapters share.
SHARED = {"service": ("langchain", "llama_index", "haystack")}


def adapter_of(path: str) -> str:
    """The adapter or the shared folder of a file; empty for other files."""
    parts = path.split("/")
    if len(parts) > 2 and parts[0] == "integrations":
        return parts[1]
    return parts[2] if len(parts) > 3 and parts[:2] == ["tests", "adapters"] else ""


def chosen(changed: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the adapters to test, and the changed adapters whose tests take too long."""
    found = {adapter_of(path) for path in changed}
    tested = {path.parent.name for path in ROOT.glob("tests/adapters/*/requirements.txt")}
    wanted = {name for one in found for name in SHARED.get(one, (one,))} & tested
    taken, left_out, seconds = [ALWAYS], list[str](), 0
    for name in sorted(wanted - {ALWAYS}, key=lambda name: (SECONDS.get(name, OTHER_SECONDS), name)):
        seconds += SECONDS.get(name, OTHER_SECONDS)
        (taken if taken == [ALWAYS] or seconds <= MOST_SECONDS else left_out).append(name)
    return taken, left_out


def changed_files() -> list[str]:
    """The files that recent commits changed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    since = datetime.fromisoformat(git("log", "-1", "--format=%cI").strip()) - timedelta(days=1)
    names = git("log", f"--since={since.isoformat()}", "--min-parents=1", "--name-only", "--format=")
    return [line for line in names.splitlines() if line]


def main() -> None:
    """Print the names in one line."""
    try:
        files = changed_files()
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"the changed files are unknown, because git failed: {error}", file=sys.stderr)
        files = []
    taken, left_out = chosen(files)
    print(*taken)
    if left_out:
        names = " ".join(left_out)
        print(
            f'changed, but not tested here, because the tests take too long: make test-adapters ONLY="{names}"',
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
