"""The process that `limited` starts. It reads requests from its standard input until the input ends.

A request is a line of JSON (name, format, size) and the file. A reply is its length in eight bytes and JSON.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import warnings
from typing import Any, BinaryIO

import orjson

from qa_cluster.errors import InputTooLong, RequestError

from .extract import extract


def main(memory_mib: int, cpu_seconds: int) -> None:
    """Extract files, each within `cpu_seconds` of processor time."""
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Output of libraries must not mix with the replies.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    warnings.simplefilter("ignore")
    _limit(resource.RLIMIT_AS, memory_mib * 1024 * 1024)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    while line := requests.readline():
        request = orjson.loads(line)
        data = requests.read(request["size"])
        if len(data) < request["size"]:
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + cpu_seconds + 1, soft_only=True)
        _reply(replies, _answer(data, request["name"], request["format"], memory_mib))


def _limit(kind: int, value: int, *, soft_only: bool = False) -> None:
    _, most = resource.getrlimit(kind)
    hard = most if soft_only else value if most == resource.RLIM_INFINITY else min(value, most)
    # Some systems lack some of the limits; the parent's deadline always applies.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _answer(data: bytes, name: str, forced: str, memory_mib: int) -> dict[str, Any]:
    try:
        found, extracted = extract(data, name, forced)
    except RequestError as error:
        return {"error": "InputTooLong" if isinstance(error, InputTooLong) else "InvalidInput", "message": str(error)}
    except MemoryError:
        return {"error": "InvalidInput", "message": f"reading it takes more than {memory_mib} MiB of memory"}
    except Exception as error:  # a failure of a parser concerns only this file
        return {"error": "InvalidInput", "message": f"its parser failed: {type(error).__name__}: {error}"[:300]}
    return {
        "format": found,
        "title": extracted.title,
        "text": extracted.text,
        "sections": [(section.start, section.end, section.path) for section in extracted.sections],
        "places": [(place.start, place.number) for place in extracted.places],
        "unit": extracted.unit,
    }


def _reply(replies: BinaryIO, answer: dict[str, Any]) -> None:
    try:
        body = orjson.dumps(answer)
    except (TypeError, ValueError):  # a lone surrogate
        body = orjson.dumps({"error": "InvalidInput", "message": "its text is not valid Unicode"})
    replies.write(len(body).to_bytes(8, "little") + body)
    replies.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
