"""Parsing CLUSTER NODES, waiting until the servers know each other, and spreading slots."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.cluster.nodes.formation import incomplete, introduce, slot_ranges
from qa_cluster.cluster.nodes.node import parse_nodes, primaries
from qa_cluster.cluster.nodes.resharding import all_primaries
from qa_cluster.errors import ClusterError
from qa_cluster.keys import SLOTS, slot
from qa_cluster.topology import Address

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


def test_the_tag_of_a_shard_is_the_tag_of_its_lowest_slot() -> None:
    first = primaries(parse_nodes(NODES))[0]
    assert first.tag == "06S"
    assert slot(f"anything{{{primaries(parse_nodes(NODES))[1].tag}}}") == 5461


def test_invalid_replies_are_refused() -> None:
    with pytest.raises(ClusterError, match="'what is this'"):
        parse_nodes("what is this")


MET = """\
bbb 127.0.0.1:7000@17000 myself,master - 0 1 1 connected 0-16383
aaa 127.0.0.1:7001@17001 master - 0 1 2 connected
"""
# The link is up and the port is known, but the id is random until the handshake ends.
MEETING = MET.replace("aaa 127.0.0.1:7001@17001 master", "f00 127.0.0.1:7001@17001 handshake")


class Reporting:
    """A client with scripted replies to CLUSTER NODES. The last reply is repeated."""

    connection_pool = SimpleNamespace(connection_kwargs={"host": "127.0.0.1"})

    def __init__(self, *replies: str, node_id: str = "bbb") -> None:
        self.replies = list(replies)
        self.node_id = node_id

    def execute_command(self, *words: object) -> str:
        if words[:2] == ("CLUSTER", "INFO"):
            return f"cluster_state:ok\r\ncluster_slots_ok:{SLOTS}\r\n"
        if words[:2] == ("CLUSTER", "MEET"):
            return "OK"
        if words[:2] == ("CLUSTER", "MYID"):
            return self.node_id
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def info(self, section: str) -> dict[str, Any]:
        return {"role": "master"}


def test_servers_know_each_other_only_after_the_handshake() -> None:
    first, second = Reporting(MEETING, MEETING, MET), Reporting(MET, node_id="aaa")
    one, other = Address("127.0.0.1", 7000), Address("127.0.0.1", 7001)
    introduce({one: first, other: second}, time.monotonic() + 60)  # type: ignore[dict-item]
    assert first.replies == [MET]
    with pytest.raises(ClusterError, match=r"a server cannot reach 127\.0\.0\.1:7001"):
        introduce({one: Reporting(MEETING), other: second}, time.monotonic())  # type: ignore[dict-item]


def test_a_node_in_handshake_is_neither_a_known_node_nor_a_primary() -> None:
    assert incomplete(Reporting(MET), 2) == ""  # type: ignore[arg-type]
    assert incomplete(Reporting(MEETING), 2) == "1 of 2 nodes are known"  # type: ignore[arg-type]
    assert [node.id for node in all_primaries(Reporting(MET))] == ["bbb", "aaa"]  # type: ignore[arg-type]
    assert [node.id for node in all_primaries(Reporting(MEETING))] == ["bbb"]  # type: ignore[arg-type]


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 100])
def test_ranges_cover_every_slot_once(shards: int) -> None:
    ranges = slot_ranges(shards)
    assert [number for first, last in ranges for number in range(first, last + 1)] == list(range(SLOTS))
    sizes = [last - first + 1 for first, last in ranges]
    assert max(sizes) - min(sizes) <= 1
