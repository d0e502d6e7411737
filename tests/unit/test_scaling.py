"""`qa-cluster scale`: which of the new servers become replicas, and of which primaries."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from qa_cluster.cluster.nodes.node import Node
from qa_cluster.cluster.provision.scaling import _make_replicas


@pytest.mark.parametrize(
    ("shards", "new", "replicated"),
    [(1, 3, ["old", "old", "old"]), (2, 3, ["", "new0", "new0"]), (3, 4, ["", "", "new0", "new1"])],
    ids=["no primary is lacking", "one is lacking", "two are lacking"],
)
def test_new_servers_are_spread_over_primaries(shards: int, new: int, replicated: list[str]) -> None:
    def server(name: str, slots: tuple[tuple[int, int], ...]) -> tuple[Node, Any]:
        return Node(name, "127.0.0.1", 7000, frozenset(), "", True, slots), Mock()

    found = [server("old", ((0, 16383),)), *(server(f"new{number}", ()) for number in range(new))]
    _make_replicas(found, shards)
    calls = [client.execute_command.call_args for _, client in found[1:]]
    assert [call.args[-1] if call else "" for call in calls] == replicated
    assert not found[0][1].execute_command.called
