"""A short run of the sequences on a cluster with replicas."""

from __future__ import annotations

import pytest

from tests.fuzz.asan_sequences import run
from tests.harness.programs import find_binary

pytestmark = pytest.mark.hostile


def test_slice() -> None:
    if find_binary("redis") is None:
        pytest.skip("no redis server on this machine")
    done = run(3, 7, "redis", quiet=True)
    assert done["unblocked"]
    assert all(done[step] for step in ("wait", "kill", "unblock", "rename", "transaction", "script", "restore"))
