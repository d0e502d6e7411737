"""Installs and removes the registrations of this shard, in its module and in its worker.

When a new version of a session is installed, the old version stays in memory until the new version is used. If the new
version is withdrawn, the old version is restored with the globals of its functions. `onRegistered` runs on every shard,
and again after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...functions.own_functions import OwnFunctions
from ...shard.failures import GearsError, error_line
from ..host.script_host import ScriptHost
from ..runs.history import ExecutionHistory
from .on_registered import OnRegisteredCalls
from .script_source import forget_source
from .sessions import Registration, ScriptSession, SessionRegistry
from .stored_sessions import Change, StoredSession, with_ids
from .streams import Streams
from .timers import Timers

logger = logging.getLogger(__name__)
UNREGISTERED = "execution was aborted: its registration was removed with ABORTPENDING"


class Installed:
    """Installs and removes sessions. `names` are the globals of a script whose source is executed again."""

    def __init__(
        self,
        host: ScriptHost,
        *,
        functions: OwnFunctions,
        sessions: SessionRegistry,
        history: ExecutionHistory,
        streams: Streams,
        timers: Timers,
        on_registered: OnRegisteredCalls,
        names: Mapping[str, Any],
    ) -> None:
        self._host = host
        self._functions = functions
        self._sessions = sessions
        self._history = history
        self._streams = streams
        self._timers = timers
        self._on_registered = on_registered
        self._names = names
        self._payloads: dict[str, StoredSession] = {}
        # for each session id: the version before the last change, until the next call of `use` for any session
        self._previous: dict[str, tuple[StoredSession, ScriptSession]] = {}

    def session(self, session_id: str) -> ScriptSession | None:
        """Return an installed session with its functions; None if it is missing."""
        return self._sessions.get(session_id)

    def stored(self, session_id: str) -> StoredSession | None:
        """Return an installed session in the form for other shards; None if it is missing."""
        return self._payloads.get(session_id)

    def install(self, change: Change, live: ScriptSession | None = None) -> list[str]:
        """Apply a change; return the ids of the removed registrations.

        `live` is the session of the change if its script has just run on this shard. None: the functions of the session
        are loaded from `change.stored`.
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
            self._forget(registration_id)
        return removed

    def _register(self, stored: StoredSession, removed: list[str], live: ScriptSession | None) -> None:
        # The session is loaded even if `live` is given, to check that it can be loaded after a restart.
        restored = stored.restore(self._names)
        known = self._known_as(stored)
        session = known or live or restored
        while not self._is_registered(session, stored):
            gone = {name.decode() for name in self._host.execute("QA.UNREGISTERED", *session.registrations)}
            left = {name: registration for name, registration in session.registrations.items() if name not in gone}
            if not left:
                # All registrations of this version were unregistered. A session with the same id is a different version
                # and stays.
                return
            session = replace(session, registrations=left)
            stored = stored.restricted_to(session)
        if known is None:
            self._keep_previous(stored.id)
        if session.registrations:
            self._payloads[stored.id] = stored
            removed += self._adopt(session)
        else:
            self._payloads.pop(stored.id, None)
            removed += self._sessions.remove(stored.id)
        for registration in session.registrations.values() if known is not None else ():
            self._streams.start(session, registration)

    def _adopt(self, session: ScriptSession) -> list[str]:
        """Use a session for jobs instead of the session with the same id.

        Return the ids of the registrations that only the replaced session had.
        """
        for registration in session.registrations.values():
            if registration.own in self._functions.by_name:
                self._functions.add(registration.id, registration.own)
            elif registration.own:
                logger.error("this version has no function %s: run `qa-cluster up`", registration.own)
        return self._sessions.adopt(session)

    def _forget(self, registration_id: str) -> None:
        """Forget the function, the finished executions and the streams of a registration that was removed."""
        self._functions.remove(registration_id)
        self._history.forget_registration(registration_id)
        self._streams.stop(registration_id)

    def _is_registered(self, session: ScriptSession, stored: StoredSession) -> bool:
        """Register the session in the module, and return whether the module has accepted it.

        Return False if some of the session's registrations were unregistered meanwhile. After any other error, raise
        GearsError.
        """
        try:
            self._host.execute(*session.register_command(stored.payload))
        except GearsError as error:
            if not str(error).startswith("UNREGISTERED"):
                raise
            return False
        return True

    def is_known(self, stored: StoredSession) -> bool:
        """Return whether `stored` is the installed version of its session, or the previous version, if still kept."""
        return self._known_as(stored) is not None

    def _known_as(self, stored: StoredSession) -> ScriptSession | None:
        """Return the session, with the state of its functions, if `stored` is its installed or its previous version.

        Return None for any other version.
        """
        before = self._previous.get(stored.id)
        if before is not None and before[0] == stored:
            return before[1]
        return self._sessions.get(stored.id) if self._payloads.get(stored.id) == stored else None

    def _keep_previous(self, session_id: str) -> None:
        stored, session = self._payloads.get(session_id), self._sessions.get(session_id)
        if stored is not None and session is not None:
            self._previous[session_id] = (stored, session)

    def adopt(self, stored: StoredSession, orders: Mapping[str, int]) -> None:
        """Install and use a session that this shard has missed.

        Also apply the sender's `orders` (numbers of orders by registration id) to pause or resume registrations of the
        session.

        Do not permanently unregister the replaced registrations, because only the shard that has published the session
        may do this.
        """
        if self._payloads.get(stored.id) == stored:
            return
        self.install(Change(stored))
        self.order(orders)
        self.use(stored.id)

    def unregister_permanently(self, registration_ids: list[str]) -> None:
        """Unregister registrations permanently on this shard, including registrations that have not arrived yet."""
        if registration_ids:
            self._host.execute("QA.UNREGISTER", *registration_ids)

    def order(self, orders: Mapping[str, int]) -> None:
        """Apply orders of another shard to pause or resume registrations. Do not overwrite later orders of this shard.

        `orders` has the number of an order for each registration id. An odd number pauses the registration, and an even
        number resumes it.
        """
        if orders:
            self._host.execute("QA.PAUSE", *(word for order in orders.items() for word in order))

    def restore(self, entries: Iterable[list[bytes]]) -> None:
        """Restore and use the module's stored sessions at the start of the worker.

        Each entry has the id, the description, the source and the payload of a session, and then the ids of its
        registrations in the module. A session that cannot be restored is only logged.
        """
        for session_id, description, source, payload, *ids in entries:
            stored = StoredSession(session_id.decode(), description.decode(), source.decode(), payload)
            registered = [known.decode() for known in ids]
            for taken in (*registered, stored.id):
                self._host.ids.skip_past(taken)  # also the ids of sessions that cannot be restored
            try:
                session = with_ids(stored.restore(self._names), registered)
                stored = stored.restricted_to(session)
            except BaseException as error:  # a broken script must not prevent the start of the worker
                logger.error("session %s could not be restored: %s", stored.id, error_line(error))
                continue
            self._payloads[stored.id] = stored
            self._adopt(session)
            self.use(session.id)

    def unregister(self, registration_id: str, *, abort_pending: bool = False) -> None:
        """Remove a registration that the module has dropped, so that the registration is not restored later.

        Executions of the registration that have started continue. With `abort_pending`, executions that have not
        started are aborted.
        """
        if abort_pending:
            self._history.abort_pending(registration_id, UNREGISTERED)
        session = self._sessions.remove_registration(registration_id)
        self._forget(registration_id)
        if session is None:
            return
        if not session.registrations:
            forget_source(session.id)
            self._timers.stop_session(session.id)
            self._payloads.pop(session.id, None)
        elif (stored := self._payloads.get(session.id)) is not None:
            # This form is only for other shards. The functions on this shard keep their changed globals.
            self._payloads[session.id] = stored.restricted_to(session)

    def repair(self, registration_id: str) -> None:
        """Read the streams of a registration again, and call its `onRegistered` again.

        The module requests this after its full queue has dropped events of the registration. Raises GearsError if the
        registration is missing.
        """
        session, registration = self._sessions.registration(registration_id)
        self._activate(session, registration)

    def promoted(self) -> None:
        """Do the start-up work of a primary after the promotion of this server: read all streams again, and use all
        sessions, which calls their `onRegistered` functions again.
        """
        self._streams.promoted()
        for session in self._sessions.all():
            self.use(session.id)

    def use(self, session_id: str) -> None:
        """Start to use an installed session: read its streams, and run `onRegistered`.

        If the session registers qa-cluster's own functions, also make these functions check the whole shard, because
        the shard may have changed before the registration.
        """
        self._previous.clear()
        self._timers.stop_dead()
        session = self._sessions.get(session_id)
        registrations = list(session.registrations.values()) if session else []
        for registration in registrations:
            self._activate(session, registration)
        if any(registration.own for registration in registrations):
            self._functions.check_all()

    def _activate(self, session: ScriptSession | None, registration: Registration) -> None:
        if session is not None:
            self._streams.start(session, registration)
        if registration.on_registered is None:
            return
        # Otherwise the timers of an earlier call of `onRegistered` would run in parallel with the new timers.
        self._timers.stop_owned(registration.id)
        self._on_registered.call(session, registration)

    async def until_started(self, session: ScriptSession) -> None:
        """Wait until each `onRegistered` of a session has returned on this shard. Coroutines that it returns may still
        run.
        """
        for registration_id in list(session.registrations):
            await self._on_registered.until_returned(registration_id)
