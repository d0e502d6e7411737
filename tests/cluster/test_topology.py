"""Parsing CLUSTER NODES, and spreading slots."""

from __future__ import annotations

import pytest

from qa_cluster.cluster.nodes.formation import slot_ranges
from qa_cluster.cluster.nodes.node import parse_nodes, primaries
from qa_cluster.errors import ClusterError
from qa_cluster.keys import SLOTS, slot

NODES = """\
aaa 127.0.0.1:7001@17001,host.example master - 0 1 2 connected 5461-10922 [5462->-bbb]
bbb 127.0.0.1:7000@17000 myself,master - 0 1 1 connected 0-5000 5002 5004-5460
ccc 127.0.0.1:7002@17002 slave aaa 0 1 2 disconnected
ddd :0@0 master,noaddr - 0 1 3 disconnected
eee fd00::1:7003@17003 master - 0 1 4 connected 10923-16383
"""


def test_nodes_are_read() -> None:
    nodes = {node.id: node for node in parse_nodes(NODES, "10.0.0.9")}
    assert nodes["aaa"].slots == ((5461, 10922),)
    assert nodes["bbb"].slots == ((0, 5000), (5002, 5002), (5004, 5460))
    assert nodes["bbb"].slot_count == 5001 + 1 + 457
    assert nodes["ccc"].primary_id == "aaa"
    assert nodes["ccc"].failed
    assert nodes["ddd"].host == "10.0.0.9"
    assert nodes["eee"].host == "fd00::1"
    assert [node.id for node in primaries(list(nodes.values()))] == ["bbb", "aaa", "eee"]


def test_the_tag_of_a_shard_is_that_of_its_lowest_slot() -> None:
    first = primaries(parse_nodes(NODES))[0]
    assert first.tag == "06S"
    assert slot(f"anything{{{primaries(parse_nodes(NODES))[1].tag}}}") == 5461


def test_garbage_is_refused() -> None:
    with pytest.raises(ClusterError, match="'what is this'"):
        parse_nodes("what is this")


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 100])
def test_ranges_cover_every_slot_once(shards: int) -> None:
    ranges = slot_ranges(shards)
    assert [number for first, last in ranges for number in range(first, last + 1)] == list(range(SLOTS))
    sizes = [last - first + 1 for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1
