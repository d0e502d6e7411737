"""Some seconds of the soak. Most resources are for the long run to judge; everything else is as there."""

from __future__ import annotations

import pytest

from tests.servers import chosen_servers, find_binary
from tests.soak.soak import Plan, soak

PLAN = Plan(seconds=8, rests=1, calm_seconds=0, calm_rests=0)


def test_slice() -> None:
    binary = find_binary(chosen_servers()[0])
    if binary is None:
        pytest.skip(f"no {chosen_servers()[0]} server on this machine")
    run = soak(binary, PLAN, 5, 0.6)
    assert not run.problems
    for kind in ("question", "read back", "model", "trigger", "run", "register"):
        assert run.load.verdicts.right(kind) > 0, kind
    assert sum(run.faults.counts.values()) >= 5
