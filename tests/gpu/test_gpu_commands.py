"""Models and scripts on a GPU by commands: results, many clients, time limits, and missing GPUs."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from tests.gears.onnx_file import add_model, loop_model, product_model, token_model
from tests.gpu.conftest import SETTINGS
from tests.harness.polling import eventually
from tests.harness.processes import inference_workers
from tests.harness.servers import Server, execute
from tests.harness.workers import WORKER
from tests.torch import models

ENTRY = "(tensors: List[Tensor], keys: List[str], args: List[str]):\n    "
SCRIPT = (
    f"def double{ENTRY}return tensors[0] * 2\n"
    f"def place{ENTRY}return torch.ones(3, device=tensors[0].device) * (1 if tensors[0].is_cuda else 0)\n"
    f"def through{ENTRY}return redisAI.model_execute(keys[0], tensors, 1)\n"
)
both = pytest.mark.parametrize(
    ("backend", "blob"), [("ONNX", add_model()), ("TORCH", models.file_of(models.Add()))], ids=["onnx", "torch"]
)


def set_tensors(shard: Server) -> None:
    for name, values in {"a": [1, 2], "b": [3, 4]}.items():
        execute(shard, "AI.TENSORSET", name, "FLOAT", 2, "VALUES", *values)


def values_of(shard: Server, key: str) -> Any:
    return execute(shard, "AI.TENSORGET", key, "VALUES")


@pytest.mark.parametrize("device", ["GPU", "GPU:0", "gpu:0"])
@both
def test_a_model_runs_on_the_gpu(shard: Server, backend: str, blob: bytes, device: str) -> None:
    set_tensors(shard)
    assert execute(shard, "AI.MODELSTORE", "m", backend, device, "BLOB", blob) == "OK"
    assert execute(shard, "AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c") == "OK"
    assert values_of(shard, "c") == [4.0, 6.0]
    assert device.upper() in execute(shard, "AI.MODELGET", "m", "META")


@both
def test_a_missing_gpu_is_refused(shard: Server, backend: str, blob: bytes) -> None:
    with pytest.raises(redis.ResponseError, match=r"unsupported device GPU:63: this host has"):
        execute(shard, "AI.MODELSTORE", "none", backend, "GPU:63", "BLOB", blob)
    assert execute(shard, "EXISTS", "none") == 0


def test_an_invalid_model_is_refused(shard: Server) -> None:
    with pytest.raises(redis.ResponseError, match="not a model that ONNX Runtime can load"):
        execute(shard, "AI.MODELSTORE", "bad", "ONNX", "GPU", "BLOB", b"nonsense")


def test_a_script_computes_on_the_gpu_and_calls_a_model_there(shard: Server) -> None:
    set_tensors(shard)
    words = ("ENTRY_POINTS", 3, "double", "place", "through", "SOURCE", SCRIPT)
    assert execute(shard, "AI.SCRIPTSTORE", "s", "GPU", *words) == "OK"
    assert execute(shard, "AI.SCRIPTEXECUTE", "s", "double", "INPUTS", 1, "a", "OUTPUTS", 1, "c") == "OK"
    assert values_of(shard, "c") == [2.0, 4.0]
    assert execute(shard, "AI.SCRIPTEXECUTE", "s", "place", "INPUTS", 1, "a", "OUTPUTS", 1, "c") == "OK"
    assert values_of(shard, "c") == [1.0, 1.0, 1.0]
    for backend, blob in (("ONNX", add_model()), ("TORCH", models.file_of(models.Add()))):
        for device in ("GPU", "CPU"):
            execute(shard, "AI.MODELSTORE", "m", backend, device, "BLOB", blob)
            call = ("AI.SCRIPTEXECUTE", "s", "through", "KEYS", 1, "m", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c")
            assert execute(shard, *call) == "OK"
            assert values_of(shard, "c") == [4.0, 6.0]


def test_a_dag_mixes_devices(shard: Server) -> None:
    set_tensors(shard)
    execute(shard, "AI.MODELSTORE", "there", "ONNX", "GPU", "BLOB", add_model())
    execute(shard, "AI.MODELSTORE", "here", "ONNX", "CPU", "BLOB", add_model())
    execute(shard, "AI.MODELSTORE", "torch", "TORCH", "GPU", "BLOB", models.file_of(models.Add()))
    words = ["AI.DAGEXECUTE", "LOAD", 2, "a", "b", "PERSIST", 1, "e"]
    for model, first, result in (("there", "a", "c"), ("here", "c", "d"), ("torch", "d", "e")):
        words += ["|>", "AI.MODELEXECUTE", model, "INPUTS", 2, first, "b", "OUTPUTS", 1, result]
    assert execute(shard, *words) == ["OK"] * 3
    assert values_of(shard, "e") == [10.0, 14.0]


def test_many_clients_share_batches_and_each_has_its_own_result(shard: Server) -> None:
    execute(shard, "AI.MODELSTORE", "m", "ONNX", "GPU", "BATCHSIZE", 16, "BLOB", product_model())
    execute(shard, "AI.MODELSTORE", "t", "ONNX", "GPU", "BLOB", token_model())

    def ask(number: int) -> None:
        ids = np.full((1, 1 + number % 7), number, "<i8")
        with shard.client(socket_timeout=120) as client:
            for name, array in (("ids", ids), ("mask", np.ones_like(ids))):
                key = f"{name}:{number}"
                client.execute_command("AI.TENSORSET", key, "INT64", *array.shape, "BLOB", array.tobytes())
            inputs = (f"ids:{number}", f"mask:{number}")
            client.execute_command("AI.MODELEXECUTE", "t", "INPUTS", 2, *inputs, "OUTPUTS", 1, f"out:{number}")
            found = client.execute_command("AI.TENSORGET", f"out:{number}", "VALUES")
            assert found == [float(number)] * ids.shape[1]

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(ask, range(400)))


def test_a_run_on_the_gpu_ends_at_its_time_limit(shared_binary: Path) -> None:
    with Server(shared_binary, {**SETTINGS, "qa.model-timeout-ms": 1000}, worker=WORKER) as server:
        server.wait_ready()
        execute(server, "AI.MODELSTORE", "m", "ONNX", "GPU", "BLOB", loop_model())
        execute(server, "AI.TENSORSET", "rounds", "INT64", "BLOB", np.array(1 << 60).tobytes())
        execute(server, "AI.TENSORSET", "go", "BOOL", "BLOB", b"\x01")
        execute(server, "AI.TENSORSET", "x", "FLOAT", 1, "VALUES", 1)
        with pytest.raises(redis.ResponseError):
            execute(server, "AI.MODELEXECUTE", "m", "INPUTS", 3, "rounds", "go", "x", "OUTPUTS", 1, "y")
        execute(server, "AI.TENSORSET", "rounds", "INT64", "BLOB", np.array(3).tobytes())
        assert execute(server, "AI.MODELEXECUTE", "m", "INPUTS", 3, "rounds", "go", "x", "OUTPUTS", 1, "y") == "OK"
        assert values_of(server, "y") == [1.0]


def test_inference_workers_share_the_gpu_and_are_restarted(shared_binary: Path) -> None:
    with Server(shared_binary, {**SETTINGS, "qa.inference-workers": 2}, worker=WORKER) as server:
        server.wait_ready()
        set_tensors(server)
        execute(server, "AI.MODELSTORE", "m", "ONNX", "GPU", "BLOB", add_model())
        call = ("AI.MODELEXECUTE", "m", "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c")
        assert execute(server, *call) == "OK"
        pid = int(server.info("server")["process_id"])
        before = inference_workers(pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        eventually(lambda: len(inference_workers(pid)) == 2 and before[0] not in inference_workers(pid))
        for _ in range(20):
            assert execute(server, *call) == "OK"
        assert values_of(server, "c") == [4.0, 6.0]


def test_models_are_on_the_gpu_again_after_restarts_of_worker_and_server(shared_binary: Path) -> None:
    settings = {**SETTINGS, "appendonly": "yes", "appendfsync": "always"}
    with Server(shared_binary, settings, worker=WORKER) as server:
        server.wait_ready()
        set_tensors(server)
        execute(server, "AI.MODELSTORE", "m", "ONNX", "GPU", "BLOB", add_model())
        execute(server, "AI.MODELSTORE", "t", "TORCH", "GPU", "BLOB", models.file_of(models.Add()))
        for end in (lambda: server.signal_worker(signal.SIGKILL), server.restart):
            pid = server.field("worker_pid")
            end()
            eventually(lambda pid=pid: server.field("worker_pid") not in (0, pid))  # type: ignore[misc]
            server.wait_ready()
            for model in ("m", "t"):
                assert execute(server, "AI.MODELEXECUTE", model, "INPUTS", 2, "a", "b", "OUTPUTS", 1, "c") == "OK"
                assert values_of(server, "c") == [4.0, 6.0]
