"""The worker and docs/worker-protocol.md name the same commands and jobs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import qa_cluster.gears
from qa_cluster.gears.process.jobs import JobTable
from qa_cluster.gears.process.model_jobs import add_model_jobs
from qa_cluster.gears.scripts.jobs.script_jobs import ScriptJobs
from qa_cluster.gears.shard.shard import PROTOCOL_VERSION

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "worker-protocol.md").read_text()
SOURCE = "".join(path.read_text() for path in Path(next(iter(qa_cluster.gears.__path__))).rglob("*.py"))


def first_cells(heading: str) -> set[str]:
    """The first word of the first cell of each row in a section's table."""
    section = DOCUMENT.split(heading)[1].split("\n## ")[0]
    return {match.split()[0] for match in re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)}


def test_version() -> None:
    assert DOCUMENT.startswith(f"# Worker protocol, version {PROTOCOL_VERSION}\n")


def test_every_job_kind_is_handled() -> None:
    functions: Any = None
    table = JobTable(functions)
    add_model_jobs(table, functions)
    ScriptJobs(functions).add_to(table)
    # the worker's service handles the messages of other shards
    assert {*table.handlers, *table.notifications, "cancel", "message"} == first_cells("## 4. Jobs")


def test_every_internal_command_is_used_and_no_other() -> None:
    used = set(re.findall(r'"(QA\.[A-Z]+)"', SOURCE))
    # another table of the section lists settings, in lower case
    assert used == {name for name in first_cells("## 3. Internal commands") if name.isupper()}
