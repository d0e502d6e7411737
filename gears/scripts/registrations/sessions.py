"""Sessions, which are the registrations of one script, and the table of all sessions on this shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ...functions.own_functions import OwnFunction, OwnKeyFunction
from ...shard.failures import GearsError
from ...shard.link import Argument
from ..calling.threads import FunctionPool
from ..host.executions import Execution, IdSource
from ..runs.plan import ExecutionPlan, Step
from ..runs.sources import CommandCall, CommandSource, KeysSource, RegisteredSource

MODES = ("async", "async_local")
RIGHTS = ("caller", "owner")


def module_name(session_id: str) -> str:
    """Return the `__name__` in the globals of a session's script."""
    return f"gears_session_{session_id}"


@dataclass(frozen=True, slots=True)
class Registration:
    """One call of `register()`: its source, steps and options.

    Attributes:
        mode: ``async`` lets a run use all shards, and ``async_local`` only the shard of the event.
        on_registered: the function to call when the registration becomes active on a shard; None: no function.
        rights: whose rights the steps have: ``caller`` (the client that calls the trigger) or ``owner`` (the worker).
        own: the name of the function of qa-cluster itself (an *own function*) that the worker calls instead of steps;
            empty for a user function.
        cost_from: each argument of a trigger from this index on adds 1 to the cost of a call; 0: only the length of the
            arguments counts (`OwnTrigger`).
    """

    id: str
    source: RegisteredSource
    steps: tuple[Step, ...]
    mode: str
    description: str
    on_registered: Callable[[], Any] | None = None
    rights: str = "owner"
    own: str = ""
    cost_from: int = 0

    def plan(self) -> ExecutionPlan:
        """Return the plan for a run of the steps on an event of the source."""
        return ExecutionPlan(self.source, self.steps, self.mode, self.description)

    def trigger_plan(self, arguments: Sequence[Any]) -> ExecutionPlan:
        """Return the plan for a call of the trigger. With the mode ``async``, every shard gets the arguments."""
        return ExecutionPlan(CommandCall(tuple(arguments)), self.steps, self.mode, self.description)

    def arguments(self, session: ScriptSession) -> tuple[Argument, ...]:
        """Return the eleven fields that describe this registration of `session` in the command `QA.REGISTER`."""
        match = self.source.match()
        private = orjson.dumps({"sessionId": session.id, "depsList": list(session.requirements)})
        return (
            *(self.id, self.source.name, self.mode, self.description),
            *(match.match, match.events, match.commands, match.arguments, private),
            *("own" if self.own else "user", self.cost_from),
        )


def own_registration(registration_id: str, function: OwnFunction) -> Registration:
    """Return the registration of one of qa-cluster's own functions. The registration stores only the function's name.

    The function runs with the worker's rights. So a client whose command starts the function needs only the rights for
    this command, not for the keys that the function uses.
    """
    if isinstance(function, OwnKeyFunction):
        source: RegisteredSource = KeysSource(
            function.name, read_value=False, event_types=function.events or None, commands=function.commands or None
        )
        cost_from = 0
    else:
        source, cost_from = CommandSource(function.name), function.cost_from
    return Registration(
        *(registration_id, source, (), "async_local", function.description), own=function.name, cost_from=cost_from
    )


@dataclass(slots=True)
class ScriptSession:
    """The session of a script.

    Attributes:
        registrations: the registrations of the script by id, in the order of the calls of `register()`.
        requirements: the Python packages that the script needs.
        dead: whether the session was replaced, or has lost its last registration.
    """

    id: str
    description: str
    script_source: str
    registrations: dict[str, Registration] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    dead: bool = False

    def register_command(self, payload: bytes) -> tuple[Argument, ...]:
        """Return the command `QA.REGISTER` to store this session in its current state."""
        fields: list[Argument] = []
        for registration in self.registrations.values():
            fields += registration.arguments(self)
        return ("QA.REGISTER", self.id, self.description, self.script_source, payload, len(self.registrations), *fields)


def execution_of(
    registration: Registration,
    session: ScriptSession,
    ids: IdSource,
    pool: FunctionPool,
    *,
    user: str = "",
    can_override: bool = False,
) -> Execution:
    """Return a new execution of a registration of `session`.

    Args:
        ids: creates the id of the execution.
        pool: the pool of threads for the functions of the execution.
        user: the ACL user whose rights the execution has; empty: the worker's rights.
        can_override: whether the functions may replace the reply to the command that caused the event.
    """
    return Execution(
        *(ids.next(), session), registered=True, can_override=can_override, user=user, pool=pool, owner=registration.id
    )


def session_of(execution: Execution | None) -> ScriptSession | None:
    """Return the session of an execution; None if the execution has no script session."""
    owner = execution.session if execution is not None else None
    return owner if isinstance(owner, ScriptSession) else None


class SessionRegistry:
    """All sessions with registrations on this shard."""

    def __init__(self) -> None:
        self._sessions: dict[str, ScriptSession] = {}
        self._registrations: dict[str, tuple[ScriptSession, Registration]] = {}

    def get(self, session_id: str) -> ScriptSession | None:
        """Return the session with this id; None if it is missing."""
        return self._sessions.get(session_id)

    def all(self) -> list[ScriptSession]:
        """Return every session."""
        return list(self._sessions.values())

    def registration(self, registration_id: str) -> tuple[ScriptSession, Registration]:
        """Return the session of a registration, and the registration. Raise GearsError if the registration is
        missing.
        """
        found = self._registrations.get(registration_id)
        if found is None:
            raise GearsError(f"ERR execution is not registered: {registration_id}")
        return found

    def trigger(self, name: str) -> tuple[ScriptSession, Registration]:
        """Return the session and the registration of the trigger `name`. Raise GearsError if no session has the
        trigger.
        """
        for session, registration in self._registrations.values():
            if isinstance(registration.source, CommandSource) and registration.source.trigger == name:
                return session, registration
        raise GearsError("ERR subcommand not found")

    def adopt(self, session: ScriptSession) -> list[str]:
        """Add a session. It replaces an earlier session with the same id.

        Return the ids of the removed registrations: the registrations that only the replaced session had.
        """
        gone = self.remove(session.id)
        session.dead = False
        self._sessions[session.id] = session
        for registration in session.registrations.values():
            self._registrations[registration.id] = (session, registration)
        return [name for name in gone if name not in session.registrations]

    def remove(self, session_id: str) -> list[str]:
        """Drop a session; return the ids of its registrations, or an empty list if the session is missing."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.dead = True
        gone = list(session.registrations) if session else []
        for name in gone:
            self._registrations.pop(name, None)
        return gone

    def remove_registration(self, registration_id: str) -> ScriptSession | None:
        """Drop one registration; return its session, or None if the registration is missing.

        A session without registrations is dropped, too.
        """
        found = self._registrations.pop(registration_id, None)
        if found is None:
            return None
        session, registration = found
        del session.registrations[registration.id]
        if not session.registrations:
            session.dead = True
            self._sessions.pop(session.id, None)
        return session
