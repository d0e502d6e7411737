"""Sessions: their registrations, the workers that install them, their executions and ids."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.gears.functions.own_functions import OwnTrigger
from qa_cluster.gears.scripts.host.executions import Execution, IdSource
from qa_cluster.gears.scripts.registrations import registrar
from qa_cluster.gears.scripts.registrations.installed import Installed
from qa_cluster.gears.scripts.registrations.on_registered import OnRegisteredCalls
from qa_cluster.gears.scripts.registrations.registrar import Registrar
from qa_cluster.gears.scripts.registrations.sessions import (
    Registration,
    ScriptSession,
    SessionRegistry,
    own_registration,
)
from qa_cluster.gears.scripts.registrations.stored_sessions import Change, StoredSession, dump
from qa_cluster.gears.scripts.runs.history import ExecutionHistory
from qa_cluster.gears.scripts.runs.sources import KeysSource
from qa_cluster.gears.shard.failures import GearsError
from tests.gears.test_stored_sessions import SHARED, registrations_of
from tests.harness.polling import eventually_async


def lone_registrar(host: Any, start: Callable[..., None] = lambda *_: None, peers: Any = None) -> Registrar:
    """A registrar of a shard without streams or timers, with the given other shards."""
    streams: Any = SimpleNamespace(start=start, stop=lambda _: None)
    timers: Any = SimpleNamespace(stop_dead=lambda: None, stop_session=lambda _: None)
    registry, history = SessionRegistry(), ExecutionHistory()
    functions: Any = SimpleNamespace(by_name={}, remove=lambda _: None)
    installed = Installed(
        host,
        functions=functions,
        sessions=registry,
        history=history,
        streams=streams,
        timers=timers,
        on_registered=OnRegisteredCalls(host),
        names={},
    )
    return Registrar(host, peers, installed)


async def test_a_session_is_used_even_if_its_publisher_dies_before_the_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registrar, "CONFIRM_SECONDS", 0.05)
    started: list[str] = []
    host: Any = SimpleNamespace(loop=asyncio.get_running_loop(), execute=lambda *_: None)
    taking = lone_registrar(host, start=lambda _, registration: started.append(registration.id))
    for number, name in enumerate(("confirmed", "orphaned"), 1):
        taking.take("node", Change(shared(name), number=number))
    assert started == []
    taking.confirmed("node", "confirmed")
    assert started == ["r-0", "r-1"]
    await eventually_async(lambda: started == ["r-0", "r-1"] * 2)


class Module:
    """A host whose module knows tombstones."""

    def __init__(self) -> None:
        self.loop: Any = SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
        self.tombstones: set[str] = set()
        self.sessions: dict[str, list[str]] = {}
        self.orders: list[Any] = []
        self.broken: set[str] = set()

    def execute(self, command: str, *words: Any) -> Any:
        match command:
            case "QA.UNREGISTER":
                self.tombstones.update(words)
            case "QA.UNREGISTERED":
                return [name.encode() for name in words if name in self.tombstones]
            case "QA.PAUSE":
                self.orders += words
            case "QA.REGISTER":
                ids = list(words[5::11])
                for name in self.broken & set(ids):
                    raise GearsError(f"ERR {name} is broken")
                if buried := self.tombstones & set(ids):
                    raise GearsError(f"UNREGISTERED registration has been unregistered: {min(buried)}")
                self.sessions[words[0]] = ids
        return b"OK"


def shared(name: str = "s", only: int = 2) -> StoredSession:
    """A session of the registrations r-0 and r-1."""
    return StoredSession(name, "", SHARED, dump(registrations_of(SHARED)[:only]))


def newer() -> StoredSession:
    """Another version of that session."""
    return StoredSession("s", "", SHARED, dump([replace(registrations_of(SHARED)[0], id="r-9")]))


def test_a_withdrawn_session_does_not_reappear() -> None:
    host: Any = Module()
    taking = lone_registrar(host)
    taking.take("a", Change(shared(), number=1))
    assert (taking.installed.stored("s"), taking.publishing) == (shared(), True)
    taking.take("a", Change(None, "s", number=2, undone=("r-0", "r-1")))
    taking.take("a", Change(shared(), number=1))  # the message arrives again
    taking.installed.adopt(shared(), {})  # offered by a shard that has missed the removal
    assert (taking.installed.stored("s"), taking.publishing) == (None, False)
    assert host.sessions == {"s": []}


def test_a_late_session_is_installed_without_unregistered_registrations() -> None:
    host: Any = Module()
    host.tombstones.add("r-0")
    taking = lone_registrar(host)
    taking.take("a", Change(shared(), number=1))
    assert host.sessions == {"s": ["r-1"]}
    kept = taking.installed.stored("s")
    assert kept is not None
    assert list(kept.restore({}).registrations) == ["r-1"]  # the version that other shards get


def test_a_late_version_without_registrations_does_not_replace_the_version_in_use() -> None:
    host: Any = Module()
    taking = lone_registrar(host)
    taking.installed.adopt(shared(), {})
    host.tombstones.add("r-9")
    old = StoredSession("s", "", SHARED, dump([replace(registrations_of(SHARED)[0], id="r-9")]))
    taking.take("b", Change(old, number=1))
    assert (host.sessions, taking.installed.stored("s")) == ({"s": ["r-0", "r-1"]}, shared())


def test_registrations_restored_by_an_undo_are_not_unregistered() -> None:
    host: Any = Module()
    taking = lone_registrar(host)
    taking.installed.adopt(shared(only=1), {})
    taking.take("a", Change(StoredSession("s", "new", SHARED, shared().payload), number=1))
    taking.take("a", Change(shared(only=1), number=2, undone=("r-1",)))
    assert (host.sessions, host.tombstones, taking.publishing) == ({"s": ["r-0"]}, {"r-1"}, False)


def test_pauses_of_a_missed_session_apply_before_its_registrations_start() -> None:
    host: Any = Module()
    ordered: list[Any] = []
    taking = lone_registrar(host, start=lambda _, registration: ordered.append((registration.id, list(host.orders))))
    taking.installed.adopt(shared(), {"r-1": 7})
    assert ordered == [("r-0", ["r-1", 7]), ("r-1", ["r-1", 7])]
    taking.installed.adopt(shared(), {"r-1": 7})  # the session is already installed
    assert len(ordered) == 2


def test_registrations_replaced_by_a_missed_session_are_not_unregistered() -> None:
    host: Any = Module()
    taking = lone_registrar(host)
    taking.installed.adopt(shared(), {})
    taking.installed.adopt(newer(), {})  # the publisher may withdraw the session, so the previous version must stay
    assert (host.sessions, host.tombstones) == ({"s": ["r-9"]}, set())
    taking.replaced("a", ["r-0", "r-1"])
    assert host.tombstones == {"r-0", "r-1"}


def test_a_late_withdrawal_does_not_affect_a_newer_version() -> None:
    host: Any = Module()
    taking = lone_registrar(host)
    taking.take("a", Change(shared(), number=1))
    taking.take("b", Change(newer(), number=1))
    taking.take("a", Change(shared("s", only=1), number=2, undone=("r-1",)))
    assert (host.sessions, host.tombstones, taking.publishing) == ({"s": ["r-9"]}, {"r-1"}, True)
    taking.confirmed("b", "s")
    taking.take("a", Change(None, "s", number=3, undone=("r-0", "r-1")))
    assert (host.sessions, taking.publishing) == ({"s": ["r-9"]}, False)


async def test_a_refused_publication_keeps_a_version_that_another_shard_published_meanwhile() -> None:
    host: Any = Module()

    async def refuse(*_: Any) -> None:
        if "r-9" not in host.sessions["s"]:
            publishing.take("b", Change(newer(), number=1))
            raise GearsError("ERR a shard is silent")

    peers: Any = SimpleNamespace(others=lambda: ["b"], request_all=refuse)
    publishing = lone_registrar(host, peers=peers)
    publishing.installed.adopt(shared(only=1), {})
    session = ScriptSession("s", "new", SHARED, {one.id: one for one in registrations_of(SHARED)[1:]})
    with pytest.raises(GearsError, match="a shard is silent"):
        await publishing.publish(session)
    assert (host.sessions, host.tombstones) == ({"s": ["r-9"]}, {"r-1"})


async def test_a_session_refused_by_its_own_shard_leaves_nothing() -> None:
    host: Any = Module()
    publishing = lone_registrar(host, peers=SimpleNamespace(others=lambda: ["b"]))  # fails if it asks its own shard
    publishing.installed.adopt(shared(only=1), {})
    host.broken.add("r-1")
    session = ScriptSession("t", "new", SHARED, {one.id: one for one in registrations_of(SHARED)[1:]})
    with pytest.raises(GearsError, match="r-1 is broken"):
        await publishing.publish(session, replaced="s")
    assert (host.sessions, host.tombstones) == ({"s": ["r-0"], "t": []}, set())
    assert publishing.installed.stored("s") == shared(only=1)


async def test_a_refused_publication_leaves_tombstones_of_its_new_registrations() -> None:
    told: list[tuple[str, Any]] = []

    async def refuse(_nodes: list[str], kind: str, body: Any, _seconds: float) -> None:
        told.append((kind, body))
        if len(told) == 1:
            raise GearsError("ERR a shard is silent")

    peers: Any = SimpleNamespace(others=lambda: ["b"], request_all=refuse)
    host: Any = Module()
    publishing = lone_registrar(host, peers=peers)
    publishing.installed.adopt(shared(only=1), {})
    session = ScriptSession("s", "new", SHARED, {one.id: one for one in registrations_of(SHARED)})
    with pytest.raises(GearsError, match="a shard is silent"):
        await publishing.publish(session)
    assert (host.sessions, host.tombstones) == ({"s": ["r-0"]}, {"r-1"})
    await eventually_async(lambda: len(told) == 2)
    assert (told[1][1].stored, told[1][1].undone) == (shared(only=1), ("r-1",))


async def test_registrations_replaced_by_a_publication_are_unregistered_everywhere() -> None:
    sent: list[tuple[Any, ...]] = []

    async def accept(*_: Any) -> None:
        return

    peers: Any = SimpleNamespace(others=lambda: ["b"], request_all=accept, send=lambda *words: sent.append(words))
    host: Any = Module()
    publishing = lone_registrar(host, peers=peers)
    publishing.installed.adopt(shared(), {})
    made = replace(registrations_of(SHARED)[0], id="r-9")
    await publishing.publish(ScriptSession("s", "new", SHARED, {made.id: made}))
    assert host.tombstones == {"r-0", "r-1"}
    assert sent == [("b", "registered", "s"), ("b", "replaced", ["r-0", "r-1"])]


def test_register_command_has_eleven_fields_each() -> None:
    session = ScriptSession("s", "d", "src", {r.id: r for r in registrations_of(SHARED)})
    source = KeysSource("k*", event_types=("keymiss",), commands=("get",))
    session.registrations["r-2"] = Registration("r-2", source, (), "async", "keys")
    command = session.register_command(b"payload")
    assert command[:6] == ("QA.REGISTER", "s", "d", "src", b"payload", 3)
    assert len(command) == 6 + 3 * 11
    assert command[-11:-4] == ("r-2", "KeysReader", "async", "keys", "k*", "keymiss", "get")
    assert command[-2:] == ("user", 0)


@pytest.mark.parametrize("cost_from", [0, 3])
def test_an_own_function_says_its_class_and_cost(cost_from: int) -> None:
    async def called(_: object) -> str:
        return ""

    made = own_registration("r-3", OwnTrigger("qa.read", "reads", called, cost_from=cost_from))
    assert (made.own, made.rights, made.steps) == ("qa.read", "owner", ())
    assert made.arguments(ScriptSession("s", "", ""))[-2:] == ("own", cost_from)


def test_registry_replaces_and_removes() -> None:
    registry = SessionRegistry()
    one, two = registrations_of(SHARED)
    registry.adopt(ScriptSession("s", "", "", {one.id: one, two.id: two}))
    assert registry.registration("r-1")[1] is two
    assert registry.adopt(ScriptSession("s", "", "", {two.id: two})) == ["r-0"]
    with pytest.raises(GearsError, match="r-0"):
        registry.registration("r-0")
    left = registry.remove_registration("r-1")
    assert left is not None
    assert not left.registrations
    assert registry.get("s") is None


def test_a_later_worker_gives_greater_ids() -> None:
    first, second = IdSource("e" * 40), IdSource("f" * 40)
    made = []
    for ids in (second, first) * 3:
        made.append(int(ids.next_dated().rpartition("-")[2]))
        time.sleep(0.001)
    assert made == sorted(set(made))


def test_history_is_bounded_and_keeps_running_executions() -> None:
    history = ExecutionHistory()
    running = Execution("running", None)
    history.add(running)
    for number in range(1500):
        execution = Execution(str(number), None)
        execution.finish()
        history.add(execution)
    assert len(history.all()) == 1000
    assert history.get("running") is running
    with pytest.raises(GearsError, match="can not drop a not yet finished execution"):
        history.drop("running")
    assert not history.drop("0")
    history.max_per_registration = 2
    for number in range(5):
        execution = Execution(f"r-{number}", None, registered=True)
        history.add_registered("r", execution)
        if number:
            execution.finish()
    assert [execution.id for execution in history.all()][-2:] == ["r-0", "r-4"]


def test_only_a_hooked_run_can_override_the_reply_and_only_once() -> None:
    with pytest.raises(GearsError, match="Can not get command ctx"):
        Execution("x", None).override("a")
    execution = Execution("x", None, can_override=True)
    execution.override("a")
    with pytest.raises(GearsError, match="Can only override reply once"):
        execution.override("b")
    assert execution.overriding == b"$1\r\na\r\n"


def test_ids_of_executions_grow_by_one_and_ids_of_registrations_follow_the_time() -> None:
    ids = IdSource("f" * 40)
    first = int(ids.next().rpartition("-")[2])
    sessions = {ids.next_session() for _ in range(3)}
    assert len(sessions) == 3
    assert ids.next() == f"{'f' * 40}-{first + 1}"
    time.sleep(0.01)
    dated = int(ids.next_dated().rpartition("-")[2])
    assert dated >= first + 10_000
    assert ids.next() == f"{'f' * 40}-{dated + 1}"
    time.sleep(0.001)  # a new worker starts at least this much later, and reuses no id
    assert int(IdSource("f" * 40).next().rpartition("-")[2]) > dated + 1
    later = dated + 60_000_000  # an id of the time before the clock was set back
    for used in (f"{'f' * 40}-{later}", f"{'e' * 40}-{later + 99}", "a name of the user's"):
        ids.skip_past(used)
    assert ids.next() == f"{'f' * 40}-{later + 1}"
    assert ids.next_dated() == f"{'f' * 40}-{later + 2}"
