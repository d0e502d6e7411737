"""Reads the body of a response within limits of size and time."""

import time
from collections.abc import Iterator

import httpx

from qa_cluster.errors import InputTooLong, InvalidInput


def limited_parts(
    response: httpx.Response, url: str, *, max_bytes: int, started: float, seconds: float
) -> Iterator[bytes]:
    """Yield the parts of a body as they arrive, without undoing a content encoding such as gzip.

    Args:
        url: the address, for errors.
        started: when the request started, as a value of `time.monotonic`.

    Raises:
        InputTooLong: the body has more than `max_bytes`.
        InvalidInput: a part of the body arrives more than `seconds` after `started`.
    """
    size = 0
    for part in response.iter_raw():
        size += len(part)
        if size > max_bytes:
            raise InputTooLong(f"{url}: has more than {max_bytes} bytes, the limit")
        if time.monotonic() > started + seconds:
            raise InvalidInput(f"{url}: did not arrive in {seconds:g} s")
        yield part
