"""Registers sessions on all shards or on none.

First, this shard installs and validates a new version of a session. Then all other shards install it. If a shard
refuses the new version or does not reply, all shards restore the old version. The message to restore is repeated until
all shards have acknowledged it, for at most `UNDO_SECONDS`. This shard uses a new version (`Installed.use`) only after
all shards have installed it, and then confirms the version to the other shards. A shard that has installed the version,
but gets no confirmation, uses the version after `CONFIRM_SECONDS`.

Replaced registrations, and registrations of a refused version, are unregistered in the module of every reachable shard.
So an unreachable shard cannot restore these registrations on other shards later (`reconciliation`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from ...shard.failures import GearsError, error_line
from ...shard.peers import Peers
from ..host.script_host import ScriptHost
from .installed import Installed
from .sessions import Registration, ScriptSession
from .stored_sessions import Change, StoredSession, dump

logger = logging.getLogger(__name__)
# the time within which every other shard must reply that it has installed a new version
ACKNOWLEDGE_SECONDS = 10.0
# the time for which `publish` waits for the calls of `onRegistered`
BEGIN_SECONDS = 10.0
UNDO_SECONDS = 30.0  # above the module's limit for a silent worker
# after this time, a shard uses a session without the confirmation that all shards have installed it
CONFIRM_SECONDS = 2 * ACKNOWLEDGE_SECONDS


class Registrar:
    """Installs sessions on this shard and sends them to the other shards."""

    def __init__(self, host: ScriptHost, peers: Peers, installed: Installed) -> None:
        self.installed = installed
        self._host = host
        self._peers = peers
        self._unconfirmed: dict[str, asyncio.TimerHandle] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._publishing = asyncio.Lock()
        self._numbers = itertools.count(time.time_ns())  # starts above the change numbers of the previous worker
        self._taken: dict[str, int] = {}
        self._undoing: asyncio.Task[None] | None = None

    def messages(self) -> dict[str, Callable[[str, Any], Any]]:
        """Return the handlers of messages from other shards. The keys are the kinds of the messages."""
        return {"register": self.take, "registered": self.confirmed, "replaced": self.replaced}

    @property
    def publishing(self) -> bool:
        """Whether this shard or another shard is publishing a session. Meanwhile, the shards may differ."""
        return self._publishing.locked() or bool(self._unconfirmed)

    async def publish(self, session: ScriptSession, replaced: str | None = None) -> None:
        """Register a session on all shards, or undo the change on all shards and raise GearsError with the reason.

        `replaced` is the id of another session that the session replaces; None: no other session.

        Return when each `onRegistered` on this shard has returned (a coroutine that it returns may still run), or after
        `BEGIN_SECONDS`.
        """
        async with self._publishing:
            await self._publish(session, replaced)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_SECONDS):
                await self.installed.until_started(session)

    async def _publish(self, session: ScriptSession, replaced: str | None = None) -> None:
        # Without this wait, repeated messages of the earlier undo could arrive after the new version.
        if self._undoing is not None:
            await asyncio.wait({self._undoing})
        payload = dump(session.registrations.values(), session.requirements)
        stored = StoredSession(session.id, session.description, session.script_source, payload)
        before, known = self.installed.stored(session.id), self.installed.session(session.id)
        fresh = tuple(name for name in session.registrations if known is None or name not in known.registrations)
        undo = [Change(before, None if before is not None else session.id, undone=fresh)]
        if replaced is not None and replaced != session.id:
            undo.append(Change(self.installed.stored(replaced), undone=fresh))
        change = Change(stored, replaced if replaced != session.id else None, next(self._numbers))
        others = self._peers.others()
        try:
            replaced_ids = self.installed.install(change, session)
        except BaseException:  # at this point, no other shard has received the session
            self._put_back(undo)
            raise
        try:
            await self._peers.request_all(others, "register", change, ACKNOWLEDGE_SECONDS)
        except BaseException:
            self._put_back(undo)
            self._unregister_or_log(list(fresh))
            self._undoing = self._spawn(self._undo_elsewhere(undo, others))
            raise
        self.installed.use(session.id)
        for node in others:
            self._peers.send(node, "registered", session.id)
            if replaced_ids:
                self._peers.send(node, "replaced", replaced_ids)
        self._unregister_or_log(replaced_ids)

    def _put_back(self, steps: list[Change]) -> None:
        for step in steps:
            try:
                if self._is_due(step):
                    self.installed.install(step)
            except GearsError as error:
                logger.error("an earlier version of a session could not be restored: %s", error)

    def _is_due(self, change: Change) -> bool:
        """Return whether to apply a change. A change that withdraws a version (`undone`) must not undo a later version
        from another shard. All other changes are applied.
        """
        session_id = change.stored.id if change.stored is not None else change.removed
        session = self.installed.session(session_id) if session_id is not None else None
        return not change.undone or session is None or not session.registrations.keys().isdisjoint(change.undone)

    def _unregister_or_log(self, registration_ids: list[str]) -> None:
        try:
            self.installed.unregister_permanently(registration_ids)
        except GearsError as error:
            logger.error("unregistered registrations may reappear: %s", error)

    async def _undo_elsewhere(self, steps: list[Change], others: list[str]) -> None:
        for change in steps:
            step = replace(change, number=next(self._numbers))
            sent = (self._peers.request_all([node], "register", step, UNDO_SECONDS) for node in others)
            for outcome in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(outcome, Exception):
                    logger.error("a shard did not restore the earlier version of a session: %s", error_line(outcome))

    def extend(self, session: ScriptSession, registration: Registration) -> None:
        """Add a registration to `session`, the session of the running function that has made the registration.

        All shards install the registration in the background. If this fails, the error is only logged.
        """
        self._spawn(self._extend(session, registration))

    async def _extend(self, session: ScriptSession, registration: Registration) -> None:
        async with self._publishing:
            now = self.installed.session(session.id) or session
            if now.dead:
                raise GearsError(
                    f"ERR session {session.id} has been replaced or unregistered: it cannot register functions any more"
                )
            registrations = {**now.registrations, registration.id: registration}
            await self._publish(replace(now, registrations=registrations))

    def take(self, sender: str, change: Change) -> None:
        """Apply a change that the worker of the shard `sender` sends; ignore a repeated change.

        A new version of a session is used after the confirmation of that worker, or after `CONFIRM_SECONDS`. An earlier
        version that this shard still knows is used at once, and needs no confirmation.
        """
        if change.number <= self._taken.get(sender, 0):
            return
        if self._is_due(change):
            new = change.stored is not None and not self.installed.is_known(change.stored)
            self.installed.install(change)
            self._expect_confirmation(sender, change, new=new)
        self.installed.unregister_permanently(list(change.undone))
        self._taken[sender] = change.number

    def _expect_confirmation(self, sender: str, change: Change, *, new: bool) -> None:
        if change.removed is not None:
            self._expect(change.removed, None)
        if change.stored is not None:
            # An earlier version is used at once. A new version waits for the confirmation of the sender.
            session_id = change.stored.id
            late = self._host.loop.call_later(CONFIRM_SECONDS, self.confirmed, sender, session_id) if new else None
            self._expect(session_id, late)

    def confirmed(self, sender: str, session_id: str) -> None:
        """Use an installed session and call its `onRegistered` functions.

        This method is called when all shards have installed the session (message ``registered``), or when
        `CONFIRM_SECONDS` have passed.
        """
        self._expect(session_id, None)
        self.installed.use(session_id)

    def replaced(self, sender: str, registration_ids: list[str]) -> None:
        """Unregister replaced registrations permanently, because all shards have installed the new version of their
        session (message ``replaced``).
        """
        self.installed.unregister_permanently(registration_ids)

    def _expect(self, session_id: str, late: asyncio.TimerHandle | None) -> None:
        before = self._unconfirmed.pop(session_id, None)
        if before is not None:
            before.cancel()
        if late is not None:
            self._unconfirmed[session_id] = late

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
