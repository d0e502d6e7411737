"""Makes the other shards take part in a run, each by exactly one of its workers, over a bus that loses messages.

A worker begins a run once, whatever arrives how often: it remembers the newest ids. But a shard may get another worker,
which does not know what the one before has begun. So every worker has a name of its own, a request names the worker
that is to begin the run, and no other one does: it answers with its own name instead.

The origin names another worker only if it knows that the first one has not begun: it has sent that name once, and the
answer to that message came from the other worker. The bus does not double messages, so the first worker never got it.
In all other cases nobody can know, and the run ends with an error instead of being run twice.
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
    """A pickled `StartRun`, with what a shard needs to read it, and the name of the worker that is to begin it."""

    id: str
    session_id: str | None
    packed: bytes
    worker: str = ""


class Invitations:
    """Those of this worker and to this worker, whose name for other shards is `worker`."""

    def __init__(self, peers: Peers) -> None:
        self.worker = secrets.token_hex(8)
        self._peers = peers
        self._workers: dict[str, str] = {}
        self._begun = Recent()

    async def send(self, node: str, request: RunRequest) -> None:
        """Send a request until a worker of the shard says that it takes part; GearsError if none may any more."""
        worker = self._workers.get(node) or await self._name(node)
        while (taker := await self._offer(node, replace(request, worker=worker))) != worker:
            worker = taker
        self._workers[node] = worker

    async def _offer(self, node: str, request: RunRequest) -> str:
        """The named worker, which takes part; or another one, which may be named now: the first has not begun."""
        with self._peers.asked_once(node, "run", request) as first:
            await asyncio.wait([first], timeout=FIRST_TRY_SECONDS)
            present = ""
            if not first.done():
                self._workers.pop(node, None)  # it may be gone
                # a worker that starts takes what waits for it in order: it answers the first message before this one
                present = await self._name(node)
            if first.done():
                return _taker(first.result())
        if present == request.worker:  # a message was lost, or it still reads its sessions
            taker = await self._peers.ask(node, "run", request, math.inf, AGAIN_SECONDS)
            if taker == request.worker:
                return request.worker
        raise GearsError(
            f"TRYAGAIN the worker of shard {node} was replaced while run {request.id} began there: it may have begun,"
            " and is not run a second time"
        )

    async def _name(self, node: str) -> str:
        """The name of the worker that the shard has now, or as soon as it has one."""
        name: str = await self._peers.ask(node, "worker", None, math.inf, RESEND_SOON_SECONDS)
        return name

    def take(self, request: RunRequest) -> bool:
        """Whether this worker is to begin a run now: it is the one that is meant, and has not begun it before."""
        if request.worker != self.worker or request.id in self._begun:
            return False
        self._begun.add(request.id)
        return True


def _taker(answer: PeerAnswer) -> str:
    if answer.refusal is not None:
        raise GearsError(answer.refusal)
    return str(answer.value)
