"""The server configuration that loads the native module and tells it how to start its worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from qa_cluster.config import Settings

from .native import find_module

WORKER_MODULE = "qa_cluster.gears.worker"


def module_options(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Configuration lines for each server of a local cluster; finds (in a checkout builds) the module."""
    module = find_module(settings.module_path)
    python = settings.worker_python or sys.executable
    return (
        ("loadmodule", str(module)),
        ("qa.worker-command", f"{_word(python)} -m {WORKER_MODULE}"),
        ("qa.worker-threads", str(settings.worker_threads or _threads_per_shard(settings))),
        ("qa.max-queue", str(settings.module_queue_jobs)),
    )


def _threads_per_shard(settings: Settings) -> int:
    """The cores this process may use, shared among the shards; replicas do not read."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // settings.shards)


def _word(path: str) -> str:
    """A program's path as one word of a worker command (docs/worker-protocol.md, section 1).

    >>> _word("/opt/my python")
    '"/opt/my python"'
    """
    escaped = str(Path(path)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if " " in escaped else escaped
