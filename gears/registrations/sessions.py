"""Sessions: the namespaces scripts run in, what they registered, and how that is kept.

A session is stored as one cloudpickle of all its registrations, so its functions share their globals when they are
loaded again. Bytecode of another Python, or of another version of this format, cannot be loaded: then the stored source
is run once more, without its runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import orjson

from ..runs.pipeline import Step
from ..runs.sources import Reader, RegisteredReader
from ..shard.failures import GearsError
from ..shard.link import Argument

_FORMAT = f"2 {sys.version_info.major}.{sys.version_info.minor}\n".encode()
MODES = ("async", "async_local")
RIGHTS = ("caller", "owner")


@dataclass(frozen=True, slots=True)
class Plan:
    """What `run()` was asked to do."""

    reader: Reader
    steps: tuple[Step, ...]
    mode: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """What `register()` was asked to do."""

    id: str
    reader: RegisteredReader
    steps: tuple[Step, ...]
    mode: str
    description: str
    on_registered: Callable[[], Any] | None = None
    rights: str = "owner"

    def plan(self) -> Plan:
        """The plan that each of its events runs."""
        return Plan(self.reader, self.steps, self.mode, self.description)

    def arguments(self, session: Session) -> tuple[Argument, ...]:
        """The nine fields of `QA.REGISTER`."""
        match = self.reader.match()
        private = orjson.dumps({"sessionId": session.id, "depsList": list(session.requirements)})
        return (
            *(self.id, self.reader.name, self.mode, self.description),
            *(match.match, match.events, match.commands, match.arguments, private),
        )


@dataclass(slots=True)
class Session:
    """A script's session; `dead` when another version has taken its place, or nothing is registered any more."""

    id: str
    description: str
    source: str
    registrations: dict[str, Registration] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    dead: bool = False

    def register_command(self, payload: bytes) -> tuple[Argument, ...]:
        """`QA.REGISTER` for this session as it is now."""
        fields: list[Argument] = []
        for registration in self.registrations.values():
            fields += registration.arguments(self)
        return ("QA.REGISTER", self.id, self.description, self.source, payload, len(self.registrations), *fields)


@dataclass(slots=True)
class ScriptRun:
    """What a script asks for while it runs: carried out once it has ended."""

    session: Session
    plan: Plan | None = None
    restoring: bool = False
    over: bool = False
    timers: list[tuple[float, Callable[[], Any]]] = field(default_factory=list)

    def request_run(self, plan: Plan) -> None:
        """Note the script's run; there is at most one."""
        if self.plan is not None:
            raise GearsError("Can not run more then 1 executions in a single script")
        self.plan = plan


script_run: ContextVar[ScriptRun | None] = ContextVar("script_run", default=None)


def running_script() -> ScriptRun | None:
    """The script that the caller is part of; None once it has ended, for what it scheduled still has its context."""
    script = script_run.get()
    return script if script is not None and not script.over else None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a payload holds."""

    registrations: list[Registration]
    requirements: tuple[str, ...]


def dump(registrations: Iterable[Registration], requirements: tuple[str, ...] = ()) -> bytes:
    """The payload of a session; GearsError when a function cannot be pickled."""
    try:
        pickled: bytes = cloudpickle.dumps(Stored(list(registrations), requirements))
    except Exception as error:  # pickling runs code of the functions' own objects
        raise GearsError(f"Error occured when serialized a python callback: {error}") from error
    return _FORMAT + pickled


def load(payload: bytes) -> Stored | None:
    """What a payload holds; None when another Python wrote it."""
    if not payload.startswith(_FORMAT):
        return None
    stored: Stored = cloudpickle.loads(payload[len(_FORMAT) :])
    return stored


class SessionRegistry:
    """The sessions that have registrations on this shard."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._registrations: dict[str, tuple[Session, Registration]] = {}

    def get(self, session_id: str) -> Session | None:
        """The session of that id."""
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        """Every session."""
        return list(self._sessions.values())

    def registration(self, registration_id: str) -> tuple[Session, Registration]:
        """A registration and its session."""
        found = self._registrations.get(registration_id)
        if found is None:
            raise GearsError(f"ERR execution is not registered: {registration_id}")
        return found

    def adopt(self, session: Session) -> list[str]:
        """Take a session in place of what was there under its id; returns the ids of registrations that are gone."""
        gone = self.remove(session.id)
        session.dead = False
        self._sessions[session.id] = session
        for registration in session.registrations.values():
            self._registrations[registration.id] = (session, registration)
        return [name for name in gone if name not in session.registrations]

    def remove(self, session_id: str) -> list[str]:
        """Drop a session; returns the ids of its registrations."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.dead = True
        gone = list(session.registrations) if session else []
        for name in gone:
            self._registrations.pop(name, None)
        return gone

    def remove_registration(self, registration_id: str) -> Session | None:
        """Drop one registration; returns its session, which may now be empty."""
        found = self._registrations.pop(registration_id, None)
        if found is None:
            return None
        session, registration = found
        del session.registrations[registration.id]
        if not session.registrations:
            session.dead = True
            self._sessions.pop(session.id, None)
        return session
