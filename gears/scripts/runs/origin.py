"""Ends the parts of runs that nobody leads any more, because the worker of their origin, or its host, is gone.

The functions of a part may be at work for any time, so it cannot be told by its progress. Every part asks its origin
now and then whether it leads the run. A new worker of that shard does not know the runs of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...shard.failures import GearsError
from ...shard.peers import Peers

ASK_SECONDS = 2.0
SILENCE_SECONDS = 20.0
"""An origin that has answered nothing for so long, or for the part's patience if that is longer, counts as gone."""


async def abandoned(
    peers: Peers, origin: str, run_id: str, patience_seconds: float, led: Callable[[], None] = lambda: None
) -> str:
    """Return when a run is led by its origin no more; the reason in words. Whenever it is, call `led`."""
    patience = max(SILENCE_SECONDS, patience_seconds)
    silent = 0.0
    # questions are counted, and not the time: a worker that was stopped itself has not heard the answers
    while silent < patience:
        await asyncio.sleep(ASK_SECONDS)
        silent += ASK_SECONDS
        try:
            answer = (await peers.ask_all([origin], "leads", run_id, ASK_SECONDS, ASK_SECONDS)).get(origin)
        except GearsError:  # the origin has left the cluster, or the key is being changed
            continue
        silent = silent + ASK_SECONDS if answer is None else 0.0
        if answer is not None and answer.value is False:  # a worker of an earlier version refuses the question
            return f"shard {origin} leads this run no more: it has ended there, or its worker was replaced"
        if answer is not None and answer.value is True:
            led()
    return f"shard {origin}, which leads this run, has not answered for {silent:g} s"
