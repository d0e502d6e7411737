"""The storage of sessions: functions keep their shared globals, and no worker misreads another version's payload."""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from qa_cluster.gears.scripts.interface.names import script_globals
from qa_cluster.gears.scripts.registrations import stored_sessions
from qa_cluster.gears.scripts.registrations.sessions import Registration
from qa_cluster.gears.scripts.registrations.stored_sessions import (
    FORMAT,
    StoredRegistrations,
    StoredSession,
    dump,
    load,
    with_ids,
)
from qa_cluster.gears.scripts.runs.plan import Step, StepKind
from qa_cluster.gears.scripts.runs.sources import CommandSource, KeysSource, StreamSource
from qa_cluster.gears.shard.failures import GearsError


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


def test_functions_that_cannot_be_pickled_are_refused() -> None:
    source = "import threading\nlock = threading.Lock()\ndef write(x): return lock\ndef read(x): return 0\n"
    with pytest.raises(GearsError, match="Error occured when serialized a python callback"):
        dump(registrations_of(source))


def test_payload_of_another_python_is_not_loaded() -> None:
    assert load(b"2.7\n" + dump([])) is None
    empty = load(dump([], ("numpy",)))
    assert empty is not None
    assert (empty.registrations, empty.requirements) == ([], ("numpy",))


def test_a_stored_session_is_restored_completely() -> None:
    stored = StoredSession("s", "what it is", SHARED, dump(registrations_of(SHARED)))
    session = stored.restore({})
    assert (session.id, session.description, list(session.registrations)) == ("s", "what it is", ["r-0", "r-1"])


def test_the_remaining_registrations_of_a_session_keep_their_ids() -> None:
    stored = StoredSession("s", "", SHARED, dump(registrations_of(SHARED)))
    left = with_ids(stored.restore({}), ["r-1"])
    assert list(left.registrations) == ["r-1"]
    assert list(stored.restricted_to(left).restore({}).registrations) == ["r-1"]
    # a worker with another Python has run the source again, which makes new ids
    renamed = with_ids(stored.restore({}), ["old-0", "old-1"])
    assert [(known, made.id) for known, made in renamed.registrations.items()] == [("old-0",) * 2, ("old-1",) * 2]
    with pytest.raises(GearsError, match="registers 2 functions, but the module has 1: run the script again"):
        with_ids(stored.restore({}), ["old-0"])


def test_the_source_is_run_again_for_a_payload_of_an_older_format() -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    earlier = f"2 {python}\n".encode() + b"cqa_cluster.gears.sessions\nStored\n."
    names: list[str] = []
    stored = StoredSession("s", "", "note('ran')", earlier)
    assert stored.restore({"note": names.append}).registrations == {}
    assert names == ["ran"]


@pytest.mark.parametrize("gone", [b"cqa_cluster.gears.sessions\nStored\n.", b"cqa_cluster.gears.worker\nNothing\n."])
def test_a_payload_that_uses_missing_names_is_not_loaded(gone: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert load(stored_sessions._PREFIX + gone) is None
    assert "its source is executed again" in caplog.text


NAMES = {
    "scripts.registrations.sessions": "Registration",
    "scripts.registrations.stored_sessions": "StoredRegistrations",
    "scripts.runs.futures": "GearsFuture GearsSession create_future get_gears_session run_coroutine "
    "set_future_exception set_future_results set_gears_session",
    "scripts.runs.plan": "Step StepKind",
    "scripts.runs.sources": "CommandSource KeysSource StreamSource",
    "scripts.interface": "redis_ai",
    "scripts.interface.api": "atomic config_get create_keys_only_reader execute execute_later execute_many flat_error "
    "gears_config_get gears_future hashtag is_async_allow is_in_atomic_block log override_reply register_time_event "
    "shard_reader_callback",
    "scripts.interface.builder": "GearsBuilder",
    "scripts.interface.names": "_Loop call_next gears_ctx get_command register_gears_thread",
    "shard.failures": "GearsError",
}
FIELDS = {
    "StoredRegistrations": ["registrations", "requirements"],
    "Registration": ["id", "source", "steps", "mode", "description", "on_registered", "rights", "own", "cost_from"],
    "Step": ["kind", "function", "key", "start", "length", "outline"],
    "KeysSource": ["pattern", "no_scan", "read_value", "event_types", "key_types", "commands"],
    "StreamSource": ["stream", "from_id", "batch", "duration_ms", "on_failed", "retry_seconds", "trim"],
    "CommandSource": ["trigger", "inorder", "timeout_ms"],
}


class Named(pickle.Unpickler):
    """Records the names in this package that a pickle needs."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(io.BytesIO(payload))
        self.names: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add(f"{module}.{name}")
        # the pickle calls `subimport` with the name of a module
        return self.names.add if name == "subimport" else super().find_class(module, name)


def named(registrations: Iterable[Registration]) -> dict[str, str]:
    """The names in this package that a payload uses, by module."""
    unpickler = Named(dump(registrations).removeprefix(stored_sessions._PREFIX))
    unpickler.load()
    found: dict[str, list[str]] = {}
    for name in sorted(unpickler.names):
        if name.startswith("qa_cluster.gears."):
            module, _, last = name.removeprefix("qa_cluster.gears.").rpartition(".")
            found.setdefault(module, []).append(last)
    return {module: " ".join(names) for module, names in found.items()}


def test_the_names_in_payloads_belong_to_their_format() -> None:
    """A change that moves or renames one of these must raise `FORMAT`. Otherwise a worker misreads stored payloads."""
    namespace: dict[str, Any] = {"__name__": "gears_session_t", **script_globals()}
    used = ", ".join(name for name in script_globals())
    exec(f"def function(x): return ({used})", namespace)
    steps = (Step(StepKind.MAP, namespace["function"]),)
    sources = (KeysSource(), StreamSource("s"), CommandSource("t"))
    found = named(Registration(str(n), source, steps, "async", "") for n, source in enumerate(sources))
    fields = {
        kind.__name__: [field.name for field in dataclasses.fields(kind)]
        for kind in (StoredRegistrations, Registration, Step, KeysSource, StreamSource, CommandSource)
    }
    assert (FORMAT, found, fields) == (5, NAMES, FIELDS)
