"""A job of a registration that the worker does not have means: ask again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from qa_cluster.gears.process.jobs import Job, Jobs
from qa_cluster.gears.registrations.sessions import SessionRegistry
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.routing.shards import _WAIT_AND_RETRY


@pytest.mark.parametrize("kind", ["trigger", "event"])
async def test_it_is_an_error_that_clients_wait_for(kind: str) -> None:
    runtime: Any = SimpleNamespace(sessions=SessionRegistry(), models=None, registrar=None, peers=None, streams=None)
    jobs = Jobs(cast(Any, runtime))
    with pytest.raises(GearsError, match=r"^TRYAGAIN the registration 00-7 is being replaced or loaded$") as caught:
        await jobs.handlers[kind](Job(1, kind, 1, 1000, 0, [b"00-7", b"", b"", 0]))
    assert str(caught.value).split()[0] in _WAIT_AND_RETRY
