"""What the ranking keeps in memory is bounded, also for words that no text holds."""

from __future__ import annotations

import numpy as np
import pytest

from qa_cluster.gears.functions.answering import rank
from qa_cluster.gears.functions.state import state


def test_terms_without_postings_make_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    state.forget()
    index = state.of(rank._Index)
    monkeypatch.setattr(rank, "MAX_CACHED_POSTINGS", 100 * rank.TERM_OVERHEAD)
    here = [index.partition("a"), index.partition("b")]
    nothing = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32), 0)
    for number in range(1000):
        for partition in here:
            partition.keep(f"word{number}", nothing)
        rank._join(here, f"word{number}", ())
    assert len(index.joined) <= 100
    assert all(len(partition.postings) <= 51 for partition in here)
