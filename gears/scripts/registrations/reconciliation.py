"""Gives all shards that can reach each other the same registrations and pauses, even if messages were lost.

Every few seconds a worker looks at the primaries of `CLUSTER SLOTS`. To those that it does not agree with yet it sends
a digest of its registrations. If the other shard has different ones, it answers with their list, and this shard
corrects itself: it unregisters what the other has unregistered, takes the sessions that it lacks (a shard that joins a
cluster starts with none) and takes later orders to pause or resume. It never corrects the other, which does the same by
itself. Once two shards agree, they exchange no more until one of them changes or has a new worker, which then asks.

While a session is being published, shards differ for a good reason, so they wait until that is over. Two shards that
still differ afterwards (a script fails on one of them) compare less and less often. Streams that came with new slots
are read from then on.
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
from .registration_digest import Entry, Standing
from .stored_sessions import StoredSession
from .streams import Streams

logger = logging.getLogger(__name__)
LOOK_SECONDS = 2.0
SESSION_SECONDS = 10.0
MAX_PAUSE_LOOKS = 32  # about a minute


@sent
@dataclass(frozen=True, slots=True)
class Comparison:
    """A shard's answer to the digest of another: its own registrations, if they differ."""

    settling: bool
    standing: Standing | None = None


@sent
@dataclass(frozen=True, slots=True)
class Offer:
    """A session of one shard, for another that lacks it."""

    stored: StoredSession
    standing: Standing


@dataclass(frozen=True, slots=True)
class Dispute:
    """Two shards still differ after this one has corrected itself: it asks again at look `due`, or after a change."""

    own: bytes
    theirs: bytes
    pause: int
    due: int


class Reconciliation:
    """Watches which primaries there are, and compares registrations with them."""

    def __init__(self, host: ScriptHost, peers: Peers, registrar: Registrar, streams: Streams) -> None:
        self._host = host
        self._peers = peers
        self._registrar = registrar
        self._installed = registrar.installed
        self._streams = streams
        self._generation = 0
        self._standing: Standing | None = None
        self._digest = b""
        # by shard, the digest that it had in common with this one when they last compared
        self._agreed: dict[str, bytes] = {}
        self._disputes: dict[str, Dispute] = {}
        # shards that have asked this one, including those without slots
        self._callers: set[str] = set()
        self._looks = 0
        self._own_slots: list[list[tuple[int, int]]] | None = None
        peers.on("registrations?", self.compare)
        peers.on("unregistered?", self.unregistered)
        peers.on("session?", self.offer)

    async def watch(self) -> None:
        """Compare with the other primaries every `LOOK_SECONDS` until cancelled."""
        while self._host.info.cluster:
            try:
                await self.look()
            except (ClusterError, GearsError) as error:
                logger.info("the other shards cannot be asked now: %s", error)
            except Exception:  # the next look may succeed; if the loop ended, the shard would miss changes for ever
                logger.exception("comparing with the other shards failed")
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Compare with the primaries that this shard does not agree with."""
        topology, own = self._peers.topology(), self._host.info.shard_id
        if topology is None:
            return
        self._note_slots([topology.ranges_of(shard) for shard in topology.shards if shard.node_id == own])
        self._looks += 1
        others = ({shard.node_id for shard in topology.shards} | self._callers) - {own}
        if self._refresh() is None:  # a replica compares only once it is a primary
            others.clear()
        self._agreed = {node: digest for node, digest in self._agreed.items() if node in others}
        self._disputes = {node: dispute for node, dispute in self._disputes.items() if node in others}
        due = [node for node in sorted(others) if self._is_due(node)]
        if not due or self._registrar.settling:
            return
        sent = self._digest
        asked = (self._peers.ask(node, "registrations?", sent, LOOK_SECONDS) for node in due)
        for node, answer in zip(due, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            try:
                await self._hear(node, sent, answer)
            except GearsError as error:  # the shard is down or cannot be reached: the next look asks again
                self._callers.discard(node)
                logger.debug("what shard %s has registered is not known: %s", node, error)

    def _is_due(self, node: str) -> bool:
        if self._agreed.get(node) == self._digest:
            return False
        dispute = self._disputes.get(node)
        return dispute is None or dispute.own != self._digest or dispute.due <= self._looks

    async def _hear(self, node: str, sent: bytes, answer: Comparison | BaseException) -> None:
        if isinstance(answer, BaseException):
            raise answer
        if answer.standing is not None:
            await self._follow(node, answer.standing)
        elif not answer.settling:
            self._agree(node, sent)

    async def _follow(self, node: str, theirs: Standing) -> None:
        """Correct this shard by the registrations of another."""
        own = self._refresh()
        if own is None or self._registrar.settling:
            return
        extra = sorted(own.ids - theirs.ids)
        if extra:
            self._installed.bury(await self._peers.ask(node, "unregistered?", extra, LOOK_SECONDS))
        for session_id in self._ahead(theirs):
            offer = await self._peers.ask(node, "session?", session_id, SESSION_SECONDS, SESSION_SECONDS)
            # both sides may have changed meanwhile
            if offer is not None and session_id in self._ahead(offer.standing):
                self._adopt(node, offer)
        own = self._refresh()
        if own is not None:
            self._installed.order(theirs.orders_after(own))
            self._note_dispute(node, theirs)

    def _ahead(self, theirs: Standing) -> list[str]:
        """The sessions that this shard must take now."""
        own = self._refresh()
        if own is None or self._registrar.settling:
            return []
        return theirs.sessions_ahead_of(own, self._buried(theirs.ids - own.ids))

    def _adopt(self, node: str, offer: Offer) -> None:
        session_id = offer.stored.id
        try:
            self._installed.adopt(offer.stored, offer.standing.orders_of(session_id))
        except BaseException as error:  # a script may raise anything, even SystemExit
            logger.error("session %s of shard %s could not be taken: %s", session_id, node, error_line(error))

    def _note_dispute(self, node: str, theirs: Standing) -> None:
        own = self._refresh()
        before = self._disputes.pop(node, None)
        if own is None or self._digest == theirs.digest:
            return
        same = before is not None and (before.own, before.theirs) == (self._digest, theirs.digest)
        pause = min(2 * before.pause, MAX_PAUSE_LOOKS) if before is not None and same else 1
        self._disputes[node] = Dispute(self._digest, theirs.digest, pause, self._looks + pause)

    def _agree(self, node: str, digest: bytes) -> None:
        self._agreed[node] = digest
        self._disputes.pop(node, None)

    def compare(self, sender: str, digest: bytes) -> Comparison:
        """Answer a shard that has sent the digest of its registrations (message ``registrations?``)."""
        own = self._refresh()
        # a worker that has not looked yet is still starting: it cannot offer its sessions yet
        if own is None or self._registrar.settling or not self._looks:
            return Comparison(settling=True)
        if digest == self._digest:
            self._agree(sender, digest)
            return Comparison(settling=False)
        self._callers.add(sender)
        self._agreed.pop(sender, None)
        dispute = self._disputes.get(sender)
        if dispute is not None and dispute.theirs != digest:
            del self._disputes[sender]
        return Comparison(settling=False, standing=own)

    def offer(self, _sender: str, session_id: str) -> Offer | None:
        """Answer a shard that lacks a session (message ``session?``); None if the session is not available now."""
        own, stored = self._refresh(), self._installed.stored(session_id)
        if own is None or stored is None or self._registrar.settling:
            return None
        return Offer(stored, Standing(tuple(entry for entry in own.entries if entry.session == session_id)))

    def unregistered(self, _sender: str, ids: list[str]) -> list[str]:
        """Those of these registrations that were unregistered on this shard (message ``unregistered?``)."""
        return sorted(self._buried(ids))

    def _buried(self, ids: Collection[str]) -> set[str]:
        return {name.decode() for name in self._host.execute_own("QA.UNREGISTERED", *ids)} if ids else set()

    def _refresh(self) -> Standing | None:
        """The module's current registrations; None while the server is a replica."""
        reply = self._host.execute_own("QA.REGISTRATIONS", self._generation)
        if reply is not None:
            self._generation, *fields = reply
            rows = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
            entries = tuple(Entry(session.decode(), name.decode(), order) for session, name, order in rows)
            self._standing = Standing(entries) if self._generation else None
            self._digest = self._standing.digest if self._standing is not None else b""
        return self._standing

    def _note_slots(self, slots: list[list[tuple[int, int]]]) -> None:
        if self._own_slots is not None and slots != self._own_slots:
            self._streams.look_again()
        self._own_slots = slots
