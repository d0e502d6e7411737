"""Some seconds of the soak. Unlike the long run, it does not judge most resources."""

from __future__ import annotations

import pytest

from tests.harness.programs import chosen_servers, find_binary
from tests.harness.system import SMALL_BATCHES
from tests.soak.soak import Plan, soak

# These kinds must get a right answer, on a busy machine perhaps only after the faults.
KINDS = ("question", "read back", "model", "trigger", "slow trigger", "slow stream", "run", "register")
PLAN = Plan(seconds=8, rests=1, calm_seconds=5, calm_rests=1, faults=5, right=KINDS)
# On a busy machine the slice takes much longer. Each wait has its own limit and a helpful error, so this limit is
# longer than all waits.
LIMIT_SECONDS = 900


@pytest.mark.timeout(LIMIT_SECONDS)
def test_slice() -> None:
    binary = find_binary(chosen_servers()[0])
    if binary is None:
        pytest.skip(f"no {chosen_servers()[0]} server on this machine")
    run = soak(binary, PLAN, 5, 0.6, **SMALL_BATCHES)
    assert not run.problems
    for kind in KINDS:
        assert run.load.verdicts.right(kind) > 0, kind
    assert run.faults.counts.total() >= PLAN.faults
