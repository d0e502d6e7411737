"""A short run of the fuzzer on each server."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz_commands import fuzz
from tests.servers import chosen_servers, find_binary


@pytest.mark.parametrize("name", chosen_servers())
def test_slice(name: str) -> None:
    if find_binary(name) is None:
        pytest.skip(f"no {name} server on this machine")
    jobs = fuzz(1000, 7, name)
    assert jobs["qa_jobs_model.run"] > 0
    assert jobs["qa_jobs_trigger"] > 0
