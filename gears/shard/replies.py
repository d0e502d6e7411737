"""Converts values of functions to RESP2 as RedisGears did.

- list: array
- int and bool: integer. Exception: an int that does not fit into 64 bits is a bulk string
- float: bulk string with six decimals
- bytes and str: bulk string. Exception: a str of several characters that starts with ``+`` (status) or ``-`` (error)
- all other values: the bulk string ``PY RECORD``
"""

from __future__ import annotations

from typing import Any

import hiredis

OK = b"+OK\r\n"
NIL = b"$-1\r\n"


def bulk(data: bytes) -> bytes:
    """Return a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def error(text: str) -> bytes:
    """Return an error line. Replace line breaks with spaces, because a line break would end the line."""
    return b"-%b\r\n" % " ".join(text.splitlines()).encode()


def encode_reply(value: object) -> bytes:
    """Encode the result of a function as RESP2.

    >>> encode_reply(["a", 1, 0.5, "+PONG"])
    b'*4\\r\\n$1\\r\\na\\r\\n:1\\r\\n$8\\r\\n0.500000\\r\\n+PONG\\r\\n'
    """
    if isinstance(value, str):
        if len(value) > 1 and value[0] in "+-":
            return b"%b\r\n" % " ".join(value.splitlines()).encode()
        return bulk(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, int):
        return b":%d\r\n" % value if -(2**63) <= value < 2**63 else bulk(str(value).encode())
    if isinstance(value, float):
        return bulk(b"%f" % value)
    if isinstance(value, list):
        return b"*%d\r\n%b" % (len(value), b"".join([encode_reply(item) for item in value]))
    return bulk(bytes(value) if isinstance(value, (bytes, bytearray)) else b"PY RECORD")


def encode_results(results: list[Any], errors: list[str]) -> bytes:
    """Return the reply to the execution of a RedisGears pipeline: an array of results and an array of errors."""
    texts = b"".join([bulk(text.encode()) for text in errors])
    return b"*2\r\n%b*%d\r\n%b" % (encode_reply(results), len(errors), texts)


def encode_data(value: object) -> bytes:
    """Encode data of the worker, not of a function, as RESP2. None is nil, and a str is never a status.

    >>> encode_data(["status", None, 1])
    b'*3\\r\\n$6\\r\\nstatus\\r\\n$-1\\r\\n:1\\r\\n'
    """
    if value is None:
        return NIL
    if isinstance(value, str):
        return bulk(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, (list, tuple)):
        return b"*%d\r\n%b" % (len(value), b"".join([encode_data(item) for item in value]))
    return encode_reply(value)


def decode_reply(reply: Any) -> Any:
    """Convert a reply to the types of `ShardCommands.execute`.

    A string becomes a str, or a bytearray if it is not UTF-8. An error becomes a str that starts with ``-``.
    """
    if isinstance(reply, bytes):
        try:
            return reply.decode()
        except UnicodeDecodeError:
            return bytearray(reply)
    if isinstance(reply, list):
        return [decode_reply(item) for item in reply]
    if isinstance(reply, hiredis.ReplyError):
        return f"-{reply}"
    return reply
