"""New shards get the functions too: a worker asks each primary that is new to it for the sessions that it lacks.

A shard that joins a cluster starts empty, and gets slots only later; so the shards of `CLUSTER SLOTS` are looked at
every few seconds. What was written before the sessions came is repaired by their `onRegistered`. Streams that came with
new slots are read from then on.
"""

from __future__ import annotations

import asyncio
import logging

from qa_cluster.errors import ClusterError

from ..shard.failures import GearsError
from ..shard.host import Host
from ..shard.peers import Peers
from .registrar import Registrar
from .streams import Streams

logger = logging.getLogger(__name__)
LOOK_SECONDS = 2.0


class Neighbours:
    """Watches which primaries there are."""

    def __init__(self, host: Host, peers: Peers, registrar: Registrar, streams: Streams) -> None:
        self._host = host
        self._peers = peers
        self._registrar = registrar
        self._streams = streams
        self._known: set[str] = set()
        self._turn = 0
        self._own_slots: list[list[tuple[int, int]]] | None = None
        peers.on("sessions?", self.answer)
        peers.on("sessions", self.answered)

    async def watch(self) -> None:
        """Look for new primaries until cancelled."""
        while self._host.info.cluster:
            try:
                self._look()
            except (ClusterError, GearsError) as error:
                logger.info("the other shards cannot be asked now: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        topology, own = self._peers.topology(), self._host.info.shard_id
        if topology is None:
            return
        self._note_slots([topology.ranges_of(shard) for shard in topology.shards if shard.node_id == own])
        others = {shard.node_id for shard in topology.shards} - {own}
        self._known &= others
        unknown = sorted(others - self._known)
        if unknown:
            # one at a time: the first has them all; one that is silent does not keep the others from being asked
            node = unknown[self._turn % len(unknown)]
            self._turn += 1
            self._peers.send(node, "sessions?", self._registrar.session_ids)

    def _note_slots(self, slots: list[list[tuple[int, int]]]) -> None:
        if self._own_slots is not None and slots != self._own_slots:
            self._streams.look_again()
        self._own_slots = slots

    def answer(self, sender: str, known: list[str]) -> None:
        """Send a shard the sessions it lacks (message ``sessions?``)."""
        for change in self._registrar.missing(known):
            if change.stored is not None:
                self._peers.send(sender, "register", change)
                self._peers.send(sender, "registered", change.stored.id)
        self._peers.send(sender, "sessions", None)

    def answered(self, sender: str, _: None) -> None:
        """A shard has sent all it had (message ``sessions``)."""
        self._known.add(sender)
