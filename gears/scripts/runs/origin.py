"""Detects that the origin of a run no longer leads the run, so that the other shards can end their parts.

The *origin* is the shard where the run started. The origin stops leading a run when the run has ended there, or when
its worker was replaced. If the origin is down, it does not answer.

A part may work for an unlimited time, so its progress does not show whether the origin is gone. So every part
periodically asks its origin whether the origin still leads the run. A new worker of the origin's shard replies that it
does not lead the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...shard.failures import GearsError
from ...shard.peers import Peers

ASK_SECONDS = 2.0
SILENCE_SECONDS = 20.0
"""An origin counts as gone after this time without an answer, or after `patience_seconds` if that is longer."""


async def abandoned(
    peers: Peers, origin: str, run_id: str, patience_seconds: float, led: Callable[[], None] = lambda: None
) -> str:
    """Wait until the origin does not lead a run any more, or does not answer for too long; return the reason as text.

    Args:
        origin: the node id of the origin.
        patience_seconds: the time without an answer after which the origin counts as gone, if this time is longer than
            `SILENCE_SECONDS`.
        led: is called after each reply that the origin leads the run.
    """
    patience = max(SILENCE_SECONDS, patience_seconds)
    silent = 0.0
    # `silent` adds up the waiting times of unanswered requests. A clock would also count the time in which this worker
    # was stopped and missed replies.
    while silent < patience:
        await asyncio.sleep(ASK_SECONDS)
        silent += ASK_SECONDS
        try:
            answer = (await peers.ask_all([origin], "leads", run_id, ASK_SECONDS, ASK_SECONDS)).get(origin)
        except GearsError:  # the origin has left the cluster, or the bus key is being changed
            continue
        silent = silent + ASK_SECONDS if answer is None else 0.0
        if answer is not None and answer.value is False:
            return f"shard {origin} no longer leads this run: the run has ended there, or the worker was replaced"
        if answer is not None and answer.value is True:
            led()
    return f"shard {origin}, which leads this run, has not answered for {silent:g} s"
