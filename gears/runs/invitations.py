"""Makes the other shards take part in a run, each by exactly one of its workers, over a bus that loses messages.

A worker begins a run once, whatever arrives how often: it remembers the newest ids. But a shard may get another worker,
which does not know what the one before has begun. So every worker has a name of its own. A run is offered to a worker
by its name: the first message of an offer reaches one worker at most, and any worker may take it; a message that is
sent again counts only for the worker with that name. Where a shard has another worker by then, nobody can know whether
the one before has begun, and the run ends with an error instead of being run twice.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

from ..shard.failures import GearsError
from ..shard.messages import sent
from ..shard.peers import RESEND_SOON_SECONDS, Peers
from .delivery import Recent

FIRST_TRY_SECONDS = 0.5
AGAIN_SECONDS = 1.0


@sent
@dataclass(frozen=True, slots=True)
class RunRequest:
    """A pickled `StartRun`, with what a shard needs to read it or to refuse it.

    Attributes:
        worker: the name of the worker for which it is.
        again: whether it has been sent before, so that another worker may have begun it.
    """

    id: str
    session_id: str | None
    packed: bytes
    worker: str = ""
    again: bool = False


class Invitations:
    """Those of this worker and to this worker, whose name for other shards is `worker`."""

    def __init__(self, peers: Peers) -> None:
        self.worker = secrets.token_hex(8)
        self._peers = peers
        self._workers: dict[str, str] = {}
        self._begun = Recent()

    async def send(self, node: str, request: RunRequest) -> None:
        """Send a request until a worker of the shard says that it takes part; GearsError if it refuses."""
        worker = self._workers.get(node, "")
        if not worker:
            worker = await self._peers.ask(node, "worker", None, math.inf, RESEND_SOON_SECONDS)
        request = replace(request, worker=worker)
        answers = await self._peers.ask_all([node], "run", request, FIRST_TRY_SECONDS, FIRST_TRY_SECONDS)
        if node in answers:
            answer = answers[node]
            if answer.refusal is not None:
                raise GearsError(answer.refusal)
            worker = answer.value
        else:
            self._workers.pop(node, None)  # it may be gone
            worker = await self._peers.ask(node, "run", replace(request, again=True), math.inf, AGAIN_SECONDS)
        self._workers[node] = worker

    def take(self, shard_id: str, request: RunRequest) -> bool:
        """Whether this worker is to begin the run now: False if it has; GearsError if another one may have."""
        if request.id in self._begun:
            return False
        if request.again and request.worker != self.worker:
            raise GearsError(
                f"TRYAGAIN the worker of shard {shard_id} was replaced while run {request.id} began there: it may have"
                " begun, and is not run a second time"
            )
        self._begun.add(request.id)
        return True
