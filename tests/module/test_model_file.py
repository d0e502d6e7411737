"""The file of a model: the module stores the client's chunks, and the worker reads parts."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from tests.harness.servers import Server
from tests.module.persistence import rewrite_and_load_aof
from tests.module.registrations import run

SAVED_PIECE = 64 << 20


def store(client: redis.Redis, key: str, *chunks: bytes) -> None:
    assert client.execute_command("AI.MODELSTORE", key, "ONNX", "CPU", "BLOB", *chunks) == b"OK"


def test_the_worker_gets_parts(shared: Server) -> None:
    with shared.client() as client:
        client.execute_command("AI.MODELSTORE", "parts", "TORCH", "CPU", "BLOB", "abc", "", "de", "f")
        ((ref, *_),) = run(shared, ["QA.MODELREF", "parts"])
        assert run(shared, ["QA.MODEL", ref]) == [["TORCH", "CPU", 6]]
        asked = [(0, 6), (1, 3), (2, 1), (3, 4 << 20), (5, 100)]
        assert run(shared, *[["QA.MODELPART", ref, *part] for part in asked]) == ["abcdef", "bcd", "c", "def", "f"]
        wrong: list[list[Any]] = [[ref, 0, 0], [ref, 0, (4 << 20) + 1], [ref, 6, 1], [ref, -1, 1], [ref, "x", 1]]
        wrong += [["x", 0, 1], [ref + 1000, 0, 1], [ref, 0]]
        assert run(shared, *[["QA.MODELPART", *words] for words in wrong]) == [
            *["-ERR length must be between 1 and 4194304"] * 2,
            *["-ERR offset must be between 0 and 5"] * 3,
            "-ERR model ref must be a positive integer",
            f"-ERR no such model: {ref + 1000}",
            "-ERR wrong number of arguments for 'QA.MODELPART' command",
        ]
        client.delete("parts")
        assert run(shared, ["QA.MODELPART", ref, 0, 1]) == [f"-ERR no such model: {ref}"]


def test_chunks_do_not_matter(ai: redis.Redis) -> None:
    """The chunks consist of digits, because the server may store short strings of digits as numbers."""
    blob = b"bytes" + b"0123456789" * 100
    store(ai, "whole", blob)
    store(ai, "split", blob[:5], b"", b"012", *[blob[at : at + 1] for at in range(8, 100)], blob[100:])
    store(ai, "number", b"12", b"34")
    ai.copy("split", "copy")
    ai.execute_command("AI.TENSORSET", "t", "INT8", 1)

    def check() -> None:
        for key in ("whole", "split", "copy"):
            assert ai.execute_command("AI.MODELGET", key, "BLOB") == blob
            ai.execute_command("AI.MODELEXECUTE", key, "INPUTS", 1, "t", "OUTPUTS", 1, "o")
            assert ai.execute_command("AI.TENSORGET", "o", "BLOB") == blob
        assert ai.execute_command("AI.MODELGET", "number", "BLOB") == b"1234"
        digests = ai.execute_command("DEBUG", "DIGEST-VALUE", "whole", "split", "copy", "number")
        assert len(set(digests[:3])) == 1 and digests[0] != digests[3]

    check()
    for key in ("whole", "split"):
        assert len(blob) < int(str(ai.memory_usage(key))) < 50 * len(blob)
    ai.execute_command("DEBUG", "LOADAOF")
    check()
    rewrite_and_load_aof(ai)
    check()
    ai.execute_command("DEBUG", "RELOAD")
    check()
    ai.execute_command("AI.CONFIG", "MODEL_CHUNK_SIZE", 400)
    assert ai.execute_command("AI.MODELGET", "split", "BLOB") == [blob[:400], blob[400:800], blob[800:]]


def test_a_file_of_several_saved_pieces(ai: redis.Redis) -> None:
    """The pieces in an RDB file have other boundaries than the chunks."""
    blob = bytes(range(256)) * (SAVED_PIECE // 256) + b"the end"
    store(ai, "whole", blob)
    store(ai, "split", blob[:1000], blob[1000 : SAVED_PIECE + 3], blob[SAVED_PIECE + 3 :])
    digest = ai.execute_command("DEBUG", "DIGEST-VALUE", "whole")
    assert ai.execute_command("DEBUG", "DIGEST-VALUE", "split") == digest
    ai.config_set("rdbcompression", "no")
    ai.execute_command("DEBUG", "RELOAD")
    assert ai.execute_command("DEBUG", "DIGEST-VALUE", "split", "whole") == digest * 2
    assert ai.execute_command("AI.MODELGET", "split", "BLOB") == blob


def test_chunks_also_belong_to_clients(ai: redis.Redis, ai_server: Server) -> None:
    """The server deletes keys, also in its threads, while clients with the same arguments are blocked or disconnect."""
    chunks = [bytes([n]) * 150_000 for n in range(10)]
    over = threading.Event()

    def disturb() -> None:
        commands: list[list[Any]] = [
            ["UNLINK", "m"],
            ["COPY", "m", "n", "REPLACE"],
            ["DEL", "m"],
            ["FLUSHALL", "ASYNC"],
        ]
        with ai_server.client() as client:
            while not over.is_set():
                for command in commands:
                    client.execute_command(*command)

    def hang_up() -> None:
        while not over.is_set():
            with ai_server.client(socket_timeout=0.005) as client:
                try:
                    client.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", *chunks)
                except redis.TimeoutError:
                    continue

    threads = [threading.Thread(target=target) for target in (disturb, hang_up)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            store(ai, "m", *chunks)
            with pytest.raises(redis.ResponseError, match="No graph"):
                ai.execute_command("AI.MODELSTORE", "m", "ONNX", "CPU", "BLOB", "ref", "use")
    finally:
        over.set()
        for thread in threads:
            thread.join()
    store(ai, "m", *chunks)
    assert ai.execute_command("AI.MODELGET", "m", "BLOB") == b"".join(chunks)
