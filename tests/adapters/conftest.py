"""Tests of the adapters in `integrations/`. `make test-adapters` runs each folder in a separate environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.system import System

# The environment of all other tests lacks the packages of the adapters.
collect_ignore_glob = [] if os.environ.get("QA_TEST_ADAPTER") else ["*"]

TEXT = (
    "Ada Lovelace wrote the first program in 1843. The program computed Bernoulli numbers. "
    "Charles Babbage designed the Analytical Engine. Nobody built the engine in his lifetime."
)


@pytest.fixture(scope="session")
def framework_service() -> Iterator[System]:
    """A cluster of two shards with a REST service, for the adapters of frameworks; `TEXT` is the document `ada`."""
    from qa_cluster.client import Client
    from tests.harness.programs import binary_or_skip, chosen_servers
    from tests.harness.system import UNHURRIED, System

    with System(binary_or_skip(chosen_servers()[0]), shards=2, QA_ENCODER="none", **UNHURRIED) as system:
        system.start_service()
        with Client(f"http://127.0.0.1:{system.port}", timeout=120) as client:
            client.put_document("ada", TEXT, title="Ada", metadata={"year": 1843, "tags": ["maths"]})
            client.put_document("moby", "Herman Melville wrote Moby-Dick. A whale sinks the ship.", title="Moby")
        yield system
