"""Values of functions become RESP2 as RedisGears made them; replies become what `execute` returns."""

from __future__ import annotations

import hiredis
import pytest

from qa_cluster.gears.shard.replies import decode_reply, encode_data, encode_reply, encode_results, error


def parsed(data: bytes) -> object:
    reader = hiredis.Reader()
    reader.feed(data)
    return reader.gets()


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (1, b":1\r\n"),
        (True, b":1\r\n"),
        (0.5, b"$8\r\n0.500000\r\n"),
        ("text", b"$4\r\ntext\r\n"),
        ("é", b"$2\r\n\xc3\xa9\r\n"),
        ("+", b"$1\r\n+\r\n"),
        ("+PONG", b"+PONG\r\n"),
        ("-ERR no", b"-ERR no\r\n"),
        ("-ERR two\nlines", b"-ERR two lines\r\n"),
        (b"\x00\xff", b"$2\r\n\x00\xff\r\n"),
        (bytearray(b"ab"), b"$2\r\nab\r\n"),
        (None, b"$9\r\nPY RECORD\r\n"),
        ({"a": 1}, b"$9\r\nPY RECORD\r\n"),
        ((1, 2), b"$9\r\nPY RECORD\r\n"),
        ([], b"*0\r\n"),
        ([1, ["a"]], b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n"),
        (2**70, b"$22\r\n1180591620717411303424\r\n"),
    ],
)
def test_function_value_on_the_wire(value: object, wire: bytes) -> None:
    assert encode_reply(value) == wire


def test_results_and_errors_are_two_arrays() -> None:
    assert parsed(encode_results(["a", 1], ["-not an error here"])) == [[b"a", 1], [b"-not an error here"]]


def test_own_data_can_be_nil_and_never_becomes_a_status() -> None:
    assert parsed(encode_data({"a": 1}.get("b"))) is None
    assert parsed(encode_data(["+x", None, [1]])) == [b"+x", None, [1]]


def test_error_is_one_line() -> None:
    assert error("ERR a\r\nb") == b"-ERR a b\r\n"


def test_decoding_for_functions() -> None:
    assert decode_reply([b"a", b"\xff", 3, None, [b"b"]]) == ["a", bytearray(b"\xff"), 3, None, ["b"]]
    assert decode_reply([hiredis.ReplyError("ERR x")]) == ["-ERR x"]
