"""Warming of a reader whose model fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from qa_cluster.gears.functions.readers import loaded, warming


async def test_a_model_that_fails_in_the_runtime_is_tried_again_after_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failing:
        tries = 0

        async def warm(self, shapes: list[tuple[int, int]]) -> None:
            self.tries += 1
            raise RuntimeError("Check failed in plugin.cpp:123")

    model = Failing()
    manifest = SimpleNamespace(shapes=SimpleNamespace(lengths=(16,), batches=(1,)), window_tokens=48)
    reader = SimpleNamespace(name="failing", warm=False, model=model, problem="", manifest=manifest)
    monkeypatch.setattr(loaded, "everyone", lambda: [reader])
    logged: list[str] = []
    monkeypatch.setattr(warming.rg, "log", lambda text, level: logged.append(text))

    for _ in range(10):
        warming.go_on()
        await asyncio.sleep(0)
    assert model.tries == 1
    assert reader.problem == "Check failed in plugin.cpp:123"
    assert len(logged) == 1
