"""Commands of AI.DAGEXECUTE, and the keys that their tests use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from tests.harness.polling import eventually
from tests.harness.servers import Later, Server

DAG = "AI.DAGEXECUTE"
RUN = ["AI.MODELEXECUTE", "m", "INPUTS", 1, "a", "OUTPUTS", 1, "b"]


def store(client: redis.Redis, key: str, blob: str) -> None:
    client.execute_command("AI.MODELSTORE", key, "ONNX", "CPU", "BATCHSIZE", 4, "BLOB", blob)


def prepare(client: redis.Redis) -> None:
    """Store models with the names of their behaviours, a script, and two tensors."""
    store(client, "m", "identity")
    for word in ("fail", "held", "die", "busy"):
        store(client, word, word)
    client.execute_command("AI.SCRIPTSET", "s", "CPU", "SOURCE", "x")
    client.execute_command("AI.TENSORSET", "a", "INT32", 2, 1, "VALUES", 1, -2)
    client.execute_command("AI.TENSORSET", "c", "FLOAT", 1, "VALUES", 0.5)


def run(model: str, source: str = "a", target: str = "b") -> list[Any]:
    return ["AI.MODELEXECUTE", model, "INPUTS", 1, source, "OUTPUTS", 1, target]


def dag(*parts: Any) -> list[Any]:
    """The words of a command with these operations."""
    words: list[Any] = [DAG]
    for part in parts:
        words += ["|>", *part] if isinstance(part, list) else [part]
    return words


def numbers(client: redis.Redis, key: str) -> list[int]:
    flat = client.execute_command("AI.INFO", key)
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return [fields[name] for name in (b"duration", b"samples", b"calls", b"errors")]


def started(server: Server, command: Sequence[object]) -> Later:
    """Start a command and wait until its job runs. Repeat the command if it times out while its job is queued."""
    while True:
        later = Later(server, *command)
        eventually(lambda later=later: server.field("in_flight") == 1 or later.is_over())  # type: ignore[misc]
        if not later.is_over():
            return later
        assert later.result() == b"TIMEDOUT"
