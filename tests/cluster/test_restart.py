"""Documents, functions and reader survive every `down` and `up`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster.clients.cluster_client import ClusterClient
from tests.harness.system import PATIENT, WORDS_ONLY, System

pytestmark = pytest.mark.one_server("test_local_cluster starts both again and again")


@pytest.fixture
def own(server_binary: Path) -> Iterator[System]:
    """A separate cluster, because the test stops it."""
    with System(server_binary, shards=2, **WORDS_ONLY) as made:
        yield made


def test_cluster_answers_after_every_restart(own: System) -> None:
    patient = replace(PATIENT, cluster_url=own.url)
    with ClusterClient(patient) as client:
        client.put_document("ada", "Ada Lovelace wrote the first program in 1843.")
    for _ in range(2):
        own.cli("down")
        # the workers start while `up` registers the functions, and both must succeed
        assert "password" not in own.cli("up").stdout  # a cluster without a password stays without one
        with ClusterClient(patient) as client:
            for asked in ("Who wrote the first program?", "When was the first program written?"):
                assert "1843" in client.ask(asked).answers[0].context
