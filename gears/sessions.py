"""Sessions: the namespaces scripts run in, what they registered, and how that is kept.

A session is stored as one cloudpickle of all its registrations, so its functions share their globals when they are
loaded again. Bytecode of another Python cannot be loaded: then the stored source is run once more, without its runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import orjson

from .failures import GearsError
from .link import Argument
from .pipeline import Step
from .readers import Reader, RegisteredReader

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}\n".encode()
MODES = ("async", "async_local", "sync")


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

    def arguments(self, session_id: str) -> tuple[Argument, ...]:
        """The nine fields of `QA.REGISTER`."""
        match = self.reader.match()
        private = orjson.dumps({"sessionId": session_id, "depsList": []})
        return (
            *(self.id, self.reader.name, self.mode, self.description),
            *(match.match, match.events, match.commands, match.arguments, private),
        )


@dataclass(slots=True)
class Session:
    """A script's session."""

    id: str
    description: str
    source: str
    registrations: dict[str, Registration] = field(default_factory=dict)

    def register_command(self, payload: bytes) -> tuple[Argument, ...]:
        """`QA.REGISTER` for this session as it is now."""
        fields: list[Argument] = []
        for registration in self.registrations.values():
            fields += registration.arguments(self.id)
        return ("QA.REGISTER", self.id, self.description, self.source, payload, len(self.registrations), *fields)


@dataclass(slots=True)
class ScriptRun:
    """What a script asks for while it runs: carried out once it has ended."""

    session: Session
    plan: Plan | None = None
    restoring: bool = False

    def request_run(self, plan: Plan) -> None:
        """Note the script's run; there is at most one."""
        if self.plan is not None:
            raise GearsError("Can not run more then 1 executions in a single script")
        self.plan = plan


running_script: ContextVar[ScriptRun | None] = ContextVar("running_script", default=None)


def dump(registrations: Iterable[Registration]) -> bytes:
    """The payload of a session; GearsError when a function cannot be pickled."""
    try:
        pickled: bytes = cloudpickle.dumps(list(registrations))
    except Exception as error:  # pickling runs code of the functions' own objects
        raise GearsError(f"Error occured when serialized a python callback: {error}") from error
    return _PYTHON + pickled


def load(payload: bytes) -> list[Registration] | None:
    """The registrations of a payload; None when another Python wrote it."""
    if not payload.startswith(_PYTHON):
        return None
    registrations: list[Registration] = cloudpickle.loads(payload[len(_PYTHON) :])
    return registrations


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
        self._sessions[session.id] = session
        for registration in session.registrations.values():
            self._registrations[registration.id] = (session, registration)
        return [name for name in gone if name not in session.registrations]

    def remove(self, session_id: str) -> list[str]:
        """Drop a session; returns the ids of its registrations."""
        session = self._sessions.pop(session_id, None)
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
            self._sessions.pop(session.id, None)
        return session
