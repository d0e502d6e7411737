"""What is registered on this shard: in its module, and in its worker with the functions.

A version of a session that was replaced is kept until the new one is used: when the new one is taken back, the old one
comes back with what its functions have in their globals. `onRegistered` runs on every shard, after a restart too: a
plain function at once, a coroutine in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..runs.history import ExecutionHistory
from ..shard.failures import GearsError, error_line
from ..shard.host import Host
from .on_registered import call_on_registered
from .script_source import forget_source
from .sessions import Registration, ScriptSession, SessionRegistry
from .stored_sessions import Change, StoredSession, with_ids
from .streams import Streams
from .timers import Timers

logger = logging.getLogger(__name__)


class Installed:
    """Takes sessions and drops them; a source that is run again finds `names`."""

    def __init__(
        self,
        host: Host,
        *,
        sessions: SessionRegistry,
        history: ExecutionHistory,
        streams: Streams,
        timers: Timers,
        names: Mapping[str, Any],
    ) -> None:
        self._host = host
        self._sessions = sessions
        self._history = history
        self._streams = streams
        self._timers = timers
        self._names = names
        self._payloads: dict[str, StoredSession] = {}
        # the version that a session had before the one that is being published
        self._previous: dict[str, tuple[StoredSession, ScriptSession]] = {}
        self._background: set[asyncio.Task[None]] = set()

    def session(self, session_id: str) -> ScriptSession | None:
        """A session with its functions."""
        return self._sessions.get(session_id)

    def stored(self, session_id: str) -> StoredSession | None:
        """A session as other shards get it."""
        return self._payloads.get(session_id)

    def install(self, change: Change, live: ScriptSession | None = None) -> list[str]:
        """Carry out a change and return the ids of the registrations that it drops.

        `live` is the session itself where the script has just run.
        """
        removed: list[str] = []
        if change.removed is not None:
            self._host.execute("QA.REGISTER", change.removed, "", "", "", 0)
            self._keep_previous(change.removed)
            self._payloads.pop(change.removed, None)
            removed += self._sessions.remove(change.removed)
        if change.stored is not None:
            self._register(change.stored, removed, live)
        for registration_id in removed:
            self._history.forget_registration(registration_id)
            self._streams.stop(registration_id)
        return removed

    def _register(self, stored: StoredSession, removed: list[str], live: ScriptSession | None) -> None:
        # restored also where it is not needed: what is stored must be a session again after a restart
        restored = stored.restore(self._names)
        known = self._known_as(stored)
        session = known or live or restored
        while not self._is_registered(session, stored):
            gone = {name.decode() for name in self._host.execute("QA.UNREGISTERED", *session.registrations)}
            left = {name: registration for name, registration in session.registrations.items() if name not in gone}
            if not left:
                return  # what is here under its name is not of this version
            session = replace(session, registrations=left)
            stored = stored.only(session)
        if known is None:
            self._keep_previous(stored.id)
        if session.registrations:
            self._payloads[stored.id] = stored
            removed += self._sessions.adopt(session)
        else:
            self._payloads.pop(stored.id, None)
            removed += self._sessions.remove(stored.id)
        for registration in session.registrations.values() if known is not None else ():
            self._streams.start(session, registration)

    def _is_registered(self, session: ScriptSession, stored: StoredSession) -> bool:
        """Register in the module; False when some of the registrations have been unregistered meanwhile."""
        try:
            self._host.execute(*session.register_command(stored.payload))
        except GearsError as error:
            if not str(error).startswith("UNREGISTERED"):
                raise
            return False
        return True

    def is_known(self, stored: StoredSession) -> bool:
        """Whether it is the version of a session that is in use, or the one before it."""
        return self._known_as(stored) is not None

    def _known_as(self, stored: StoredSession) -> ScriptSession | None:
        """The session with its functions' state, when what is stored is the version in use or the one before it."""
        before = self._previous.get(stored.id)
        if before is not None and before[0] == stored:
            return before[1]
        return self._sessions.get(stored.id) if self._payloads.get(stored.id) == stored else None

    def _keep_previous(self, session_id: str) -> None:
        stored, session = self._payloads.get(session_id), self._sessions.get(session_id)
        if stored is not None and session is not None:
            self._previous[session_id] = (stored, session)

    def adopt(self, stored: StoredSession, orders: Mapping[str, int]) -> None:
        """Take a session that this shard has missed, paused where the sender's `orders` say so, and use it.

        What it replaces is not unregistered: whether that version is the one to go is for its publisher to say.
        """
        if self._payloads.get(stored.id) == stored:
            return
        self.install(Change(stored))
        self.order(orders)
        self.use(stored.id)

    def bury(self, registration_ids: list[str]) -> None:
        """Unregister on this shard, for ever, also what is not here yet."""
        if registration_ids:
            self._host.execute("QA.UNREGISTER", *registration_ids)

    def order(self, orders: Mapping[str, int]) -> None:
        """Pause registrations or let them go on, by orders given on another shard; later ones given here hold."""
        if orders:
            self._host.execute("QA.PAUSE", *(word for order in orders.items() for word in order))

    def restore(self, entries: Iterable[list[bytes]]) -> None:
        """Take the sessions the module kept, at start."""
        for session_id, description, source, payload, *ids in entries:
            stored = StoredSession(session_id.decode(), description.decode(), source.decode(), payload)
            registered = [known.decode() for known in ids]
            for taken in (*registered, stored.id):
                self._host.ids.skip_past(taken)  # those of a session that cannot be restored are taken too
            try:
                session = with_ids(stored.restore(self._names), registered)
                stored = stored.only(session)
            except BaseException as error:  # one broken script must not keep the shard without a worker
                logger.error("session %s could not be restored: %s", stored.id, error_line(error))
                continue
            self._payloads[stored.id] = stored
            self._sessions.adopt(session)
            self.use(session.id)

    def unregister(self, registration_id: str) -> None:
        """The module dropped a registration: nothing that is kept here may bring it back."""
        session = self._sessions.remove_registration(registration_id)
        self._history.forget_registration(registration_id)
        self._streams.stop(registration_id)
        if session is None:
            return
        if not session.registrations:
            forget_source(session.id)
            self._timers.stop_session(session.id)
            self._payloads.pop(session.id, None)
        elif (stored := self._payloads.get(session.id)) is not None:
            # what other shards are given; those in use carry what their globals have become since
            self._payloads[session.id] = stored.only(session)

    def repair(self, registration_id: str) -> None:
        """Make up for events of a registration that were dropped."""
        session, registration = self._sessions.registration(registration_id)
        self._activate(session, registration)

    def promoted(self) -> None:
        """The shard is a primary now: what a primary does at its start is to be done."""
        self._streams.promoted()
        for session in self._sessions.all():
            self.use(session.id)

    def use(self, session_id: str) -> None:
        """All that is to happen before has happened: streams are read, and `onRegistered` runs."""
        self._previous.clear()
        self._timers.stop_dead()
        session = self._sessions.get(session_id)
        for registration in list(session.registrations.values()) if session else ():
            self._activate(session, registration)

    def _activate(self, session: ScriptSession | None, registration: Registration) -> None:
        if session is not None:
            self._streams.start(session, registration)
        if registration.on_registered is None:
            return
        # it may run again: what it started the last time would go on beside what it starts now
        self._timers.stop_owned(registration.id)
        task = call_on_registered(self._host, session, registration)
        if task is not None:
            self._background.add(task)
            task.add_done_callback(self._background.discard)
