"""Registering: a session's registrations go to this shard's module and to all other shards, or nowhere.

The own shard is the first to take a new version of a session (and validates it), then all others do; if one refuses or
is silent, all get the old version back, and get it again until they confirm. `onRegistered` then runs on every shard,
as it does after a restart: a plain function at once, a coroutine in the background.

Registrations that have been replaced, or taken back with a version that was refused, are unregistered in the module of
every shard that can be reached: a shard that has missed it cannot bring them back (`neighbours`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..runs.history import ExecutionHistory
from ..shard.failures import GearsError, error_line
from ..shard.host import Host
from ..shard.peers import Peers
from .on_registered import call_on_registered
from .script_source import forget_source
from .sessions import Registration, ScriptSession, SessionRegistry
from .stored_sessions import Change, StoredSession, dump, with_ids
from .streams import Streams
from .timers import Timers

logger = logging.getLogger(__name__)
ACKNOWLEDGE_SECONDS = 10.0
UNDO_SECONDS = 30.0  # longer than a worker that hangs is given
# after which a shard uses what it was given without having heard that all others have it
CONFIRM_SECONDS = 2 * ACKNOWLEDGE_SECONDS


class Registrar:
    """Installs sessions on this shard and passes them on; a source that is run again finds `names`."""

    def __init__(
        self,
        host: Host,
        peers: Peers,
        *,
        sessions: SessionRegistry,
        history: ExecutionHistory,
        streams: Streams,
        timers: Timers,
        names: Mapping[str, Any],
    ) -> None:
        self._host = host
        self._peers = peers
        self._sessions = sessions
        self._history = history
        self._streams = streams
        self._timers = timers
        self._names = names
        self._payloads: dict[str, StoredSession] = {}
        # the version that a session had before the one that is being published: taken up again when that is refused
        self._previous: dict[str, tuple[StoredSession, ScriptSession]] = {}
        self._unconfirmed: dict[str, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._publishing = asyncio.Lock()
        self._numbers = itertools.count(time.time_ns())  # above those of the worker before this one
        self._taken: dict[str, int] = {}
        self._undoing: asyncio.Task[None] | None = None

    async def publish(self, session: ScriptSession, replaced: str | None = None) -> None:
        """Register a session on all shards; on any failure nothing has changed and GearsError says why."""
        async with self._publishing:
            await self._publish(session, replaced)

    async def _publish(self, session: ScriptSession, replaced: str | None = None) -> None:
        if self._undoing is not None:  # what is sent again would arrive after the new version
            await asyncio.wait({self._undoing})
        payload = dump(session.registrations.values(), session.requirements)
        stored = StoredSession(session.id, session.description, session.script_source, payload)
        undo = [Change(self._payloads.get(session.id), None if session.id in self._payloads else session.id)]
        if replaced is not None and replaced != session.id:
            undo.append(Change(self._payloads.get(replaced)))
        change = Change(stored, replaced if replaced != session.id else None, next(self._numbers))
        others = self._peers.others()
        before = self._sessions.get(session.id)
        fresh: list[str] = []
        try:
            replaced_ids = self._install(change, session)
            fresh = [name for name in session.registrations if before is None or name not in before.registrations]
            await self._peers.request_all(others, "register", change, ACKNOWLEDGE_SECONDS)
        except BaseException:
            self._undo(undo, fresh)
            self._undoing = self._spawn(self._undo_elsewhere(undo, fresh, others))
            raise
        self._run_on_registered(session.id)
        for node in others:
            self._peers.send(node, "registered", session.id)
            if replaced_ids:
                self._peers.send(node, "unregistered", replaced_ids)
        self._bury_or_log(replaced_ids)

    def _undo(self, steps: list[Change], fresh: list[str]) -> None:
        for step in steps:
            try:
                self._install(step)
            except GearsError as error:
                logger.error("an earlier version of a session could not be put back: %s", error)
        self._bury_or_log(fresh)

    def _bury_or_log(self, registration_ids: list[str]) -> None:
        try:
            self.bury(registration_ids)
        except GearsError as error:
            logger.error("registrations that are no more may come back: %s", error)

    async def _undo_elsewhere(self, steps: list[Change], fresh: list[str], others: list[str]) -> None:
        for change in steps:
            await self._tell(others, "register", replace(change, number=next(self._numbers)))
        if fresh:
            await self._tell(others, "unregistered", fresh)

    async def _tell(self, others: list[str], kind: str, body: Any) -> None:
        sent = (self._peers.request_all([node], kind, body, UNDO_SECONDS) for node in others)
        for outcome in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.error("a shard did not put a session back: %s", error_line(outcome))

    def extend(self, session: ScriptSession, registration: Registration) -> None:
        """Add a registration that a running function asked for; the other shards follow in the background."""
        self._spawn(self._extend(session, registration))

    async def _extend(self, session: ScriptSession, registration: Registration) -> None:
        async with self._publishing:
            now = self._sessions.get(session.id) or session
            if now.dead:
                raise GearsError(f"ERR session {session.id} has been replaced or unregistered: it registers no more")
            registrations = {**now.registrations, registration.id: registration}
            await self._publish(replace(now, registrations=registrations))

    def take(self, sender: str, change: Change) -> None:
        """Install what another shard's worker published; used when that says so, or has died before it could."""
        if 0 < change.number <= self._taken.get(sender, 0):
            return
        new = change.stored is not None and self._known_as(change.stored) is None
        self._install(change)
        self._taken[sender] = max(change.number, self._taken.get(sender, 0))
        if change.removed is not None:
            self._expect(change.removed, None)
        if change.stored is not None:
            # what was in use before is back in use; anything else waits for its publisher's word
            self._expect(change.stored.id, self._confirm_late(sender, change.stored.id) if new else None)

    def _confirm_late(self, sender: str, session_id: str) -> asyncio.TimerHandle:
        return self._host.loop.call_later(CONFIRM_SECONDS, self.confirmed, sender, session_id)

    def confirmed(self, sender: str, session_id: str) -> None:
        """All shards have taken a session: its `onRegistered` may run."""
        self._expect(session_id, None)
        self._run_on_registered(session_id)

    def _expect(self, session_id: str, late: asyncio.TimerHandle | None) -> None:
        before = self._unconfirmed.pop(session_id, None)
        if before is not None:
            before.cancel()
        if late is not None:
            self._unconfirmed[session_id] = late

    @property
    def settling(self) -> bool:
        """Whether a session is being published, by this shard or by another: what shards have differs then."""
        return self._publishing.locked() or bool(self._unconfirmed)

    def stored(self, session_id: str) -> StoredSession | None:
        """A session as other shards get it."""
        return self._payloads.get(session_id)

    def adopt(self, stored: StoredSession, orders: Mapping[str, int]) -> None:
        """Take a session that this shard has missed, paused where the sender's `orders` say so, and use it."""
        if self._payloads.get(stored.id) == stored:
            return
        self.bury(self._install(Change(stored)))
        self.order(orders)
        self._run_on_registered(stored.id)

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
            self._run_on_registered(session.id)

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
            self._run_on_registered(session.id)

    def _install(self, change: Change, live: ScriptSession | None = None) -> list[str]:
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

    def _run_on_registered(self, session_id: str) -> None:
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
        outcome = call_on_registered(self._host, session, registration)
        if outcome is not None:
            self._spawn(outcome)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self._log_failure(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    @staticmethod
    async def _log_failure(work: Awaitable[None]) -> None:
        try:
            await work
        except GearsError as error:
            logger.error("registering from a function failed: %s", error)
