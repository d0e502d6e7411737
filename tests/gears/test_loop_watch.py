"""How long the event loop of a worker has been blocked, as the thread of the heartbeat sees it."""

from __future__ import annotations

import asyncio
import time

from qa_cluster.gears.shard.loop_watch import MOST_SECONDS, LoopWatch


async def test_the_silence_of_a_blocked_loop_grows_until_it_runs_again() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 600)
    watch.begin()
    seen: list[float] = []

    def beat() -> None:
        for _ in range(20):
            seen.append(watch.silence())
            time.sleep(0.05)

    beating = asyncio.create_task(asyncio.to_thread(beat))
    while not seen:
        await asyncio.sleep(0.01)
    time.sleep(0.8)  # the loop is blocked
    await beating
    assert max(seen) > 0.4
    assert seen[-1] < max(seen)


async def test_time_in_which_the_heartbeat_is_late_does_not_count() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), 600)
    watch.silence()
    time.sleep(3 * MOST_SECONDS)
    assert watch.silence() < 2 * MOST_SECONDS
