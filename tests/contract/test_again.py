"""What runs failed tests again forgives chance, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.again import MOST, again, failed

SUITE = """
import pathlib

import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_that_fails(number):
    runs = pathlib.Path(f"runs-{{number}}")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) not in {red}
"""


def whole_run(folder: Path, tests: int, red: set[int]) -> None:
    """Runs a suite whose tests fail in these runs, counted from 1."""
    (folder / "test_suite.py").write_text(SUITE.format(tests=tests, red=red))
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2"]
    subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("tests", "red", "status"),
    [
        (1, {1}, 0),
        (MOST, {1}, 0),
        (MOST + 1, {1}, 1),
        (1, {1, 2}, 1),
        (1, {1, 3}, 1),
        (1, {1, 2, 3}, 1),
    ],
    ids=["by chance", "two by chance", "many", "passes at last only", "passes now and then", "always"],
)
def test_what_is_forgiven(tmp_path: Path, tests: int, red: set[int], status: int) -> None:
    whole_run(tmp_path, tests, red)
    assert len(failed(tmp_path)) == tests
    assert again(tmp_path, ["-q"]) == status


def test_a_run_that_failed_without_a_failed_test_is_not_forgiven(tmp_path: Path) -> None:
    whole_run(tmp_path, 1, set())
    assert again(tmp_path) == 1
