"""Invites the other shards to a run over a bus that loses messages. Exactly one worker of each shard takes part.

A worker stores the newest ids of runs, so it starts a run once even if the request arrives twice. But a shard may get a
new worker, which does not know the runs of the previous worker. So every worker has a unique name, and a request names
the worker that must start the run. Any other worker replies with its own name and does not start the run.

The origin may name another worker only if the first worker has not started the run. This is certain in one case: the
origin has sent the request with the first name once, and the other worker has replied to this request. The bus does not
duplicate messages, so the first worker has never received the request. In all other cases, the run ends with an error,
so that it cannot run twice.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from dataclasses import dataclass, replace

from ...shard.failures import GearsError
from ...shard.messages import sent
from ...shard.peers import RESEND_SOON_SECONDS, PeerAnswer, Peers
from .delivery import Recent

FIRST_TRY_SECONDS = 0.5
AGAIN_SECONDS = 1.0


@sent
@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to take part in a run.

    Attributes:
        id: the id of the run.
        session_id: the id of the session to unpickle `packed` with; None if the run belongs to no session.
        packed: a pickled pair: the `StartRun`, and whether only the origin has records.
        worker: the name of the worker that must start the run; `Invitations.send` fills it in.
    """

    id: str
    session_id: str | None
    packed: bytes
    worker: str = ""


class Invitations:
    """Sends and receives requests to take part in a run. `worker` is the name of this worker for other shards."""

    def __init__(self, peers: Peers) -> None:
        self.worker = secrets.token_hex(8)
        self._peers = peers
        self._workers: dict[str, str] = {}
        self._begun = Recent()

    async def send(self, node: str, request: RunRequest) -> None:
        """Send a request to the shard `node` until a worker of this shard takes part.

        Raise GearsError if the worker refuses, or if the worker was replaced and the new worker must not be asked.
        """
        worker = self._workers.get(node) or await self._name(node)
        while (taker := await self._offer(node, replace(request, worker=worker))) != worker:
            worker = taker
        self._workers[node] = worker

    async def _offer(self, node: str, request: RunRequest) -> str:
        """Send the request; return the name of the answering worker.

        If the request has this name, the worker takes part in the run. Otherwise, the worker with the name in the
        request has not started the run, and the next request may name the answering worker. Raise GearsError if the
        answer is a refusal, or if it is not certain whether the run has started.
        """
        with self._peers.asked_once(node, "run", request) as first:
            await asyncio.wait([first], timeout=FIRST_TRY_SECONDS)
            present = ""
            if not first.done():
                self._workers.pop(node, None)  # the shard may have a new worker
                # a new worker processes pending messages in order, so it answers the request `run` before this request
                present = await self._name(node)
            if first.done():
                return _answering_worker(first.result())
        if present == request.worker:  # a message was lost, or the worker is restoring its sessions
            taker = await self._peers.ask(node, "run", request, math.inf, AGAIN_SECONDS)
            if taker == request.worker:
                return request.worker
        raise GearsError(
            f"TRYAGAIN the worker of shard {node} was replaced while run {request.id} started: the run may have started"
            " already, so it is not started a second time"
        )

    async def _name(self, node: str) -> str:
        """Return the name of the shard's worker; wait until the shard has a worker."""
        name: str = await self._peers.ask(node, "worker", None, math.inf, RESEND_SOON_SECONDS)
        return name

    def take(self, request: RunRequest) -> bool:
        """Return whether this worker must start a run: the request names this worker, and the run is new to it.

        The id of the run is stored, so a second request for the run gives False.
        """
        if request.worker != self.worker or request.id in self._begun:
            return False
        self._begun.add(request.id)
        return True


def _answering_worker(answer: PeerAnswer) -> str:
    if answer.refusal is not None:
        raise GearsError(answer.refusal)
    return str(answer.value)
