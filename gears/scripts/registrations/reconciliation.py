"""Reconciles the registrations and pauses of all shards (anti-entropy), so that shards agree even if messages were
lost.

Every few seconds, a worker reads the primaries from `CLUSTER SLOTS`. It sends a digest of its registrations to each
primary that has not yet agreed with this digest. If the other shard's registrations differ, that shard replies with
their list, and this shard corrects itself:

- it removes registrations that the other shard has unregistered;
- it installs the sessions that it lacks (a shard that joins a cluster starts without sessions);
- it follows later orders to pause or resume.

Each shard corrects only itself. When two shards agree, they exchange no more messages until one shard changes or has a
new worker.

While a session is being published, shards differ, so they compare after the publication. If two shards differ
permanently (a script fails on one shard), they compare at growing intervals. After a change of slots, the worker reads
the streams that have arrived with the slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass

from qa_cluster.errors import ClusterError

from ...shard.failures import GearsError, error_line
from ...shard.messages import sent
from ...shard.peers import Peers
from ..host.script_host import ScriptHost
from .registrar import Registrar
from .registration_list import RegistrationEntry, RegistrationList
from .stored_sessions import StoredSession
from .streams import Streams

logger = logging.getLogger(__name__)
COMPARE_SECONDS = 2.0
SESSION_SECONDS = 10.0
MAX_PAUSE_ROUNDS = 32  # about a minute


@sent
@dataclass(frozen=True, slots=True)
class Comparison:
    """A shard's reply to another shard's digest: its own registrations if the digests differ.

    Attributes:
        publishing: whether the shard cannot compare now: it is publishing a session, is starting, or is a replica.
        registrations: the registrations of the shard; None if the digests are equal or the shard cannot compare now.
    """

    publishing: bool
    registrations: RegistrationList | None = None


@sent
@dataclass(frozen=True, slots=True)
class SessionOffer:
    """A session, sent to a shard that lacks the session or has an older version.

    Attributes:
        registrations: the registrations of this session on the sender, with their orders to pause or resume.
    """

    stored: StoredSession
    registrations: RegistrationList


@dataclass(frozen=True, slots=True)
class Difference:
    """Two shards that still differ after this shard has corrected itself.

    `own` is the digest of this shard, and `theirs` is the digest of the other shard.

    Attributes:
        pause: the number of rounds until this shard asks the other shard again. The number doubles, up to
            `MAX_PAUSE_ROUNDS`, as long as both digests stay the same.
        due: the number of the round in which this shard asks again. After a change of a digest, it asks in the next
            round.
    """

    own: bytes
    theirs: bytes
    pause: int
    due: int


class Reconciliation:
    """Reads the list of primaries, and compares registrations with them."""

    def __init__(self, host: ScriptHost, peers: Peers, registrar: Registrar, streams: Streams) -> None:
        self._host = host
        self._peers = peers
        self._registrar = registrar
        self._installed = registrar.installed
        self._streams = streams
        self._generation = 0
        self._registrations: RegistrationList | None = None
        self._digest = b""
        # for each node id of a shard that agreed at the last comparison: the common digest of both shards
        self._agreed: dict[str, bytes] = {}
        self._differences: dict[str, Difference] = {}
        # the shards that have sent a different digest, including shards without slots
        self._callers: set[str] = set()
        self._rounds = 0
        self._own_slots: list[list[tuple[int, int]]] | None = None
        peers.on("registrations?", self.compare)
        peers.on("unregistered?", self.unregistered)
        peers.on("session?", self.offer)

    async def watch(self) -> None:
        """Compare with the other primaries every `COMPARE_SECONDS` until cancelled. Outside a cluster, return at once.

        After an error, the next round compares again.
        """
        while self._host.info.cluster:
            try:
                await self.compare_all()
            except (ClusterError, GearsError) as error:
                logger.info("the other shards cannot be asked now: %s", error)
            except Exception:  # the loop must continue, because the next round may succeed
                logger.exception("the comparison of registrations with other shards failed")
            await asyncio.sleep(COMPARE_SECONDS)

    async def compare_all(self) -> None:
        """Compare with each primary whose registrations differ from this shard's registrations, or are unknown.

        Also compare with shards without slots that have sent a different digest. A shard that still differs after
        earlier comparisons is asked only in some of the rounds (`Difference`).
        """
        topology, own = self._peers.topology(), self._host.info.shard_id
        if topology is None:
            return
        self._record_slots([topology.ranges_of(shard) for shard in topology.shards if shard.node_id == own])
        self._rounds += 1
        others = ({shard.node_id for shard in topology.shards} | self._callers) - {own}
        if self._refresh() is None:  # a replica does not compare
            others.clear()
        self._agreed = {node: digest for node, digest in self._agreed.items() if node in others}
        self._differences = {node: difference for node, difference in self._differences.items() if node in others}
        due = [node for node in sorted(others) if self._is_due(node)]
        if not due or self._registrar.publishing:
            return
        sent = self._digest
        asked = (self._peers.ask(node, "registrations?", sent, COMPARE_SECONDS) for node in due)
        for node, answer in zip(due, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            try:
                await self._process(node, sent, answer)
            except GearsError as error:  # if a shard is down or cannot be reached, the next round asks it again
                self._callers.discard(node)
                logger.debug("the registrations of shard %s are unknown: %s", node, error)

    def _is_due(self, node: str) -> bool:
        if self._agreed.get(node) == self._digest:
            return False
        difference = self._differences.get(node)
        return difference is None or difference.own != self._digest or difference.due <= self._rounds

    async def _process(self, node: str, sent: bytes, answer: Comparison | BaseException) -> None:
        if isinstance(answer, BaseException):
            raise answer
        if answer.registrations is not None:
            await self._correct_by(node, answer.registrations)
        elif not answer.publishing:
            self._agree(node, sent)

    async def _correct_by(self, node: str, theirs: RegistrationList) -> None:
        """Correct this shard by the registrations `theirs` of the shard with the id `node`."""
        own = self._refresh()
        if own is None or self._registrar.publishing:
            return
        extra = sorted(own.ids - theirs.ids)
        if extra:
            self._installed.unregister_permanently(await self._peers.ask(node, "unregistered?", extra, COMPARE_SECONDS))
        for session_id in self._ahead(theirs):
            offer = await self._peers.ask(node, "session?", session_id, SESSION_SECONDS, SESSION_SECONDS)
            # both shards may have changed meanwhile
            if offer is not None and session_id in self._ahead(offer.registrations):
                self._adopt(node, offer)
        own = self._refresh()
        if own is not None:
            self._installed.order(theirs.orders_after(own))
            self._note_difference(node, theirs)

    def _ahead(self, theirs: RegistrationList) -> list[str]:
        """Return the ids of the sessions in the list `theirs` of another shard that this shard must install now.

        The result is empty while this server is a replica or a session is being published.
        """
        own = self._refresh()
        if own is None or self._registrar.publishing:
            return []
        return theirs.sessions_ahead_of(own, self._unregistered(theirs.ids - own.ids))

    def _adopt(self, node: str, offer: SessionOffer) -> None:
        session_id = offer.stored.id
        try:
            self._installed.adopt(offer.stored, offer.registrations.orders_of(session_id))
        except BaseException as error:  # a script may raise anything, even SystemExit
            logger.error("session %s of shard %s could not be installed: %s", session_id, node, error_line(error))

    def _note_difference(self, node: str, theirs: RegistrationList) -> None:
        own = self._refresh()
        before = self._differences.pop(node, None)
        if own is None or self._digest == theirs.digest:
            return
        same = before is not None and (before.own, before.theirs) == (self._digest, theirs.digest)
        pause = min(2 * before.pause, MAX_PAUSE_ROUNDS) if before is not None and same else 1
        self._differences[node] = Difference(self._digest, theirs.digest, pause, self._rounds + pause)

    def _agree(self, node: str, digest: bytes) -> None:
        self._agreed[node] = digest
        self._differences.pop(node, None)

    def compare(self, sender: str, digest: bytes) -> Comparison:
        """Answer the shard `sender`, which has sent the digest of its registrations (message ``registrations?``)."""
        own = self._refresh()
        # Before its first round of comparisons, a worker is still starting and cannot offer its sessions.
        if own is None or self._registrar.publishing or not self._rounds:
            return Comparison(publishing=True)
        if digest == self._digest:
            self._agree(sender, digest)
            return Comparison(publishing=False)
        self._callers.add(sender)
        self._agreed.pop(sender, None)
        difference = self._differences.get(sender)
        if difference is not None and difference.theirs != digest:
            del self._differences[sender]
        return Comparison(publishing=False, registrations=own)

    def offer(self, _sender: str, session_id: str) -> SessionOffer | None:
        """Answer a shard that lacks a session or has an older version (message ``session?``).

        None: this shard does not have the session or cannot send it now.
        """
        own, stored = self._refresh(), self._installed.stored(session_id)
        if own is None or stored is None or self._registrar.publishing:
            return None
        return SessionOffer(
            stored, RegistrationList(tuple(entry for entry in own.entries if entry.session == session_id))
        )

    def unregistered(self, _sender: str, ids: list[str]) -> list[str]:
        """Return those of the registrations `ids` that were unregistered on this shard (message ``unregistered?``)."""
        return sorted(self._unregistered(ids))

    def _unregistered(self, ids: Collection[str]) -> set[str]:
        return {name.decode() for name in self._host.execute_own("QA.UNREGISTERED", *ids)} if ids else set()

    def _refresh(self) -> RegistrationList | None:
        """Return the module's current registrations; None while the server is a replica."""
        reply = self._host.execute_own("QA.REGISTRATIONS", self._generation)
        if reply is not None:
            self._generation, *fields = reply
            rows = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
            entries = tuple(RegistrationEntry(session.decode(), name.decode(), order) for session, name, order in rows)
            self._registrations = RegistrationList(entries) if self._generation else None
            self._digest = self._registrations.digest if self._registrations is not None else b""
        return self._registrations

    def _record_slots(self, slots: list[list[tuple[int, int]]]) -> None:
        if self._own_slots is not None and slots != self._own_slots:
            self._streams.rescan()
        self._own_slots = slots
