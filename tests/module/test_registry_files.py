"""RDB files with registrations: those that earlier versions of the module wrote, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.servers import Server, execute
from tests.harness.workers import fake_worker
from tests.module.registrations import NO_ARGS, dump, run

FUNCTIONS = fake_worker("functions", "--bare")
MODULE_AUX, MODULE_END, FILE_END, BEFORE_KEYS = 247, 0, 255, 1
UNSIGNED, STRING = 2, 5  # the kinds of a module's values
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
PAUSED = 1
SESSION = ["s", "description", "source", "payload"]
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
    """An RDB file without keys, with this as the module's own data; servers do not check a checksum of 0."""
    number = 0
    for letter in "qa-regstr":
        number = number << 6 | NAMES.index(letter)
    data = length(number << 10 | encoding) + values(BEFORE_KEYS) + values(*parts) + bytes([MODULE_END])
    return b"REDIS0009" + bytes([MODULE_AUX]) + data + bytes([FILE_END]) + bytes(8)


def registrations(*status: int) -> list[int | str]:
    """A session with two streams; `status` follows each."""
    rows = [[*fields, *status] for fields in REGISTRATIONS.values()]
    return [1, *SESSION, len(rows), *[part for row in rows for part in row]]


def with_file(binary: Path, content: bytes) -> Server:
    """A server with such a file, before its start."""
    server = Server(binary, worker=FUNCTIONS)
    (server.directory / "dump.rdb").write_bytes(content)
    return server


@pytest.mark.parametrize(
    ("content", "status", "orders", "buried"),
    [
        (file_of(1, *registrations()), "OK", [0, 0], []),
        (file_of(2, *registrations(PAUSED)), "PAUSED", [0, 0], []),
        (file_of(3, *registrations(PAUSED, 77), 2, "x", "y"), "PAUSED", [77, 77], ["x", "y"]),
    ],
    ids=["1", "2", "3"],
)
def test_files_of_all_encodings_load(
    server_binary: Path, content: bytes, status: str, orders: list[int], buried: list[str]
) -> None:
    with with_file(server_binary, content) as server:
        server.wait_ready()
        assert {name: one["RegistrationData"]["status"] for name, one in dump(server).items()} == {
            "a": status,
            "b": status,
        }
        (_, *fields), found = run(server, ["QA.REGISTRATIONS", 0], ["QA.UNREGISTERED", "x", "y", "a"])
        assert (fields[1::3], fields[2::3], found) == (["a", "b"], orders, buried)
        execute(server, "DEBUG", "RELOAD")  # the server writes the newest format


@pytest.mark.hostile
@pytest.mark.parametrize(
    "content",
    [
        file_of(4, *registrations(PAUSED, 77), 0),
        file_of(3, *registrations(PAUSED, 2**60 + 1), 0),
        file_of(3, *registrations(PAUSED, 77), 10_001),
        file_of(3, *registrations(PAUSED, 77), 2, "x"),
    ],
    ids=["later encoding", "order", "number of tombstones", "missing tombstone"],
)
def test_a_damaged_file_is_refused(server_binary: Path, content: bytes) -> None:
    server = with_file(server_binary, content)
    try:
        with pytest.raises(AssertionError, match=r"registrations (are damaged|of encoding version 4 cannot be read)"):
            server.start()
    finally:
        server.__exit__(None, None, None)
