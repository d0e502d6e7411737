"""AI.CONFIG, RedisAI's load arguments, and the settings that limit tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from tests.harness.programs import MODULE
from tests.harness.servers import Server
from tests.harness.workers import fake_worker

MIB = 1024 * 1024
DEFAULT_PATH = bytes(Path(MODULE).resolve().parent / "backends")


def test_configuration(ai: redis.Redis) -> None:
    assert ai.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE") == 511 * MIB
    assert ai.execute_command("AI.CONFIG", "GET", "BACKENDSPATH") == DEFAULT_PATH
    assert ai.execute_command("AI.CONFIG", "GET", "nothing") is None
    assert ai.execute_command("AI.CONFIG", "model_chunk_size", 64) == b"OK"
    assert ai.execute_command("AI.CONFIG", "BACKENDSPATH", "/some/path") == b"OK"
    assert ai.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE") == 64
    assert ai.execute_command("AI.CONFIG", "GET", "BACKENDSPATH") == b"/some/path"
    for backend in ("ONNX", "torch"):
        assert ai.execute_command("AI.CONFIG", "LOADBACKEND", backend, "x.so") == b"OK"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["WHAT", "x"], "^unsupported subcommand$"),
        (["BACKENDSPATH"], "^BACKENDSPATH: missing path argument$"),
        (["MODEL_CHUNK_SIZE"], "^MODEL_CHUNK_SIZE: missing chunk size$"),
        (["MODEL_CHUNK_SIZE", "x"], "^MODEL_CHUNK_SIZE: invalid chunk size$"),
        (["MODEL_CHUNK_SIZE", 0], "^MODEL_CHUNK_SIZE: invalid chunk size$"),
        (["MODEL_CHUNK_SIZE", -1], "^MODEL_CHUNK_SIZE: invalid chunk size$"),
        (["MODEL_CHUNK_SIZE", 63], "^MODEL_CHUNK_SIZE: invalid chunk size 63, the least is 64 bytes$"),
        (["LOADBACKEND", "TF", "x"], "^error loading backend: TF and TFLITE are left out, convert the model to ONNX"),
        (["LOADBACKEND", "WHAT", "x"], "^unsupported backend$"),
        (["LOADBACKEND", "ONNX"], "^wrong number of arguments"),
        (["GET"], "^wrong number of arguments"),
        ([], "^wrong number of arguments"),
    ],
)
def test_bad_input_changes_nothing(shared_ai: redis.Redis, words: list[str], text: str) -> None:
    with pytest.raises(redis.ResponseError, match=text):
        shared_ai.execute_command("AI.CONFIG", *words)
    assert shared_ai.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE") == 511 * MIB


def test_only_administrators_change_it(ai: redis.Redis, ai_server: Server) -> None:
    ai.execute_command("ACL", "SETUSER", "someone", "on", ">pw", "~*", "+@all", "-@admin", "+ai.config")
    with ai_server.client(username="someone", password="pw") as client:
        assert client.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE") == 511 * MIB
        for words in (["MODEL_CHUNK_SIZE", 64], ["BACKENDSPATH", "/x"], ["LOADBACKEND", "ONNX", "x"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command("AI.CONFIG", *words)
    assert ai.execute_command("AI.CONFIG", "GET", "BACKENDSPATH") == DEFAULT_PATH


ARGUMENTS = {
    "threads_per_queue": ("THREADS_PER_QUEUE", "qa.threads-per-queue", 3),
    "INTRA_OP_PARALLELISM": ("INTRA_OP_PARALLELISM", "qa.intra-op-parallelism", 5),
    "INTER_OP_PARALLELISM": ("INTER_OP_PARALLELISM", "qa.inter-op-parallelism", 2),
    "MODEL_EXECUTION_TIMEOUT": ("MODEL_EXECUTION_TIMEOUT", "qa.model-timeout-ms", 1000),
    "BACKEND_MEMORY_LIMIT": ("BACKEND_MEMORY_LIMIT", "qa.backend-memory-mb", 100),
}


def test_without_load_arguments_the_settings_of_the_module_are_shown(ai: redis.Redis) -> None:
    settings = {"ExecutionThreads": "qa.function-threads", **{name: setting for name, setting, _ in ARGUMENTS.values()}}
    for shown, setting in settings.items():
        assert ai.execute_command("RG.CONFIGGET", shown) == [int(ai.config_get(setting)[setting])]
    assert ai.execute_command("RG.CONFIGGET", "executionthreads", "MODEL_CHUNK_SIZE") == [32, 511 * MIB]
    ai.config_set("qa.threads-per-queue", 2)
    assert ai.execute_command("RG.CONFIGGET", "THREADS_PER_QUEUE") == [2]
    (refused,) = ai.execute_command("RG.CONFIGSET", "THREADS_PER_QUEUE", "many")
    assert b"must be a whole number" in refused


def test_load_arguments_reach_the_worker(server_binary: Path) -> None:
    given = " ".join(f"{name} {value}" for name, (_, _, value) in ARGUMENTS.items())
    with Server(
        server_binary,
        worker=fake_worker("functions"),
        module_args=f"{given} MODEL_CHUNK_SIZE 4096 BACKENDSPATH /some/path own value",
    ) as server:
        server.wait_ready()
        with server.client() as client:
            seen = json.loads(client.execute_command("RG.PYEXECUTE", '{"settings": 1}'))
            for shown, setting, value in ARGUMENTS.values():
                assert seen[setting] == value
                assert client.config_get(setting) == {setting: str(value)}
                assert client.execute_command("RG.CONFIGGET", shown) == [value]
            assert client.execute_command("AI.CONFIG", "GET", "MODEL_CHUNK_SIZE") == 4096
            assert client.execute_command("AI.CONFIG", "GET", "BACKENDSPATH") == "/some/path"
            assert client.execute_command("RG.CONFIGGET", "own") == ["value"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("THREADS_PER_QUEUE 0", "load argument THREADS_PER_QUEUE must be an integer from 1 to 64, got 0"),
        ("INTRA_OP_PARALLELISM x", "load argument INTRA_OP_PARALLELISM must be an integer from 0 to 4096, got x"),
        ("MODEL_EXECUTION_TIMEOUT 999", "MODEL_EXECUTION_TIMEOUT must be an integer from 1000 to 86400000, got 999"),
        ("MODEL_CHUNK_SIZE 1", "load argument MODEL_CHUNK_SIZE must be an integer from 64 to 1099511627776, got 1"),
        ("BACKEND_MEMORY_LIMIT -1", "load argument BACKEND_MEMORY_LIMIT must be an integer from 0 to 16777216, got -1"),
        ("TORCH", "load arguments must be name, value pairs, got 1 words"),
    ],
)
def test_bad_load_arguments_fail_the_load(server_binary: Path, arguments: str, text: str) -> None:
    with Server(server_binary, module=None, settings={"enable-module-command": "yes"}) as server:
        with server.client() as client, pytest.raises(redis.ResponseError, match="Error loading the extension"):
            client.execute_command("MODULE", "LOAD", str(MODULE), *arguments.split())
        assert text in server.log.read_text()


def test_size_of_tensors(ai: redis.Redis) -> None:
    ai.config_set("qa.max-tensor-mb", 1)
    assert ai.execute_command("AI.TENSORSET", "t", "INT8", MIB) == b"OK"
    for words in (["INT8", MIB + 1], ["INT32", MIB // 4 + 1], ["STRING", 2, "BLOB", b"x" * MIB + b"\0"]):
        with pytest.raises(
            redis.ResponseError, match=r"^tensor of \d+ bytes is larger than the limit of 1048576 bytes"
        ):
            ai.execute_command("AI.TENSORSET", "t", *words)
    assert len(ai.execute_command("AI.TENSORGET", "t", "BLOB")) == MIB


def test_zeros_respect_maxmemory(ai: redis.Redis) -> None:
    """A command of 40 bytes requests 200 MiB with a limit of 64 MiB. Stored tensors must still be loaded."""
    words = ["AI.TENSORSET", "t", "INT8", 200 * MIB]
    ai.config_set("maxmemory", 64 * MIB)
    for policy in ("noeviction", "allkeys-lru"):
        ai.config_set("maxmemory-policy", policy)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            ai.execute_command(*words)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            ai.execute_command("AI.DAGEXECUTE", "PERSIST", 1, "t", "|>", *words)
    assert not ai.exists("t")
    ai.config_set("maxmemory", 0)
    assert ai.execute_command("AI.TENSORSET", "t", "INT8", 2 * MIB) == b"OK"
    ai.config_set("qa.max-tensor-mb", 1)
    ai.execute_command("DEBUG", "LOADAOF")
    assert len(ai.execute_command("AI.TENSORGET", "t", "BLOB")) == 2 * MIB


def test_small_pieces_of_a_large_model(ai: redis.Redis) -> None:
    """A client cannot make the server reply with one string per byte."""
    blob = bytes(range(256)) * 4096
    ai.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", blob)
    ai.execute_command("AI.CONFIG", "MODEL_CHUNK_SIZE", 64)
    pieces = ai.execute_command("AI.MODELGET", "m", "BLOB")
    assert b"".join(pieces) == blob
    assert len(pieces) <= 1024
