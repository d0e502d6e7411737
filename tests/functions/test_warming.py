"""Warming of a reader whose model fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from qa_cluster.gears.functions.readers.warming import Warming


async def test_a_model_that_fails_to_warm_is_retried_after_a_delay() -> None:
    class Failing:
        tries = 0

        async def warm(self, shapes: list[tuple[int, int]], *, vectors: bool) -> None:
            self.tries += 1
            raise RuntimeError("Check failed in plugin.cpp:123")

    model = Failing()
    reader = SimpleNamespace(name="failing", warm=False, model=model, problem="", shapes=[(1, 16), (1, 48)])
    logged: list[str] = []
    shard: Any = SimpleNamespace(commands=SimpleNamespace(log=lambda text, level: logged.append(text)))
    readers: Any = SimpleNamespace(all_models=lambda: [reader])
    warming = Warming(shard, readers)

    for _ in range(10):
        warming.start_due()
        await asyncio.sleep(0)
    assert model.tries == 1
    assert reader.problem == "Check failed in plugin.cpp:123"
    assert len(logged) == 1
