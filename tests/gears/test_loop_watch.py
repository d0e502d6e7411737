"""How long the event loop of a worker has been blocked, as the heartbeat thread measures it."""

from __future__ import annotations

import asyncio
import threading
import time

from qa_cluster.gears.shard.loop_watch import MOST_SECONDS, LoopWatch
from tests.harness.polling import eventually, eventually_async


async def test_the_silence_of_a_blocked_loop_grows_until_it_runs_again() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 600)
    watch.begin()
    seen: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            seen.append(watch.silence())
            time.sleep(0.05)

    beating = asyncio.create_task(asyncio.to_thread(beat))
    try:
        await eventually_async(lambda: seen)
        eventually(lambda: max(seen) > 0.4)  # the loop is blocked
        await eventually_async(lambda: seen[-1] < 0.4)
    finally:
        over.set()
        await beating


async def test_time_in_which_the_heartbeat_is_late_does_not_count() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 600)
    watch.silence()
    time.sleep(3 * MOST_SECONDS)
    assert watch.silence() < 2 * MOST_SECONDS
