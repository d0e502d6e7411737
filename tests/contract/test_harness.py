"""The harness of the tests: the selection, the processes and the order of tests, the summary of skips, and waits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.adapters.chosen import chosen
from tests.harness import selection
from tests.harness.again import MOST, again
from tests.harness.distribution import LONGEST_FIRST, MIXED, TOGETHER, scope_of
from tests.harness.polling import eventually
from tests.harness.ports import PROCESSES
from tests.harness.programs import ROOT
from tests.harness.selection import Run, is_wholly_long, server_of
from tests.harness.servers import Server
from tests.harness.skipped import summary


@pytest.mark.parametrize(
    ("test", "server", "scope"),
    [
        ("tests/unit/test_keys.py::test_a[one-two]", "", "tests/unit/test_keys.py"),
        ("tests/module/test_dag.py::test_a[redis-some [text]]", "redis", "tests/module/test_dag.py redis"),
        ("tests/cluster/test_tls.py::test_a[valkey-4]", "valkey", "tests/cluster/test_tls.py valkey"),
        ("tests/gears/test_convergence.py::test_a[aof-redis]", "redis", "tests/gears/test_convergence.py redis"),
        ("tests/system/test_losses.py::test_a[redis]", "redis", "system redis"),
        ("tests/system/test_overload.py::test_a[redis]", "redis", "system redis"),
    ],
)
def test_scopes(test: str, server: str, scope: str) -> None:
    assert (server_of(test), scope_of(test)) == (server, scope)


@pytest.mark.parametrize(
    ("test", "runs"),
    [
        ("tests/unit/test_keys.py::test_a[one]", "quick all servers"),
        ("tests/module/test_dag.py::test_a[valkey]", "quick all servers"),
        ("tests/module/test_dag.py::test_a[redis]", "servers"),
        ("tests/module/test_bus.py::test_a[redis]", "all servers"),
        ("tests/module/test_rights.py::test_a[redis]", "quick all servers"),
        ("tests/functions/test_ingest.py::test_a[valkey]", "quick all servers"),
        ("tests/functions/test_ingest.py::test_a[redis]", ""),
        ("tests/system/test_failover.py::test_a[valkey]", "all servers"),
        ("tests/docs/test_blocks.py::test_blocks_run[README.md]", "quick all servers"),
        ("tests/docs/test_blocks.py::test_blocks_run[operations.md]", "all servers"),
        ("tests/model/test_evaluate.py::test_a", "model"),
    ],
)
def test_selection(test: str, runs: str) -> None:
    kinds = {
        "quick": Run(["redis"], quick=True),
        "all": Run(["redis"]),
        "servers": Run(["redis"], everywhere=True),
        "model": Run(["redis"], has_torch=True),
    }
    expected = {*runs.split(), *(["model"] if "all" in runs.split() else [])}
    assert {name for name, run in kinds.items() if not run.leaves_out(test)} == expected


def test_a_marked_test_runs_on_the_first_server_only() -> None:
    for run in (Run(["redis"]), Run(["redis"], everywhere=True)):
        tests = (f"tests/module/test_rights.py::test_a[{name}]" for name in ("valkey", "redis"))
        assert [run.leaves_out(test, one_server=True) for test in tests] == [False, True]


def test_a_file_is_not_imported_only_if_none_of_its_tests_run() -> None:
    assert is_wholly_long("tests/system/test_failover.py")
    assert not is_wholly_long("tests/docs/test_blocks.py")


def test_files_and_folders_of_the_tables_exist() -> None:
    tables = (*selection.LONG, *selection.SAME_ON_ALL, *selection.ON_ALL, *TOGETHER)
    names = [name.partition("::")[0] for name in tables]
    names += [f"tests/{folder}" for folder in LONGEST_FIRST + MIXED]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_names_of_long_tests_exist() -> None:
    for name in selection.LONG:
        file, _, test = name.partition("::")
        assert not test or test.partition("[")[0] in (ROOT / file).read_text(), name


def test_each_process_of_make_test_has_separate_ports() -> None:
    jobs = re.search(r"^JOBS +\?= (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert jobs is not None and int(jobs[1]) <= PROCESSES


def test_ci_tests_one_adapter_and_all_changed_adapters() -> None:
    assert chosen(["README.md", "integrations/__init__.py", "tests/adapters/conftest.py"]) == (["langchain"], [])
    assert chosen(["integrations/kafka/session.py"]) == (["langchain", "kafka"], [])
    changed = ["integrations/service/client.py", "tests/adapters/kserve/questions.py"]
    assert chosen(changed) == (["langchain", "llama_index"], ["haystack", "kserve"])


def test_skips_are_summed_up_in_one_line() -> None:
    reasons = ["Skipped: no redis server on this machine"] * 3 + ["Skipped: redis-cli is not installed", "Skipped: odd"]
    assert summary(reasons) == (
        "skipped: 3 tests on redis-server (Debian package redis-server),"
        " 1 test on redis-cli (Debian package redis-tools), 1 test on odd"
    )
    assert summary([]) == ""


def test_a_wait_fails_at_once_when_a_server_has_ended(server_binary: Path) -> None:
    with Server(server_binary) as server:
        begun = time.monotonic()
        with server.client() as client:
            client.shutdown(nosave=True)
        with pytest.raises(AssertionError, match=f"the server on port {server.port} ended with 0"):
            eventually(lambda: False, 600)
        server.may_end()
        assert eventually(lambda: time.monotonic() > begun)


SUITE = """
import pathlib

import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_that_fails(number):
    runs = pathlib.Path(f"runs-{{number}}")
    runs.write_text(runs.read_text() + "x")
    assert len(runs.read_text()) not in {red}
"""


@pytest.mark.parametrize(
    ("tests", "red", "status"),
    [(MOST, set(), 0), (MOST + 1, set(), 1), (1, {3}, 1), (0, set(), 1)],
    ids=["few by chance", "many", "now and then", "none is noted"],
)
def test_which_failed_tests_are_forgiven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tests: int, red: set[int], status: int
) -> None:
    """All tests of a suite have failed in run 1. `red` has the numbers of later runs in which they fail."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "test_suite.py").write_text(SUITE.format(tests=tests, red=red))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for number in range(tests):
        (tmp_path / f"runs-{number}").write_text("x")
    noted = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    noted.parent.mkdir(parents=True)
    noted.write_text(json.dumps({f"test_suite.py::test_that_fails[{number}]": True for number in range(tests)}))
    assert again(tmp_path, ["-q"]) == status
    runs = [len(path.read_text()) for path in tmp_path.glob("runs-*")]
    assert runs == [1 if tests > MOST else min(red, default=3)] * tests


CRASHING = """
import os

import pytest

from tests.harness.scheduler import ByFileAndServer


def pytest_xdist_make_scheduler(config, log):
    return ByFileAndServer(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if item.name == "test_that_crashes":
        os.kill(os.getpid(), 9)
"""


def test_a_run_ends_after_one_of_its_processes_crashed(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CRASHING)
    for number in range(8):
        names = ["before", "that_crashes", "after"] if number == 3 else ["alone"]
        (tmp_path / f"test_{number}.py").write_text("".join(f"def test_{name}(): pass\n" for name in names))
    options = ["-p", "xdist", "-p", "no:cacheprovider", "--numprocesses", "2", "--dist", "loadfile"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "crashed while running 'test_3.py::test_that_crashes'" in ended.stdout
    assert "1 failed, 9 passed" in ended.stdout
