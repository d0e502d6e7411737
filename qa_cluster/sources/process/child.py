"""The process that `extractor` starts. It reads requests from its standard input until the input ends.

When the process has started, it writes one byte, `READY`. A request is a line of JSON (name, format, size, budget, and
the formats with a reduced time limit), followed by the file. Each answer is JSON, preceded by its length in eight
bytes, the lowest byte first. The first answer has the format of the file and the limits for the file. The last answer
has the text or an error, and the size of the address space of this process. The answers between the first and the last
answer may report the page that is being read. If an error occurs before the format is known, the error is the only
answer.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import sys
import warnings
from typing import Any, BinaryIO

import orjson

from qa_cluster.errors import InputTooLong, InvalidInput, RequestError

from ..extract import load, read_as, recognize
from ..extracted import NoText
from .budget import MIB, READY, Budget, Cost
from .pages import report_to

_INFINITY = resource.RLIM_INFINITY


def main(most_mib: int) -> None:
    """Extract files, each within its budget, until the standard input ends.

    `most_mib` is the limit of the address space of this process in MiB.
    """
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Redirect the output of libraries, so that it does not mix with the replies.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    warnings.simplefilter("ignore")
    _limit(resource.RLIMIT_AS, most_mib * MIB)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    report_to(lambda page, pages: _reply(replies, {"page": page, "pages": pages}))
    replies.write(READY)
    replies.flush()
    while line := requests.readline():
        request = orjson.loads(line)
        data = requests.read(request["size"])
        if len(data) < request["size"]:
            return
        answer = _answer(replies, data, request)
        _start(None)
        _reply(replies, answer | {"address_space": _address_space()})


def _start(cost: Cost | None) -> None:
    """Start the timer that ends this process, and limit its memory. None stops the timer and removes the limit."""
    signal.setitimer(signal.ITIMER_PROF, cost.seconds if cost is not None else 0)
    _limit(resource.RLIMIT_AS, _address_space() + cost.mib * MIB if cost is not None else _INFINITY, soft_only=True)
    if cost is not None:  # a second limit, in case a library replaces the timer
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = math.ceil(used.ru_utime + used.ru_stime + cost.seconds) + 1
        _limit(resource.RLIMIT_CPU, seconds, soft_only=True)


def _address_space() -> int:
    try:
        with open("/proc/self/statm", "rb") as status:
            return int(status.read().split()[0]) * resource.getpagesize()
    except OSError:  # not Linux
        return 0


def _limit(kind: int, value: int, *, soft_only: bool = False) -> None:
    _, most = resource.getrlimit(kind)
    if most != _INFINITY:
        value = most if value == _INFINITY else min(value, most)
    # Some systems do not support all limits. The parent process also limits the elapsed time, on every system.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, most if soft_only else value))


def _answer(replies: BinaryIO, data: bytes, request: dict[str, Any]) -> dict[str, Any]:
    budget, cut, name = Budget(**request["budget"]), request["cut"], request["name"]
    found = ""
    try:
        _start(budget.cost(len(data), is_cut="" in cut))
        found, data = recognize(data, name, request["format"])
        _start(None)
        load(found)
        cost = budget.cost(len(data), is_cut=found in cut)
        _reply(replies, {"format": found, "seconds": cost.seconds, "mib": cost.mib})
        _start(cost)
        extracted = read_as(found, data, name)
    except RequestError as error:
        kind = next((kind for kind in (InputTooLong, NoText) if isinstance(error, kind)), InvalidInput)
        return {"error": kind.__name__, "message": str(error)}
    except MemoryError:
        return {"error": "MemoryError"}
    except Exception as error:  # a failure of a parser concerns only this file
        return {"error": "InvalidInput", "message": f"its parser failed: {type(error).__name__}: {error}"[:300]}
    return {
        "format": found,
        "title": extracted.title,
        "text": extracted.text,
        "sections": [(section.start, section.end, section.path) for section in extracted.sections],
        "places": [(place.start, place.number) for place in extracted.places],
        "unit": extracted.unit,
        "metadata": extracted.metadata,
        "remarks": extracted.remarks,
    }


def _reply(replies: BinaryIO, answer: dict[str, Any]) -> None:
    try:
        body = orjson.dumps(answer)
    except (TypeError, ValueError):  # a lone surrogate
        body = orjson.dumps({"error": "InvalidInput", "message": "its text is not valid Unicode"})
    replies.write(len(body).to_bytes(8, "little") + body)
    replies.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
