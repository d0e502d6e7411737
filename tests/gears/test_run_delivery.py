"""Over an unreliable bus, the messages of a run are processed once and in order, and a run starts once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from qa_cluster.gears.scripts.runs import delivery, invitations, origin
from qa_cluster.gears.scripts.runs.delivery import UP_TO_ALL, Arrivals, Receipt, Recent, Sending
from qa_cluster.gears.scripts.runs.invitations import Invitations, RunRequest
from qa_cluster.gears.scripts.runs.origin import abandoned
from qa_cluster.gears.scripts.runs.part import Packet
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.gears.shard.messages import Message, decode
from qa_cluster.gears.shard.peers import Peers
from tests.harness.polling import eventually_async

RUN = "run-1"


def packet(stage: int, size: int = 10) -> Packet:
    return Packet(RUN, stage, bytes(size))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_messages_over_a_bad_bus_arrive_once_and_in_order() -> None:
    chance = random.Random(7)
    clock, arrivals, under_way, taken = Clock(), Arrivals(), [], []
    sending = Sending(lambda _node, _kind, body: under_way.append(body), clock)
    arrivals.begin(RUN)
    sent = 0
    while len(taken) < 500:
        if sent < 500:
            sending.send("b", "records", packet(sent))
            sent += 1
        clock.now += 0.2
        sending.resend(RUN)
        chance.shuffle(under_way)
        for message in under_way[: len(under_way) // 2]:
            if chance.random() < 0.6:
                for _ in range(chance.choice((1, 1, 2))):
                    arrivals.hold("a", message)
        under_way.clear()
        taken += [message.stage for message in arrivals.due(RUN, "a")]
        if chance.random() < 0.5:
            sending.confirmed("b", Receipt(RUN, arrivals.taken(RUN, "a")))
    assert taken == list(range(500))
    assert arrivals._bytes == 0, "duplicates are not kept"
    sending.confirmed("b", Receipt(RUN, arrivals.taken(RUN, "a")))
    assert not sending.resend(RUN)


def test_acknowledged_messages_are_not_resent() -> None:
    clock, sent = Clock(), []
    sending = Sending(lambda node, _kind, body: sent.append((node, body.number)), clock)
    for node in "bcb":
        sending.send(node, "records", packet(0))
    assert sent == [("b", 1), ("c", 1), ("b", 2)]
    sending.confirmed("b", Receipt(RUN, 1))
    sending.confirmed("d", Receipt(RUN, 9))
    sending.confirmed("b", Receipt("other", 9))
    assert sending.resend(RUN) and len(sent) == 3, "it is too early to resend the message"
    clock.now += 1
    assert sending.resend(RUN)
    assert sorted(sent[3:]) == [("b", 2), ("c", 1)]
    for node in "bc":
        sending.confirmed(node, Receipt(RUN, UP_TO_ALL))
    clock.now += 1
    assert not sending.resend(RUN) and len(sent) == 5


def test_messages_of_an_ended_run_are_dropped() -> None:
    sent: list[Any] = []
    sending = Sending(lambda *message: sent.append(message))
    sending.send("b", "records", packet(0))
    sending.forget(RUN)
    sending.send("b", "records", packet(1))
    assert len(sent) == 1 and not sending.resend(RUN)


def test_a_message_that_could_not_be_sent_is_sent_later() -> None:
    clock, sent, broken = Clock(), [], [True]

    def send(_node: str, _kind: str, body: Any) -> None:
        if broken:
            raise GearsError("ERR the servers of this cluster share no key")
        sent.append(body.number)

    sending = Sending(send, clock)
    sending.send("b", "records", packet(0))
    clock.now += 1
    assert sending.resend(RUN) and sent == []
    assert sending.problems(RUN) == ["shard b: ERR the servers of this cluster share no key"]
    broken.clear()
    clock.now += 1
    assert sending.resend(RUN) and sent == [1]
    assert sending.problems(RUN) == []


def test_waiting_messages_are_bounded_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_BYTES", 100)
    monkeypatch.setattr(delivery, "MAX_HELD_MESSAGES", 3)
    monkeypatch.setattr(delivery, "MAX_HELD_RUNS", 2)
    sending, arrivals = Sending(lambda *_: None), Arrivals()
    sending.send("b", "records", packet(0, 60))
    with pytest.raises(GearsError, match="run run-1 has more than 0 MiB of records that shard b has not confirmed"):
        sending.send("b", "records", packet(0, 60))
    arrivals.begin(RUN)
    for number in (2, 3, 4, 5, 1):
        arrivals.hold("a", Packet(RUN, 0, b"", number))
    assert [message.number for message in arrivals.due(RUN, "a")] == [1, 2, 3, 4], "the fifth exceeded the limit"
    for number in range(5, 9):
        arrivals.hold("a", Packet(RUN, 0, b"", number))
        arrivals.due(RUN, "a")
    assert arrivals.taken(RUN, "a") == 8
    for other in range(5):  # messages of runs that have not started: only those of the newest runs are held
        arrivals.hold("a", Packet(f"early-{other}", 0, b"", 1))
    assert [run for run in range(5) if arrivals.senders(f"early-{run}")] == [3, 4]
    assert arrivals.taken(RUN, "a") == 8
    arrivals.hold("a", Packet("early-4", 0, bytes(200), 3))
    arrivals.hold("a", Packet("early-4", 0, b"", 2))
    assert [message.number for message in arrivals.due("early-4", "a")] == [1, 2]


def test_messages_of_a_run_that_never_starts_are_dropped_after_some_seconds() -> None:
    clock = Clock()
    arrivals = Arrivals(clock)
    assert arrivals.expire() is None
    arrivals.hold("a", Packet("never", 0, bytes(100), 1))
    clock.now = 3.0
    arrivals.hold("a", Packet("late", 0, bytes(10), 1))
    arrivals.hold("a", Packet("never", 0, bytes(100), 2))  # a further message does not extend the time
    assert arrivals.expire() == pytest.approx(delivery.EARLY_SECONDS - 3)
    clock.now = delivery.EARLY_SECONDS
    assert arrivals.expire() == pytest.approx(3)
    assert not arrivals.senders("never") and arrivals._bytes == 10
    arrivals.begin("late")
    clock.now += 100
    assert arrivals.expire() is None
    assert [message.number for message in arrivals.due("late", "a")] == [1], "the run started in time"
    arrivals.hold("a", Packet("never", 0, b"", 1))  # the message arrives again, and the run starts after all
    arrivals.begin("never")
    assert [message.number for message in arrivals.due("never", "a")] == [1]


def test_only_the_newest_names_are_stored() -> None:
    names = Recent(2)
    for name in "abca":
        names.add(name)
    assert ["b" in names, "c" in names, "a" in names] == [False, True, True]


class Bus:
    """Workers by the names of their shards. `lost` chooses the lost messages, `late` the delays of the others."""

    def __init__(
        self, lost: Callable[[str, Any], bool] = lambda _kind, _body: False, late: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.lost = lost
        self.late = late
        self.begun: list[tuple[str, str]] = []
        self.led: set[str] = set()
        self.ends: dict[str, Peers] = {}

    def start(self, shard: str) -> Invitations:
        """Start a new worker of a shard, which replaces the previous worker."""
        peers = self.ends[shard] = Peers(_End(self, shard))  # type: ignore[arg-type]
        worker = Invitations(peers)
        peers.on("worker", lambda _sender, _body: worker.worker)
        peers.on("run", lambda _sender, request: self._join(worker, request))
        peers.on("leads", lambda _sender, run_id: run_id in self.led)
        return worker

    def _join(self, worker: Invitations, request: RunRequest) -> str:
        if worker.take(request):
            self.begun.append((request.id, worker.worker))
        return worker.worker


class _End:
    """The part of a worker's host that `Peers` needs."""

    def __init__(self, bus: Bus, shard: str) -> None:
        self.bus = bus
        self.shard = shard

    def execute(self, _command: str, node: str, payload: bytes) -> None:
        message = decode(payload)
        assert isinstance(message, Message)
        if not self.bus.lost(message.kind, message.body) and node in self.bus.ends:
            deliver = lambda: self.bus.ends[node].receive(self.shard, payload)  # noqa: E731
            asyncio.get_running_loop().call_later(self.bus.late(), deliver)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "FIRST_TRY_SECONDS", 0.05)
    monkeypatch.setattr(invitations, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(invitations, "RESEND_SOON_SECONDS", 0.05)
    monkeypatch.setattr(origin, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(origin, "SILENCE_SECONDS", 0.3)


async def test_a_run_is_started_once_despite_lost_messages() -> None:
    chance = random.Random(3)
    bus = Bus(lambda _kind, _body: chance.random() < 0.6)
    origin, other = bus.start("a"), bus.start("b")
    for number in range(10):
        await origin.send("b", RunRequest(f"run-{number}", None, b""))
    assert bus.begun == [(f"run-{number}", other.worker) for number in range(10)]


async def test_a_shard_without_a_worker_is_asked_until_it_has_one() -> None:
    bus = Bus()
    asking = asyncio.ensure_future(bus.start("a").send("b", RunRequest(RUN, None, b"")))
    await asyncio.sleep(0.3)
    assert not asking.done()
    other = bus.start("b")
    await asking
    assert bus.begun == [(RUN, other.worker)]


async def test_a_new_worker_takes_later_requests_for_its_shard() -> None:
    bus = Bus()
    origin, first = bus.start("a"), bus.start("b")
    await origin.send("b", RunRequest("run-1", None, b""))
    second = bus.start("b")
    await origin.send("b", RunRequest("run-2", None, b""))
    await origin.send("b", RunRequest("run-3", None, b""))
    assert bus.begun == [("run-1", first.worker), ("run-2", second.worker), ("run-3", second.worker)]


async def test_a_run_that_another_worker_may_have_started_is_not_started_again() -> None:
    bus = Bus()
    origin, first = bus.start("a"), bus.start("b")
    await origin.send("b", RunRequest("run-1", None, b""))
    bus.lost = lambda kind, _body: kind == "answer"
    asking = asyncio.ensure_future(origin.send("b", RunRequest("run-2", None, b"")))
    while ("run-2", first.worker) not in bus.begun:
        await asyncio.sleep(0.01)
    second = bus.start("b")
    bus.lost = lambda _kind, _body: False
    with pytest.raises(GearsError, match="TRYAGAIN the worker of shard b was replaced while run run-2 started"):
        await asking
    await origin.send("b", RunRequest("run-3", None, b""))
    assert bus.begun == [("run-1", first.worker), ("run-2", first.worker), ("run-3", second.worker)]


async def test_a_worker_ignores_a_request_to_another_worker() -> None:
    bus = Bus()
    first = bus.start("b")
    second = bus.start("b")
    assert not second.take(RunRequest(RUN, None, b"", first.worker))
    assert second.take(RunRequest(RUN, None, b"", second.worker))
    assert not second.take(RunRequest(RUN, None, b"", second.worker))


async def test_no_run_is_started_twice_despite_delays_losses_and_new_workers() -> None:
    """Messages overtake each other, and workers are replaced repeatedly. Each run starts at most once."""
    chance = random.Random(11)
    bus = Bus(lambda _kind, _body: chance.random() < 0.2, lambda: chance.random() * chance.choice((0.01, 0.15)))
    leader = bus.start("a")
    bus.start("b")

    async def replace_workers() -> None:
        while True:
            await asyncio.sleep(chance.random() * 0.2)
            bus.start("b")

    async def run(number: int) -> bool:
        await asyncio.sleep(chance.random() * 3)
        try:
            await leader.send("b", RunRequest(f"run-{number}", None, b""))
        except GearsError as error:
            assert str(error).startswith("TRYAGAIN the worker of shard b was replaced")
            return False
        return True

    replacing = asyncio.ensure_future(replace_workers())
    outcomes = await asyncio.gather(*map(run, range(400)))
    replacing.cancel()
    begun = [run_id for run_id, _ in bus.begun]
    assert len(begun) == len(set(begun))
    assert {f"run-{number}" for number, taken in enumerate(outcomes) if taken} <= set(begun)
    assert 0 < sum(outcomes) < 400, "both happened"


async def test_a_part_ends_when_its_origin_no_longer_leads_the_run() -> None:
    bus = Bus()
    bus.start("a")
    bus.start("b")
    bus.led.add(RUN)
    answers: list[bool] = []
    watching = asyncio.ensure_future(abandoned(bus.ends["b"], "a", RUN, 0.0, lambda: answers.append(True)))
    await asyncio.sleep(0.5)
    assert not watching.done()
    assert answers
    bus.led.clear()
    assert "shard a no longer leads this run" in await watching


async def test_a_part_waits_for_a_silent_origin_within_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()
    bus.start("b")  # shard "a" has no worker
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert "has not answered for 0.3 s" in await abandoned(bus.ends["b"], "a", RUN, 0.0)
    assert "has not answered for 0.8 s" in await abandoned(bus.ends["b"], "a", RUN, 0.8)
    assert loop.time() - begun >= 1.0
    bus.start("a")
    bus.led.add(RUN)
    chance, lost = random.Random(5), list[bool]()

    def lose(_kind: str, _body: object) -> bool:
        lost.append(chance.random() < 0.3)
        return lost[-1]

    bus.lost = lose
    monkeypatch.setattr(origin, "SILENCE_SECONDS", 1.0)
    watching = asyncio.ensure_future(abandoned(bus.ends["b"], "a", RUN, 0.0))
    await eventually_async(lambda: sum(lost) >= 5 or watching.done())
    assert not watching.done(), "some lost messages must not end the part"
    watching.cancel()


async def test_an_origin_that_does_not_know_the_question_does_not_count_as_lost() -> None:
    bus = Bus()
    bus.start("b")
    bus.ends["a"] = Peers(_End(bus, "a"))  # type: ignore[arg-type]
    led = asyncio.Event()
    watching = asyncio.ensure_future(abandoned(bus.ends["b"], "a", RUN, 0.0, led.set))
    await asyncio.sleep(0.8)
    assert not watching.done()
    assert not led.is_set(), "the part must decide without an answer"
    watching.cancel()
