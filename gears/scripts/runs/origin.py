"""Ends the parts of runs whose origin no longer exists: its worker was replaced, or its host is down.

A part may work for any time, so it cannot notice this by its progress. So every part asks its origin periodically
whether it leads the run. A new worker of the origin's shard does not know the runs of its predecessor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...shard.failures import GearsError
from ...shard.peers import Peers

ASK_SECONDS = 2.0
SILENCE_SECONDS = 20.0
"""An origin counts as gone after this time without an answer, or after the part's patience if that is longer."""


async def abandoned(
    peers: Peers, origin: str, run_id: str, patience_seconds: float, led: Callable[[], None] = lambda: None
) -> str:
    """Wait until the origin no longer leads a run; return the reason.

    Call `led` whenever the origin says that it does.
    """
    patience = max(SILENCE_SECONDS, patience_seconds)
    silent = 0.0
    # Requests are counted instead of time, because a worker that was stopped has itself missed the replies.
    while silent < patience:
        await asyncio.sleep(ASK_SECONDS)
        silent += ASK_SECONDS
        try:
            answer = (await peers.ask_all([origin], "leads", run_id, ASK_SECONDS, ASK_SECONDS)).get(origin)
        except GearsError:  # the origin has left the cluster, or the key is being changed
            continue
        silent = silent + ASK_SECONDS if answer is None else 0.0
        if answer is not None and answer.value is False:
            return f"shard {origin} no longer leads this run: it has ended there, or its worker was replaced"
        if answer is not None and answer.value is True:
            led()
    return f"shard {origin}, which leads this run, has not answered for {silent:g} s"
