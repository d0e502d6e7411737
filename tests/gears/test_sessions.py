"""Sessions: their functions survive pickling with shared globals, and the registry holds what is registered."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.gears.registrations import registrar
from qa_cluster.gears.registrations.registrar import Registrar
from qa_cluster.gears.registrations.sessions import Registration, ScriptSession, SessionRegistry
from qa_cluster.gears.registrations.stored_sessions import Change, StoredSession, dump, load, with_ids
from qa_cluster.gears.runs.history import ExecutionHistory
from qa_cluster.gears.runs.plan import Step, StepKind
from qa_cluster.gears.runs.sources import CommandSource, KeysSource
from qa_cluster.gears.shard.executions import Execution, IdSource
from qa_cluster.gears.shard.failures import GearsError, error_line, traceback_text


def registrations_of(source: str) -> list[Registration]:
    namespace: dict[str, Any] = {"__name__": "gears_session_t"}
    exec(source, namespace)
    steps = [(Step(StepKind.MAP, namespace[name]),) for name in ("write", "read")]
    return [Registration(f"r-{n}", CommandSource(f"t{n}"), s, "async_local", "") for n, s in enumerate(steps)]


SHARED = """
state = {"n": 0}
def write(x):
    state["n"] = x
def read(x):
    return state["n"]
"""


def test_functions_of_a_session_share_their_globals_after_a_round_trip() -> None:
    loaded = load(dump(registrations_of(SHARED)))
    assert loaded is not None
    write, read = (registration.steps[0].function for registration in loaded.registrations)
    assert write is not None and read is not None
    write(7)
    assert read(0) == 7


def test_what_cannot_be_pickled_is_refused() -> None:
    source = "import threading\nlock = threading.Lock()\ndef write(x): return lock\ndef read(x): return 0\n"
    with pytest.raises(GearsError, match="Error occured when serialized a python callback"):
        dump(registrations_of(source))


def test_payload_of_another_python_is_not_loaded() -> None:
    assert load(b"2.7\n" + dump([])) is None
    empty = load(dump([], ("numpy",)))
    assert empty is not None
    assert (empty.registrations, empty.requirements) == ([], ("numpy",))


def test_stored_session_is_whole_again() -> None:
    stored = StoredSession("s", "what it is", SHARED, dump(registrations_of(SHARED)))
    session = stored.restore({})
    assert (session.id, session.description, list(session.registrations)) == ("s", "what it is", ["r-0", "r-1"])


def test_what_is_left_of_a_session_is_taken_up_under_its_ids() -> None:
    stored = StoredSession("s", "", SHARED, dump(registrations_of(SHARED)))
    left = with_ids(stored.restore({}), ["r-1"])
    assert list(left.registrations) == ["r-1"]
    assert list(stored.only(left).restore({}).registrations) == ["r-1"]
    # run again by another Python, the source has made new ids
    renamed = with_ids(stored.restore({}), ["old-0", "old-1"])
    assert [(known, made.id) for known, made in renamed.registrations.items()] == [("old-0",) * 2, ("old-1",) * 2]
    with pytest.raises(GearsError, match="registers 2 functions and 1 are left of them: run the script again"):
        with_ids(stored.restore({}), ["old-0"])


def lone_registrar(host: Any, start: Callable[..., None] = lambda *_: None) -> Registrar:
    """A registrar of a shard that has no neighbours, streams or timers."""
    nobody: Any = SimpleNamespace()
    streams: Any = SimpleNamespace(start=start, stop=lambda _: None)
    timers: Any = SimpleNamespace(stop_dead=lambda: None, stop_session=lambda _: None)
    registry, history = SessionRegistry(), ExecutionHistory()
    return Registrar(host, nobody, sessions=registry, history=history, streams=streams, timers=timers, names={})


def test_what_the_publishing_shard_does_not_live_to_confirm_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registrar, "CONFIRM_SECONDS", 0.05)
    started: list[str] = []

    async def main() -> None:
        host: Any = SimpleNamespace(loop=asyncio.get_running_loop(), execute=lambda *_: None)
        taking = lone_registrar(host, start=lambda _, registration: started.append(registration.id))
        for name in ("confirmed", "orphaned"):
            taking.take("node", Change(StoredSession(name, "", SHARED, dump(registrations_of(SHARED)))))
        assert started == []
        taking.confirmed("node", "confirmed")
        assert started == ["r-0", "r-1"]
        await asyncio.sleep(0.2)
        assert started == ["r-0", "r-1"] * 2

    asyncio.run(main())


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


def test_failures_are_told_in_both_forms() -> None:
    try:
        exec(compile("def f():\n    raise ValueError('two\\nlines')\nf()", "<script s>", "exec"), {})
    except ValueError as error:
        lines = eval(traceback_text(error))
        assert lines[0] == "Traceback (most recent call last):\n"
        assert "ValueError: two\nlines\n" in lines[-1] or lines[-1] == "lines\n"
        assert error_line(error) == "ERR ValueError: two lines (<script s>:2 in f)"
    assert error_line(GearsError("WRONGTYPE not a string")) == "WRONGTYPE not a string"
    assert error_line(GearsError("Can not do it")) == "ERR Can not do it"
    assert sys.exc_info() == (None, None, None)
