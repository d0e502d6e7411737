"""TorchScript in the worker: these tests, and so the workers, need the extra `torch` in their environment."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness.servers import Server
from tests.harness.workers import WORKER

# long enough for a new worker, which has to import torch and load models, on a busy machine
JOB_TIMEOUT_MS = 120_000

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture(scope="module")
def torch_shard(shared_binary: Path) -> Iterator[Server]:
    """A server whose worker has torch, for all tests of a module."""
    with Server(shared_binary, {"qa.job-timeout-ms": JOB_TIMEOUT_MS}, worker=WORKER) as running:
        running.wait_ready()
        yield running
