"""`down` and `up`: documents, functions and reader are there again, every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_cluster.cluster_client import ClusterClient
from tests.servers import MODULE, chosen_servers, find_binary

from .conftest import System


@pytest.fixture(params=chosen_servers())
def own(request: pytest.FixtureRequest, tmp_path: Path, clean_settings: dict[str, str]) -> System:
    """A cluster of the test's own, since it is stopped."""
    binary = find_binary(request.param)
    if binary is None or not MODULE.exists():
        pytest.skip(f"no {request.param} server on this machine")
    return System(tmp_path, clean_settings | {"QA_DATA_DIR": str(tmp_path / "data"), "QA_SERVER": str(binary)})


def test_cluster_answers_after_every_restart(own: System) -> None:
    own.cli("up")
    try:
        with ClusterClient(own.url) as client:
            client.put_document("ada", "Ada Lovelace wrote the first program in 1843.")
        for _ in range(3):
            own.cli("down")
            # workers start with their servers, and `up` registers the functions anew: neither may lose to the other
            own.cli("up")
            for asked in ("Who wrote the first program?", "When was the first program written?"):
                assert "1843" in own.cli("ask", asked).stdout
    finally:
        own.cli("down")
