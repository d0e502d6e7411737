"""RDB files with registrations, good and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.servers import Server, execute
from tests.harness.workers import fake_worker
from tests.module.registrations import NO_ARGS, dump, run

FUNCTIONS = fake_worker("functions", "--bare")
MODULE_AUX, MODULE_END, FILE_END, BEFORE_KEYS = 247, 0, 255, 1
UNSIGNED, STRING = 2, 5  # the types of a module's values
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
PAUSED = 1
SESSION = ["s", "description", "source", "payload"]
ENCODING = 4  # ENCODING_VERSION of functions/registry.c
REGISTRATIONS = {name: [name, "StreamReader", "async", "", f"{name}*", "", "", NO_ARGS, "{}"] for name in "ab"}


def length(number: int) -> bytes:
    """A length or number in the format of the file."""
    return bytes([number]) if number < 64 else b"\x81" + number.to_bytes(8, "big")


def values(*parts: int | str) -> bytes:
    """Numbers and texts in the format of a module's data."""
    return b"".join(
        length(UNSIGNED) + length(part)
        if isinstance(part, int)
        else length(STRING) + length(len(part)) + part.encode("latin-1")
        for part in parts
    )


def file_of(encoding: int, *parts: int | str) -> bytes:
    """An RDB file without keys, with these values as the module's data. Servers do not check a checksum of 0."""
    number = 0
    for letter in "qa-regstr":
        number = number << 6 | NAMES.index(letter)
    data = length(number << 10 | encoding) + values(BEFORE_KEYS) + values(*parts) + bytes([MODULE_END])
    return b"REDIS0009" + bytes([MODULE_AUX]) + data + bytes([FILE_END]) + bytes(8)


def registrations(*status: int, of: str = "user") -> list[int | str]:
    """A session with two streams of a class; `status` follows each."""
    rows = [[*fields, of, "0", *status] for fields in REGISTRATIONS.values()]
    return [1, *SESSION, len(rows), *[part for row in rows for part in row]]


def with_file(binary: Path, content: bytes) -> Server:
    """A server with such a file. It has not started yet."""
    server = Server(binary, worker=FUNCTIONS)
    (server.directory / "dump.rdb").write_bytes(content)
    return server


def test_a_file_loads(server_binary: Path) -> None:
    content = file_of(ENCODING, *registrations(PAUSED, 77), 2, "x", "y")
    with with_file(server_binary, content) as server:
        server.wait_ready()
        assert {name: one["RegistrationData"]["status"] for name, one in dump(server).items()} == {
            "a": "PAUSED",
            "b": "PAUSED",
        }
        (_, *fields), found = run(server, ["QA.REGISTRATIONS", 0], ["QA.UNREGISTERED", "x", "y", "a"])
        assert (fields[1::3], fields[2::3], found) == (["a", "b"], [77, 77], ["x", "y"])
        execute(server, "DEBUG", "RELOAD")


@pytest.mark.hostile
@pytest.mark.parametrize(
    "content",
    [
        file_of(ENCODING - 1, *registrations(PAUSED, 77), 0),
        file_of(ENCODING + 1, *registrations(PAUSED, 77), 0),
        file_of(ENCODING, *registrations(PAUSED, 2**60 + 1), 0),
        file_of(ENCODING, *registrations(PAUSED, 77, of="nobody"), 0),
        file_of(ENCODING, *registrations(PAUSED, 77), 10_001),
        file_of(ENCODING, *registrations(PAUSED, 77), 2, "x"),
    ],
    ids=["earlier encoding", "later encoding", "order", "class", "number of tombstones", "missing tombstone"],
)
def test_a_damaged_file_is_refused(server_binary: Path, content: bytes) -> None:
    server = with_file(server_binary, content)
    try:
        with pytest.raises(
            AssertionError, match=r"registrations (are damaged|have encoding version [35], this module reads version 4)"
        ):
            server.start()
    finally:
        server.__exit__(None, None, None)
