"""A short run of the fuzzer on each server, and a few starts on damaged files."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.damage import Files
from tests.fuzz.fuzz_commands import binary_of, fuzz
from tests.harness.programs import chosen_servers, find_binary

pytestmark = pytest.mark.hostile

WANTED = ("jobs_model.run", "jobs_trigger", "client_gone")


@pytest.mark.parametrize("name", chosen_servers())
def test_slice(name: str) -> None:
    if find_binary(name) is None:
        pytest.skip(f"no {name} server on this machine")
    jobs = Counter[str]()
    for seed in range(7, 11):  # other kinds of jobs occur by chance, depending on the load of the machine
        jobs.update(fuzz(2500, seed, name))
        if all(jobs[kind] for kind in WANTED):
            break
    assert {kind: jobs[kind] > 0 for kind in WANTED} == dict.fromkeys(WANTED, True)
    started = Files(binary_of(name), 7).run(8)
    assert started["loaded"] + started["refused"] == 8
