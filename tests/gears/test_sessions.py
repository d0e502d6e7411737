"""Sessions: what is registered, who takes it up, and the executions and ids that are known of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.gears.registrations import registrar
from qa_cluster.gears.registrations.registrar import Registrar
from qa_cluster.gears.registrations.sessions import Registration, ScriptSession, SessionRegistry
from qa_cluster.gears.registrations.stored_sessions import Change, StoredSession, dump
from qa_cluster.gears.runs.history import ExecutionHistory
from qa_cluster.gears.runs.sources import KeysSource
from qa_cluster.gears.shard.executions import Execution, IdSource
from qa_cluster.gears.shard.failures import GearsError
from tests.gears.test_stored_sessions import SHARED, registrations_of
from tests.harness.polling import eventually_async


def lone_registrar(host: Any, start: Callable[..., None] = lambda *_: None) -> Registrar:
    """A registrar of a shard that has no neighbours, streams or timers."""
    nobody: Any = SimpleNamespace()
    streams: Any = SimpleNamespace(start=start, stop=lambda _: None)
    timers: Any = SimpleNamespace(stop_dead=lambda: None, stop_session=lambda _: None)
    registry, history = SessionRegistry(), ExecutionHistory()
    return Registrar(host, nobody, sessions=registry, history=history, streams=streams, timers=timers, names={})


async def test_what_the_publishing_shard_does_not_live_to_confirm_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registrar, "CONFIRM_SECONDS", 0.05)
    started: list[str] = []
    host: Any = SimpleNamespace(loop=asyncio.get_running_loop(), execute=lambda *_: None)
    taking = lone_registrar(host, start=lambda _, registration: started.append(registration.id))
    for name in ("confirmed", "orphaned"):
        taking.take("node", Change(StoredSession(name, "", SHARED, dump(registrations_of(SHARED)))))
    assert started == []
    taking.confirmed("node", "confirmed")
    assert started == ["r-0", "r-1"]
    await eventually_async(lambda: started == ["r-0", "r-1"] * 2)


def test_a_session_that_was_taken_back_stays_away() -> None:
    loop = SimpleNamespace(call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
    host: Any = SimpleNamespace(execute=lambda *_: b"OK", loop=loop)
    taking = lone_registrar(host)
    stored = StoredSession("s", "", SHARED, dump(registrations_of(SHARED)))
    taking.take("a", Change(stored, number=1))
    assert taking.session_ids == ["s"]
    taking.take("a", Change(None, "s", number=2))
    taking.take("a", Change(stored, number=1))  # told again
    taking.take("b", Change(stored))  # from a shard that has not heard of it
    assert taking.session_ids == []
    taking.take("a", Change(stored, number=3))
    assert taking.session_ids == ["s"]


def test_register_command_has_nine_fields_each() -> None:
    session = ScriptSession("s", "d", "src", {r.id: r for r in registrations_of(SHARED)})
    source = KeysSource("k*", event_types=("keymiss",), commands=("get",))
    session.registrations["r-2"] = Registration("r-2", source, (), "async", "keys")
    command = session.register_command(b"payload")
    assert command[:6] == ("QA.REGISTER", "s", "d", "src", b"payload", 3)
    assert len(command) == 6 + 3 * 9
    assert command[-9:-2] == ("r-2", "KeysReader", "async", "keys", "k*", "keymiss", "get")


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


def test_no_id_comes_twice_also_of_the_next_worker() -> None:
    ids = IdSource("f" * 40)
    last = int([ids.next() for _ in range(3)][-1].rpartition("-")[2])
    time.sleep(0.001)  # no worker starts as quickly
    assert int(IdSource("f" * 40).next().rpartition("-")[2]) > last
    ids.skip_past(f"{'f' * 40}-{last + 17}")
    ids.skip_past(f"{'e' * 40}-{last + 99}")
    ids.skip_past("a name of the user's")
    assert ids.next() == f"{'f' * 40}-{last + 18}"


def test_history_is_bounded_and_keeps_what_runs() -> None:
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


def test_override_once_and_only_for_a_client() -> None:
    with pytest.raises(GearsError, match="Can not get command ctx"):
        Execution("x", None).override("a")
    execution = Execution("x", None, can_override=True)
    execution.override("a")
    with pytest.raises(GearsError, match="Can only override reply once"):
        execution.override("b")
    assert execution.overriding == b"$1\r\na\r\n"
