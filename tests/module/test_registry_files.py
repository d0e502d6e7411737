"""RDB files with registrations, good and damaged ones."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path

import pytest
import redis

from tests.harness.polling import eventually
from tests.harness.servers import Server, bus_key_file, execute
from tests.harness.workers import fake_worker
from tests.module.bus_packets import key_of
from tests.module.persistence import without_tags
from tests.module.registrations import NO_ARGS, dump, register, run, stream_reader

FUNCTIONS = fake_worker("functions", "--bare")
MODULE_AUX, MODULE_END, FILE_END, BEFORE_KEYS = 247, 0, 255, 1
NUMBER, STRING = 2, 5  # the types of a module's values
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
PAUSED = 1
SESSION = ["s", "description", "source", "payload"]
ENCODING, UNSIGNED = 5, 4  # ENCODING_VERSION and UNSIGNED_VERSION of functions/registry_files.c
REGISTRATIONS = {name: [name, "StreamReader", "async", "", f"{name}*", "", "", NO_ARGS, "{}"] for name in "ab"}


def length(number: int) -> bytes:
    """A length or number in the format of the file."""
    return bytes([number]) if number < 64 else b"\x81" + number.to_bytes(8, "big")


def values(*parts: int | str) -> bytes:
    """Numbers and texts in the format of a module's data."""
    return b"".join(
        length(NUMBER) + length(part)
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


def registrations(*status: int, of: str = "user", key: bytes | None = None) -> list[int | str]:
    """A session with two registrations on streams, each followed by `status`. The session's tag is the last part."""
    rows = [[*fields, of, "0"] for fields in REGISTRATIONS.values()]
    tag = tag_of([*SESSION, *[field for row in rows for field in row]], key or key_of(bus_key_file()))
    return [1, *SESSION, len(rows), *[part for row in rows for part in (*row, *status)], tag.decode("latin-1")]


def tag_of(fields: list[str], key: bytes) -> bytes:
    """The tag by which the module recognizes a session."""
    secret = blake2b(b"qa-cluster stored registrations", key=key, digest_size=32).digest()
    tagged = b"".join(len(field).to_bytes(8, "little") + field.encode() for field in fields)
    return blake2b(tagged, key=secret, digest_size=32).digest()


def with_file(binary: Path, content: bytes, **settings: object) -> Server:
    """A server that will load this RDB file. The caller starts the server."""
    server = Server(binary, settings, worker=FUNCTIONS)
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
        assert set(dump(server)) == {"a", "b"}


FOREIGN = {
    "unsigned": file_of(UNSIGNED, *registrations(PAUSED, 77)[:-1], 1, "x"),
    "empty tag": file_of(ENCODING, *registrations(PAUSED, 77)[:-1], "", 1, "x"),
    "another key": file_of(ENCODING, *registrations(PAUSED, 77, key=b"k" * 32), 1, "x"),
}


@pytest.mark.hostile
@pytest.mark.parametrize("content", FOREIGN.values(), ids=list(FOREIGN))
def test_registrations_without_a_signature_of_the_cluster_are_loaded_only_once_on_request(
    server_binary: Path, content: bytes
) -> None:
    """The server signs adopted registrations in its RDB file and in a new append-only file."""
    with with_file(server_binary, content) as server:
        server.wait_ready()
        assert dump(server) == {}
        assert server.field("sessions_refused") == 1
        assert "the 2 registrations of session s were not loaded" in server.output()
        assert "qa.adopt-registrations yes" in server.output()
        with pytest.raises(redis.ResponseError, match="only in the configuration file"):
            execute(server, "CONFIG", "SET", "qa.adopt-registrations", "yes")
    with with_file(server_binary, content, **{"qa.adopt-registrations": "yes"}) as server:
        server.wait_ready()
        assert set(dump(server)) == {"a", "b"}
        assert "the 2 registrations of session s were adopted" in server.output()
        execute(server, "CONFIG", "SET", "qa.adopt-registrations", "no")
        execute(server, "DEBUG", "RELOAD")
        assert set(dump(server)) == {"a", "b"}
        assert server.field("sessions_refused") == 0


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_an_adopted_append_only_file_is_rewritten(server_binary: Path, preamble: str) -> None:
    adopt = {"qa.adopt-registrations": "yes"}
    settings: dict[str, object] = {"appendonly": "yes", "aof-use-rdb-preamble": preamble}
    with Server(server_binary, settings | adopt, worker=FUNCTIONS) as server:
        server.wait_ready()
        register(server, "s", stream_reader("a", "a*"))
        server.stop()
        [log] = (server.directory / "appendonlydir").glob("*.incr.aof")
        log.write_bytes(without_tags(log.read_bytes()))
        server.start()
        assert "a" in dump(server)
        eventually(lambda: not log.exists())  # the new file is complete
        file = server.directory / "server.conf"
        file.write_text(file.read_text().replace('qa.adopt-registrations "yes"', ""))
        server.restart()
        assert "a" in dump(server)
        assert server.field("sessions_refused") == 0


@pytest.mark.hostile
@pytest.mark.parametrize(
    "content",
    [
        file_of(UNSIGNED - 1, *registrations(PAUSED, 77), 0),
        file_of(ENCODING + 1, *registrations(PAUSED, 77), 0),
        file_of(ENCODING, *registrations(PAUSED, 2**60 + 1), 0),
        file_of(ENCODING, *registrations(PAUSED, 77, of="nobody"), 0),
        file_of(ENCODING, *registrations(PAUSED, 77), 10_001),
        file_of(ENCODING, *registrations(PAUSED, 77), 2, "x"),
    ],
    ids=["earlier encoding", "later encoding", "order", "class", "number of tombstones", "missing tombstone"],
)
def test_a_damaged_file_is_refused(server_binary: Path, content: bytes) -> None:
    _, output = with_file(server_binary, content).failed_start()
    assert re.search(r"registrations (are damaged|have encoding version [36], this module reads version 5)", output)
