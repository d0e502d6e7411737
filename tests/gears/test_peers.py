"""Requests between workers over a bus that loses messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.gears.shard.peers import Peers


class Bus:
    """Two workers, "a" and "b"; the first `lost` messages never arrive."""

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.sent = 0
        self.ends = {name: Peers(_End(self, name)) for name in "ab"}  # type: ignore[arg-type]

    def hand_over(self, sender: str, to: str, payload: bytes) -> None:
        self.sent += 1
        if self.sent > self.lost:
            asyncio.get_running_loop().call_soon(self.ends[to].receive, sender, payload)


class _End:
    """The part of a worker's host that `Peers` needs."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.name = name

    def execute(self, command: str, node: str, payload: bytes) -> None:
        assert command == "QA.SEND"
        self.bus.hand_over(self.name, node, payload)


async def ask(bus: Bus, seconds: float, resend_seconds: float) -> Any:
    bus.ends["b"].on("double", lambda _sender, body: 2 * body)
    return await bus.ends["a"].ask("b", "double", 21, seconds, resend_seconds)


async def test_a_lost_request_is_sent_again_until_it_is_answered() -> None:
    bus = Bus(lost=3)
    assert await ask(bus, 60.0, 0.2) == 42
    assert bus.sent == 5


async def test_an_answered_request_is_not_sent_again() -> None:
    bus = Bus()
    assert await ask(bus, 60.0, 30.0) == 42
    assert bus.sent == 2


async def test_the_wait_for_a_silent_worker_ends_at_its_timeout() -> None:
    bus = Bus(lost=1000)
    with pytest.raises(GearsError, match="shard b did not answer within 1 s"):
        await ask(bus, 1.0, 0.05)
    assert 2 <= bus.sent <= 21
