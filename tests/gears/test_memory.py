"""The worker's memory limit: the worker refuses a model that is too large, and loaded models still run."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.gears.onnx_file import add_model, table_model
from tests.harness.servers import Server
from tests.harness.workers import WORKER

pytestmark = pytest.mark.one_server("the limit applies to the worker")

LIMIT_MB = 450
SETTINGS = {"qa.worker-memory-mb": LIMIT_MB, "qa.model-processes": 0}


def test_a_model_that_does_not_fit_is_refused_without_other_effects(server_binary: Path) -> None:
    with Server(server_binary, SETTINGS, worker=WORKER) as shard:
        shard.wait_ready()
        worker = shard.field("worker_pid")
        large = table_model(180_000, 200, bytes(144_000_000))
        with shard.client(decode_responses=False) as client:
            client.execute_command("AI.MODELSTORE", "add", "ONNX", "CPU", "BLOB", add_model())
            client.execute_command("AI.TENSORSET", "a", "FLOAT", 2, "VALUES", 1, 2)
            for _ in range(2):  # the second load can use as much memory as the first
                with pytest.raises(redis.ResponseError, match=rf"144000110 bytes does not fit.*limit of {LIMIT_MB} MB"):
                    client.execute_command("AI.MODELSTORE", "large", "ONNX", "CPU", "BLOB", large)
                assert (
                    client.execute_command("AI.MODELEXECUTE", "add", "INPUTS", 2, "a", "a", "OUTPUTS", 1, "b") == b"OK"
                )
            assert client.exists("large") == 0
            small = table_model(10_000, 200, bytes(8_000_000))
            assert client.execute_command("AI.MODELSTORE", "small", "ONNX", "CPU", "BLOB", small) == b"OK"
        assert shard.field("worker_pid") == worker
