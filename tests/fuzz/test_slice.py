"""A short run of the fuzzer on each server, and a few starts on damaged files."""

from __future__ import annotations

import pytest

from tests.fuzz.damage import Files
from tests.fuzz.fuzz_commands import binary_of, fuzz
from tests.harness.programs import chosen_servers, find_binary


@pytest.mark.parametrize("name", chosen_servers())
def test_slice(name: str) -> None:
    if find_binary(name) is None:
        pytest.skip(f"no {name} server on this machine")
    jobs = fuzz(2500, 7, name)
    assert jobs["jobs_model.run"] > 0
    assert jobs["jobs_trigger"] > 0
    assert jobs["client_gone"] > 0
    started = Files(binary_of(name), 7).run(8)
    assert started["loaded"] + started["refused"] == 8
