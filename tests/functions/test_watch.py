"""The order in which a shard polls for changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.gears.functions.watch import ShardWatch


class AskedOthers(Exception):
    """Raised when the worker asks other shards, which may take seconds."""


async def test_a_new_worker_loads_its_readers_before_it_asks_other_shards() -> None:
    """Otherwise a replica that is promoted after a change of its lowest slot finds no reader under the new tag."""
    loaded: list[bool] = []

    async def ask() -> bool:
        raise AskedOthers

    shard: Any = SimpleNamespace(
        commands=None,
        slots=SimpleNamespace(current=lambda _age: None),
        partitions=SimpleNamespace(follow=ask),
    )
    readers: Any = SimpleNamespace(if_loaded=lambda: loaded.append(True))
    nothing: Any = None
    watch = ShardWatch(shard, readers, nothing, nothing, nothing, nothing, nothing)
    with pytest.raises(AskedOthers):
        await watch._poll()
    assert loaded
