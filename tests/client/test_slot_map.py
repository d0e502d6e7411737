"""Addresses of servers, and the map from slots to servers."""

from __future__ import annotations

import pytest

from qa_cluster.errors import ClusterError, InvalidInput
from qa_cluster.topology import Address, parse_redirect, parse_slots

ASKED = Address("10.0.0.9", 7000)


def test_slots_are_found_and_the_error_names_gaps() -> None:
    reply = [[0, 99, [b"10.0.0.1", 7001, b"a" * 40]], [200, 16383, [b"", 7002, b"b" * 40, []], [b"10.0.0.3", 1, b"c"]]]
    topology = parse_slots(reply, ASKED)
    assert topology.shard_of(99).address == Address("10.0.0.1", 7001)
    assert topology.shard_of(16383).address == Address("10.0.0.9", 7002)
    assert not topology.whole
    with pytest.raises(ClusterError, match="slot 150 is served by no shard"):
        topology.shard_of(150)
    assert topology.ranges_of(topology.shards[1]) == [(200, 16383)]


def test_the_error_for_a_cluster_without_slots_has_advice() -> None:
    with pytest.raises(ClusterError, match="qa-cluster up"):
        parse_slots([], ASKED)


@pytest.mark.parametrize(
    ("text", "host", "port"), [("h:1", "h", 1), ("[::1]:7", "::1", 7), ("h", "h", 6379), ("[::1]", "::1", 6379)]
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert Address.parse(str(Address(host, port))) == Address(host, port)


@pytest.mark.parametrize("text", ["", ":1", "h:", "h:x", "h:0", "h:65536", "h:\u0661"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(InvalidInput):
        Address.parse(text)


def test_redirections() -> None:
    assert parse_redirect("MOVED 5 10.1.1.1:70", ASKED) == (5, Address("10.1.1.1", 70))
    assert parse_redirect("ASK 5 :70", ASKED) == (5, Address("10.0.0.9", 70))
