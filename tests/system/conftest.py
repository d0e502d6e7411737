"""The whole system. For each server program, the tests of this folder share one system."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.programs import binary_or_skip, chosen_servers
from tests.harness.system import UNHURRIED, System

from .replicated import Replicated, replicated


@pytest.fixture(scope="session", params=chosen_servers())
def system(request: pytest.FixtureRequest) -> Iterator[System]:
    """Three shards with the bundled reader and functions."""
    with System(binary_or_skip(request.param), **UNHURRIED) as made:
        yield made


@pytest.fixture(scope="session", params=chosen_servers())
def replicas(request: pytest.FixtureRequest) -> Iterator[Replicated]:
    """Three primaries with three replicas; each test leaves all of them in order."""
    with replicated(binary_or_skip(request.param)) as found:
        yield found


@pytest.fixture
def service(system: System) -> System:
    """The system with a REST service. The service starts with its first test and ends with the system."""
    if system.service is None:
        system.start_service()
    return system
