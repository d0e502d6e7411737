"""What a shard looks at again and again, and in which order."""

from __future__ import annotations

import pytest

from qa_cluster.gears.functions import watch


class AskedOthers(Exception):
    """The other shards were asked, which may take seconds."""


async def test_a_new_worker_takes_up_its_readers_before_it_asks_other_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is promoted then, just after its lowest slot has changed, finds no reader under the new tag."""
    taken: list[bool] = []

    async def ask() -> bool:
        raise AskedOthers

    monkeypatch.setattr(watch.slots, "current", lambda _age: None)
    monkeypatch.setattr(watch.loaded, "if_loaded", lambda: taken.append(True))
    monkeypatch.setattr(watch.partitions, "follow", ask)
    with pytest.raises(AskedOthers):
        await watch._look()
    assert taken
