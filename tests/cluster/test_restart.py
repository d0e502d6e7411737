"""`down` and `up`: documents, functions and reader are there again, every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_cluster.cluster_client import ClusterClient
from tests.harness.system import System

pytestmark = pytest.mark.timeout(300)  # a start takes 10 s where others are at work


def test_cluster_answers_after_every_restart(server_binary: Path) -> None:
    with System(server_binary) as own:
        with ClusterClient(own.url) as client:
            client.put_document("ada", "Ada Lovelace wrote the first program in 1843.")
        for _ in range(3):
            own.cli("down")
            # workers start with their servers, and `up` registers the functions anew: neither may lose to the other
            own.cli("up")
            with ClusterClient(own.url) as client:
                for asked in ("Who wrote the first program?", "When was the first program written?"):
                    assert "1843" in client.ask(asked).answers[0].context
