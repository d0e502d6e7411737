"""Registering: a session's registrations go to this shard's module and to all other shards, or nowhere.

A new version of a session is first taken by the own shard (which validates it), then by all others; if one refuses or
is silent, everyone gets the old version back. `onRegistered` then runs on every shard, as it does after a restart: a
plain function at once, a coroutine in the background.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import scripts, sessions
from .atomic import guarded
from .executions import Execution, current
from .failures import GearsError, error_line
from .sessions import Registration, Session

if TYPE_CHECKING:
    from .runtime import Runtime

logger = logging.getLogger(__name__)
ACKNOWLEDGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as it is kept and sent."""

    id: str
    description: str
    source: str
    payload: bytes

    def restore(self) -> Session:
        """The session with its functions; its source is run again when another Python pickled them."""
        scripts.remember_source(self.id, self.source)
        registrations = sessions.load(self.payload)
        if registrations is None:
            return scripts.rerun(self.id, self.description, self.source)
        return Session(self.id, self.description, self.source, {r.id: r for r in registrations})


@dataclass(frozen=True, slots=True)
class Change:
    """What a shard is told to do: take `stored`, drop the session `removed`."""

    stored: StoredSession | None
    removed: str | None = None


class Registrar:
    """Installs sessions on this shard and passes them on."""

    def __init__(self, runtime_of: Callable[[], Runtime]) -> None:
        self._runtime_of = runtime_of
        self._payloads: dict[str, StoredSession] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def publish(self, session: Session, replaced: str | None = None) -> None:
        """Register a session on all shards; on any failure nothing has changed and GearsError tells why."""
        runtime = self._runtime_of()
        stored = StoredSession(
            session.id, session.description, session.source, sessions.dump(session.registrations.values())
        )
        undo = [Change(self._payloads.get(session.id), None if session.id in self._payloads else session.id)]
        if replaced is not None and replaced != session.id:
            undo.append(Change(self._payloads.get(replaced)))
        change = Change(stored, replaced if replaced != session.id else None)
        others = runtime.peers.others()
        try:
            self._install(change)
            await runtime.peers.request_all(others, "register", change, ACKNOWLEDGE_SECONDS)
        except BaseException:
            for step in undo:
                self._undo(step, others)
            raise
        self._run_on_registered(session.id)
        for node in others:
            runtime.peers.send(node, "registered", session.id)

    def _undo(self, step: Change, others: list[str]) -> None:
        runtime = self._runtime_of()
        try:
            self._install(step)
        except GearsError as error:
            logger.error("an earlier version of a session could not be put back: %s", error)
        for node in others:
            try:
                runtime.peers.send(node, "register", step)
            except GearsError as error:
                logger.error("shard %s could not be told to put a session back: %s", node, error)

    def extend(self, session: Session, registration: Registration) -> None:
        """Add a registration that a running function asked for; the other shards follow in the background."""
        grown = Session(session.id, session.description, session.source, dict(session.registrations))
        grown.registrations[registration.id] = registration
        self._spawn(self.publish(grown))

    def take(self, sender: str, change: Change) -> None:
        """Install what another shard's worker published."""
        self._install(change)

    def confirmed(self, sender: str, session_id: str) -> None:
        """All shards have taken a session: its `onRegistered` may run."""
        self._run_on_registered(session_id)

    def missing(self, known: list[str]) -> list[Change]:
        """The sessions of this shard that another one does not have."""
        return [Change(stored) for name, stored in self._payloads.items() if name not in known]

    @property
    def session_ids(self) -> list[str]:
        """Ids of the sessions that are registered on this shard."""
        return list(self._payloads)

    def restore(self, entries: Iterable[list[bytes]]) -> None:
        """Take the sessions the module kept, at start."""
        runtime = self._runtime_of()
        for session_id, description, source, payload in entries:
            stored = StoredSession(session_id.decode(), description.decode(), source.decode(), payload)
            try:
                session = stored.restore()
            except BaseException as error:  # one broken script must not keep the shard without a worker
                logger.error("session %s could not be restored: %s", stored.id, error_line(error))
                continue
            for registration in session.registrations.values():
                runtime.ids.skip_past(registration.id)
            runtime.ids.skip_past(session.id)
            self._payloads[stored.id] = stored
            runtime.sessions.adopt(session)
            self._run_on_registered(session.id)

    def unregister(self, registration_id: str) -> None:
        """The module dropped a registration: what is stored for its session must not bring it back."""
        runtime = self._runtime_of()
        session = runtime.sessions.remove_registration(registration_id)
        runtime.history.forget_registration(registration_id)
        if session is None:
            return
        if not session.registrations:
            self._payloads.pop(session.id, None)
            runtime.execute("QA.REGISTER", session.id, "", "", "", 0)
            return
        payload = sessions.dump(self._as_registered(session))
        runtime.execute(*session.register_command(payload))
        self._payloads[session.id] = StoredSession(session.id, session.description, session.source, payload)

    def _as_registered(self, session: Session) -> list[Registration]:
        """The registrations as they were stored: those in use carry what their globals have become since."""
        stored = self._payloads.get(session.id)
        registrations = sessions.load(stored.payload) if stored is not None else None
        if registrations is None:
            return list(session.registrations.values())
        return [registration for registration in registrations if registration.id in session.registrations]

    def repair(self, registration_id: str) -> None:
        """Run the `onRegistered` of a registration whose events were dropped."""
        session, registration = self._runtime_of().sessions.registration(registration_id)
        self._call_on_registered(session, registration)

    def _install(self, change: Change) -> None:
        runtime = self._runtime_of()
        removed: list[str] = []
        if change.removed is not None:
            runtime.execute("QA.REGISTER", change.removed, "", "", "", 0)
            self._payloads.pop(change.removed, None)
            removed += runtime.sessions.remove(change.removed)
        if change.stored is not None:
            self._register(runtime, change.stored, removed)
        for registration_id in removed:
            runtime.history.forget_registration(registration_id)

    def _register(self, runtime: Runtime, stored: StoredSession, removed: list[str]) -> None:
        session = stored.restore()
        runtime.execute(*session.register_command(stored.payload))
        if session.registrations:
            self._payloads[stored.id] = stored
            removed += runtime.sessions.adopt(session)
        else:
            self._payloads.pop(stored.id, None)
            removed += runtime.sessions.remove(stored.id)

    def _run_on_registered(self, session_id: str) -> None:
        session = self._runtime_of().sessions.get(session_id)
        for registration in list(session.registrations.values()) if session else ():
            self._call_on_registered(session, registration)

    def _call_on_registered(self, session: Session | None, registration: Registration) -> None:
        if registration.on_registered is None:
            return
        token = current.set(Execution(registration.id, session))
        try:
            outcome = registration.on_registered()
            if inspect.iscoroutine(outcome):
                self._spawn(self._finish(registration.id, guarded(outcome, self._runtime_of().atomic)))
        except BaseException as error:  # also SystemExit: a function must not end the worker
            logger.error("onRegistered of %s failed: %s", registration.id, error_line(error))
        finally:
            current.reset(token)

    @staticmethod
    async def _finish(registration_id: str, outcome: Awaitable[Any]) -> None:
        try:
            await outcome
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            logger.error("onRegistered of %s failed: %s", registration_id, error_line(error))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(self._log_failure(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    @staticmethod
    async def _log_failure(work: Awaitable[None]) -> None:
        try:
            await work
        except GearsError as error:
            logger.error("registering from a function failed: %s", error)
