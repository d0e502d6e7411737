"""Shards that lose messages converge to the same registrations. Shards that agree send no messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from qa_cluster.gears.scripts.registrations import reconciliation
from qa_cluster.gears.scripts.registrations.reconciliation import Reconciliation
from qa_cluster.gears.scripts.registrations.registration_list import RegistrationEntry, RegistrationList
from qa_cluster.gears.scripts.registrations.stored_sessions import StoredSession
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.gears.shard.peers import Peers


class Bus:
    """Carries messages between shards, or loses them."""

    def __init__(self, names: str) -> None:
        self.lose: Callable[[str, str], bool] = lambda _sender, _to: False
        self.sent: list[tuple[str, str, int]] = []
        self.shards = {name: Shard(self, name) for name in names}

    def hand_over(self, sender: str, to: str, payload: bytes) -> None:
        self.sent.append((sender, to, len(payload)))
        if not self.lose(sender, to):
            asyncio.get_running_loop().call_soon(self.shards[to].peers.receive, sender, payload)

    async def compare_all(self, count: int = 1) -> None:
        """Let all shards compare at the same time."""
        for _ in range(count):
            await asyncio.gather(*(shard.reconciliation.compare_all() for shard in self.shards.values()))

    def agree(self) -> bool:
        return len({shard.registrations().digest for shard in self.shards.values()}) == 1


class Shard:
    """The registrations of a module, and the parts of a worker that compare registrations."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.info = SimpleNamespace(shard_id=name, cluster=True)
        self.entries: dict[str, RegistrationEntry] = {}
        self.tombstones: set[str] = set()
        self.replica = self.publishing = False
        self.broken: set[str] = set()
        self.adopted: list[str] = []
        self.renew()

    def renew(self) -> None:
        """Start a new worker."""
        host: Any = self
        self.peers = Peers(host)
        streams: Any = SimpleNamespace(rescan=lambda: None)
        registrar: Any = self
        self.installed = self
        topology = SimpleNamespace(
            shards=[SimpleNamespace(node_id=name) for name in "abc"], ranges_of=lambda _shard: []
        )
        self.peers.topology = lambda: topology  # type: ignore[method-assign,assignment,return-value]
        self.reconciliation = Reconciliation(host, self.peers, registrar, streams)

    def registrations(self) -> RegistrationList:
        return RegistrationList(tuple(self.entries.values()))

    # ---- calls of the host ----

    def execute(self, command: str, *words: Any) -> Any:
        assert command == "QA.SEND"
        self.bus.hand_over(self.info.shard_id, *words)

    def execute_own(self, command: str, *words: Any) -> Any:
        if command == "QA.UNREGISTERED":
            return [name.encode() for name in words if name in self.tombstones]
        assert command == "QA.REGISTRATIONS"
        if self.replica:
            return [0]
        rows = [(one.session.encode(), one.id.encode(), one.order) for one in self.entries.values()]
        return [1, *(field for row in rows for field in row)]

    # ---- calls of the registrar ----

    def stored(self, session_id: str) -> StoredSession | None:
        ids = [entry.id for entry in self.entries.values() if entry.session == session_id]
        return StoredSession(session_id, "", "", cloudpickle.dumps(ids)) if ids else None

    def adopt(self, stored: StoredSession, orders: dict[str, int]) -> None:
        if stored.id in self.broken:
            raise GearsError("ERR fails here")
        self.adopted.append(stored.id)
        for name in [entry.id for entry in self.entries.values() if entry.session == stored.id]:
            del self.entries[name]
        for name in cloudpickle.loads(stored.payload):
            if name not in self.tombstones:
                self.entries[name] = RegistrationEntry(stored.id, name, orders.get(name, 0))

    def unregister_permanently(self, ids: list[str]) -> None:
        for name in ids:
            self.tombstones.add(name)
            self.entries.pop(name, None)

    def order(self, orders: dict[str, int]) -> None:
        for name, order in orders.items():
            self.entries[name] = RegistrationEntry(self.entries[name].session, name, order)

    # ---- actions of clients ----

    def register(self, session: str, *ids: str) -> None:
        for name in ids:
            self.entries[name] = RegistrationEntry(session, name)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "COMPARE_SECONDS", 0.05)
    monkeypatch.setattr(reconciliation, "SESSION_SECONDS", 0.05)


@pytest.fixture
def bus() -> Bus:
    made = Bus("abc")
    for shard in made.shards.values():
        shard.register("s", "a-1", "a-2")
    return made


async def test_shards_that_agree_are_silent_until_one_changes(bus: Bus) -> None:
    await bus.compare_all(2)
    bus.sent.clear()
    await bus.compare_all(5)
    assert bus.sent == []
    bus.shards["b"].unregister_permanently(["a-1"])
    await bus.compare_all(3)
    assert bus.agree()
    bus.sent.clear()
    await bus.compare_all(5)
    assert bus.sent == []


async def test_a_digest_is_small_for_many_registrations(bus: Bus) -> None:
    for shard in bus.shards.values():
        shard.register("s", *[f"a-{number}" for number in range(1000)])
    await bus.compare_all(2)
    assert max(size for _, _, size in bus.sent) < 500


async def test_only_a_new_worker_asks(bus: Bus) -> None:
    await bus.compare_all(2)
    bus.sent.clear()
    bus.shards["c"].renew()
    await bus.compare_all()
    assert {sender for sender, _, _ in bus.sent if _ != "c"} == {"a", "b", "c"}
    assert len(bus.sent) == 4


async def test_unregistered_registrations_are_removed_and_missing_ones_installed(bus: Bus) -> None:
    bus.shards["a"].unregister_permanently(["a-1"])
    bus.shards["b"].register("t", "b-7")
    bus.shards["c"].entries.clear()
    await bus.compare_all(4)
    assert bus.agree()
    assert set(bus.shards["c"].entries) == {"a-2", "b-7"}


async def test_the_later_order_reaches_all_shards_and_is_sent_with_a_session(bus: Bus) -> None:
    bus.shards["a"].order({"a-1": 5})
    bus.shards["b"].order({"a-1": 4, "a-2": 7})
    bus.shards["c"].entries.clear()
    await bus.compare_all(4)
    assert bus.agree()
    assert {name: entry.order for name, entry in bus.shards["c"].entries.items()} == {"a-1": 5, "a-2": 7}


async def test_the_newer_of_two_versions_of_a_session_stays(bus: Bus) -> None:
    bus.shards["b"].entries.clear()
    bus.shards["b"].register("s", "b-9")
    await bus.compare_all(4)
    assert bus.agree()
    assert set(bus.shards["a"].entries) == {"b-9"}
    assert bus.shards["b"].adopted == []


async def test_nothing_is_compared_while_a_session_is_published(bus: Bus) -> None:
    bus.shards["a"].register("t", "a-9")
    bus.shards["a"].publishing = True
    await bus.compare_all(3)
    assert bus.shards["b"].adopted == []
    bus.shards["a"].publishing = False
    await bus.compare_all(3)
    assert bus.agree()
    assert "a-9" in bus.shards["b"].entries


async def test_a_worker_offers_nothing_during_its_start_or_a_publication(bus: Bus) -> None:
    shard = bus.shards["c"]
    assert shard.reconciliation.compare("a", b"another").publishing
    await bus.compare_all()
    assert shard.reconciliation.compare("a", b"another").registrations == shard.registrations()
    offer = shard.reconciliation.offer("a", "s")
    assert offer is not None
    assert (offer.stored.id, offer.registrations.ids) == ("s", {"a-1", "a-2"})
    shard.publishing = True
    assert shard.reconciliation.offer("a", "s") is None


async def test_a_replica_is_silent_until_it_is_promoted(bus: Bus) -> None:
    promoted = bus.shards["c"]
    promoted.replica = True
    promoted.entries.clear()
    await bus.compare_all(2)
    assert not [sent for sent in bus.sent if sent[0] == "c" and sent[2] > 300]
    assert promoted.adopted == []
    promoted.replica = False
    await bus.compare_all(3)
    assert bus.agree()


async def test_a_failing_session_is_retried_at_growing_intervals(bus: Bus) -> None:
    bus.shards["c"].entries.clear()
    bus.shards["c"].broken.add("s")
    await bus.compare_all(200)
    asked = len(bus.sent)
    assert 20 < asked < 400
    bus.shards["c"].broken.clear()
    bus.shards["a"].register("t", "a-9")  # after a change, the shard compares at once
    await bus.compare_all(4)
    assert bus.agree()


@pytest.mark.parametrize("seed", range(5))
async def test_connected_shards_converge_after_any_lost_messages(seed: int) -> None:
    chance = random.Random(seed)
    bus = Bus("abc")
    bus.lose = lambda _sender, _to: chance.random() < 0.4
    unregistered: set[str] = set()
    for step in range(30):
        shard = chance.choice(list(bus.shards.values()))
        known = sorted(shard.entries)
        if known and chance.random() < 0.4:
            gone = chance.choice(known)
            unregistered.add(gone)
            shard.unregister_permanently([gone])
        elif known and chance.random() < 0.5:
            paused = chance.choice(known)
            shard.order({paused: shard.entries[paused].order + chance.randint(1, 5)})
        else:
            shard.register(chance.choice("stuv"), f"{shard.info.shard_id}-{step}")
        await bus.compare_all(chance.randint(0, 1))
    bus.lose = lambda _sender, _to: False
    await bus.compare_all(40)
    assert bus.agree()
    for shard in bus.shards.values():
        assert not unregistered & set(shard.entries)
