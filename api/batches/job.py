"""The rq job that runs the batches of one owner: of one API key, or of all clients without a key.

`qa-cluster jobs work` queues this job, by the name of its function, for each owner with open batches.
"""

from __future__ import annotations

import asyncio
import os
import signal

from qa_cluster.asking.connecting import target_of
from qa_cluster.batches.records import BatchLimits
from qa_cluster.batches.store import BatchStore
from qa_cluster.config import Settings, load

from .running import OwnerBatches

# The time after which the rq worker continues with the next owner.
SLICE_SECONDS = 60.0


def run(owner: str) -> bool:
    """Run the batches of an owner for `SLICE_SECONDS`, with the settings of the rq worker.

    Return False if the owner had no open batch, or if another rq worker is running the owner's batches.

    After SIGTERM, the job finishes the running requests of batches, and then sends SIGTERM to its own process again, so
    that rq's own handler gets the signal.
    """
    settings = load().settings
    former = signal.getsignal(signal.SIGTERM)
    try:
        found, stopped = asyncio.run(_run(settings, owner))
    finally:
        signal.signal(signal.SIGTERM, former)
    if stopped:
        os.kill(os.getpid(), signal.SIGTERM)
    return found


async def _run(settings: Settings, owner: str) -> tuple[bool, bool]:
    engine = await target_of(settings).open()
    try:
        store = BatchStore(engine.shards, BatchLimits.of(settings))
        batches = OwnerBatches(engine, store, owner)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, batches.stopping.set)
        found = await batches.run(SLICE_SECONDS)
        return found, batches.stopping.is_set()
    finally:
        await engine.aclose()
