"""Models on an NVIDIA GPU: these tests need onnxruntime-gpu, torch for CUDA and a GPU that both can use."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import onnxruntime
import pytest

from tests.harness.servers import Server
from tests.harness.workers import WORKER

_HERE = "CUDAExecutionProvider" in onnxruntime.get_available_providers() and find_spec("torch")
collect_ignore_glob = [] if _HERE else ["test_*.py"]

# long enough for a worker that imports torch and uses a GPU for the first time
SETTINGS = {"qa.job-timeout-ms": 120_000}


@pytest.fixture(scope="module")
def shard(shared_binary: Path) -> Iterator[Server]:
    """A server for all tests of a module."""
    with Server(shared_binary, SETTINGS, worker=WORKER) as running:
        running.wait_ready()
        yield running
