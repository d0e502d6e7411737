"""A job of a registration that the worker does not have ends with an error that asks for a retry."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qa_cluster.gears.process.jobs import Job, JobTable
from qa_cluster.gears.scripts.jobs.script_jobs import ScriptJobs
from qa_cluster.gears.scripts.registrations.sessions import SessionRegistry
from qa_cluster.gears.shard.failures import GearsError
from qa_cluster.routing.shards import _WAIT_AND_RETRY


@pytest.mark.parametrize("kind", ["trigger", "event"])
async def test_the_job_ends_with_a_retryable_error(kind: str) -> None:
    runtime: Any = SimpleNamespace(sessions=SessionRegistry(), functions=SimpleNamespace(registered=lambda _: None))
    table = JobTable(runtime.functions)
    ScriptJobs(runtime).add_to(table)
    job = Job(1, kind, 1, 1000, 0, [b"00-7", b"", b"", 0])
    with pytest.raises(GearsError, match=r"^TRYAGAIN the registration 00-7 is being replaced or loaded$") as caught:
        await table.handler(job)(job)
    assert str(caught.value).split()[0] in _WAIT_AND_RETRY
