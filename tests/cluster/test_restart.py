"""`down` and `up`: documents, functions and reader are there again, every time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qa_cluster.cluster_client import ClusterClient
from tests.system.conftest import System

pytestmark = pytest.mark.timeout(300)  # a start takes 10 s where others are at work


@pytest.fixture
def own(server_binary: Path, tmp_path: Path) -> System:
    """A cluster of the test's own, since it is stopped."""
    settings = {"QA_DATA_DIR": str(tmp_path / "data"), "QA_SERVER": str(server_binary)}
    return System(tmp_path, dict(os.environ) | settings)


def test_cluster_answers_after_every_restart(own: System) -> None:
    own.cli("up")
    try:
        with ClusterClient(own.url) as client:
            client.put_document("ada", "Ada Lovelace wrote the first program in 1843.")
        for _ in range(3):
            own.cli("down")
            # workers start with their servers, and `up` registers the functions anew: neither may lose to the other
            own.cli("up")
            with ClusterClient(own.url) as client:
                for asked in ("Who wrote the first program?", "When was the first program written?"):
                    assert "1843" in client.ask(asked).answers[0].context
    finally:
        own.cli("down")
