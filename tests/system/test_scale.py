"""`qa-cluster scale` adds a shard without loss of data, even after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qa_cluster.clients.cluster_client import ClusterClient
from tests.harness.polling import eventually
from tests.harness.programs import binary_or_skip, chosen_servers
from tests.harness.system import SMALL_BATCHES, System
from tests.harness.tiny_readers import tiny_reader

from .load import FACTS, Load

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("name", chosen_servers())
def test_a_local_cluster_grows(name: str, tmp_path: Path) -> None:
    with System(binary_or_skip(name), shards=2, **SMALL_BATCHES) as own:
        load = Load(own.url)
        load.store_facts()
        refused = own.cli("scale", "1", check=False)
        assert refused.returncode == 2
        assert "cannot reduce the cluster from 2 to 1 shards" in refused.stderr
        beside = tiny_reader(tmp_path / "last", "last", last=True).name
        own.cli("model", "load", str(tmp_path / "last"), "--beside")
        own.cli("scale", "3")

        def warm() -> bool:
            listed = json.loads(own.cli("model", "list", "--json").stdout)
            found = [(row["kind"], row["name"] == beside, row["default"], row["warm"]) for row in listed]
            expected = [("reader", False, True, 3), ("reader", True, False, 3), ("encoder", False, False, 3)]
            return sorted(found) == sorted(expected)

        eventually(warm)
        shown = own.status()
        assert shown["ready"], shown
        assert sorted(shard["slots"] for shard in shown["shards"]) == [5461, 5461, 5462]
        assert all(shard["documents"] for shard in shown["shards"])
        assert "0 slots moved" in own.cli("scale", "3").stdout
        own.cli("down")
        own.environment["QA_SHARDS"] = "3"
        own.cli("up")
        with ClusterClient(f"redis://{own.status()['shards'][0]['address']}") as client:
            for document, (_, question) in FACTS.items():
                best = client.ask(question, cache="off").best
                assert best is not None
                assert (best.document_id, best.answer) == (document, load.answers[document][0])
                assert client.ask(question, model="last").model.id == "last"
