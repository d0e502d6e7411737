"""Ports for cluster nodes. The bus port, which is 10000 higher, must also be valid and free."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from qa_cluster.cluster.servers import ports
from qa_cluster.errors import ClusterError
from tests.harness.ports import FIRST, LAST


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as taken:
        taken.bind((ports.HOST, 0))
        taken.listen()
        yield taken


def test_found_ports_have_a_valid_bus_port_and_do_not_collide() -> None:
    found = ports.free_node_ports(20)
    everything = [*found, *(port + ports.BUS_OFFSET for port in found)]
    assert len(set(everything)) == 40
    assert max(everything) < 65536
    assert all(map(ports.is_free, everything))


def test_no_test_uses_a_port_that_up_may_choose() -> None:
    """Otherwise `up` could collide with a server of another test process."""
    chosen = ports.free_node_ports(300)
    for used in ({*chosen}, {port + ports.BUS_OFFSET for port in chosen}):
        for first, last in ((FIRST, LAST), (FIRST + ports.BUS_OFFSET, LAST + ports.BUS_OFFSET)):
            assert not [port for port in used if first <= port < last]


def test_a_port_in_use_is_not_free_and_the_next_one_is_found(listener: socket.socket) -> None:
    taken = listener.getsockname()[1]
    assert not ports.is_free(taken)
    assert ports.next_free(taken) > taken


def test_a_port_without_a_free_bus_port_is_not_free_for_a_node() -> None:
    port = ports.free_node_ports(1)[0]
    assert ports.is_free_for_node(port)
    with socket.socket() as bus:
        # servers set this option, too: closed connections of an earlier server may still use the port
        bus.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bus.bind((ports.HOST, port + ports.BUS_OFFSET))
        bus.listen()
        assert not ports.is_free_for_node(port)
    assert not any(map(ports.is_free_for_node, (0, -1, 55536, 65535)))


def test_avoided_ports_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ports.free_node_ports(1)[0]
    choices = iter([first, first + ports.BUS_OFFSET, first, *range(30_000, 30_100)])
    monkeypatch.setattr("random.randint", lambda low, high: next(choices))
    assert ports.free_node_ports(1, avoid=[first])[0] >= 30_000


def near(
    used: list[int], count: int, monkeypatch: pytest.MonkeyPatch, *, busy: frozenset[int] = frozenset()
) -> list[int]:
    """The ports for new nodes on a machine where only the `busy` ports are in use."""
    monkeypatch.setattr(ports, "is_free", lambda port, host=ports.HOST: port not in busy)
    return ports.node_ports_near(used, count)


def test_new_nodes_get_the_next_ports_without_collisions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert near([22000, 22001, 22002], 2, monkeypatch) == [22003, 22004]
    # 22002 is in use, and so is the bus port of 22003
    assert near([22000, 22001], 2, monkeypatch, busy=frozenset({22002, 32003})) == [22004, 22005]
    assert near([10_000, 19_999], 2, monkeypatch) == [20_001, 20_002], "no bus port of the cluster"
    assert near([55_533, 55_534], 3, monkeypatch) == [55_535, 55_532, 55_531], "no higher port has a bus port"


def test_too_few_free_ports_for_new_nodes_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port, host=ports.HOST: False)
    with pytest.raises(ClusterError, match=r"found only 0 of 2 free port pairs .* near 22000, up to port 55535"):
        ports.node_ports_near([22000], 2)
