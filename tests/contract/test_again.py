"""A run of failed tests forgives chance, and no other failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.again import MOST, again

SUITE = """
import pathlib

import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_that_fails(number):
    runs = pathlib.Path(f"runs-{{number}}")
    runs.write_text(runs.read_text() + "x")
    assert len(runs.read_text()) not in {red}
"""


def after_a_whole_run(folder: Path, tests: int, red: set[int]) -> None:
    """A suite whose tests have all failed once; `red` has the further runs in which they fail, counted from 2."""
    (folder / "test_suite.py").write_text(SUITE.format(tests=tests, red=red))
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number in range(tests):
        (folder / f"runs-{number}").write_text("x")
    noted = folder / ".pytest_cache" / "v" / "cache" / "lastfailed"
    noted.parent.mkdir(parents=True)
    noted.write_text(json.dumps({f"test_suite.py::test_that_fails[{number}]": True for number in range(tests)}))


@pytest.mark.parametrize(
    ("tests", "red", "status"),
    [(MOST, set(), 0), (MOST + 1, set(), 1), (1, {2}, 1), (1, {3}, 1)],
    ids=["few by chance", "many", "passes at last only", "passes now and then"],
)
def test_what_is_forgiven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: int, red: set[int], status: int
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    after_a_whole_run(tmp_path, tests, red)
    assert again(tmp_path, ["-q"]) == status
    runs = [len(path.read_text()) for path in tmp_path.glob("runs-*")]
    assert runs == [1 if tests > MOST else min(red, default=3)] * tests


def test_a_run_that_failed_without_a_failed_test_is_not_forgiven(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert again(tmp_path) == 1
    assert "no test is noted as failed" in capfd.readouterr().out
