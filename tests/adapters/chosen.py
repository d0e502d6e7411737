"""Prints the adapters that CI tests: `ALWAYS`, and those whose files changed recently: one, and more if there is time.

    python3 -m tests.adapters.chosen

A change is recent if its commit is at most a day older than the checked-out commit, because a submission has many
commits. Commits whose parent is missing, as in a shallow clone, are left out: they would name all files. The adapters
that do not fit are named on standard error, with the command that tests them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = "langchain"  # its environment is small, and needs no npm
# About the seconds that an adapter's tests take with their environment, on 2 cores.
SECONDS = {"langchain": 60, "llama_index": 60, "openai": 90, "haystack": 90, "kserve": 120}
OTHER_SECONDS = 300
MOST_SECONDS = 90
# What the adapters of frameworks share.
SHARED = {"service": ("langchain", "llama_index", "haystack")}


def adapter_of(path: str) -> str:
    """The adapter, or the folder that adapters share, to which a file belongs; empty if to none."""
    parts = path.split("/")
    if len(parts) > 2 and parts[0] == "integrations":
        return parts[1]
    return parts[2] if len(parts) > 3 and parts[:2] == ["tests", "adapters"] else ""


def chosen(changed: Iterable[str]) -> tuple[list[str], list[str]]:
    """The adapters to test, and those whose changes do not fit into the time, from the changed files."""
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
        print(f"git does not say what changed: {error}", file=sys.stderr)
        files = []
    taken, left_out = chosen(files)
    print(*taken)
    if left_out:
        names = " ".join(left_out)
        print(f'changed, but not tested here for lack of time: make test-adapters ONLY="{names}"', file=sys.stderr)


if __name__ == "__main__":
    main()
