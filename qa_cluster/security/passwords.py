"""Hides passwords from other users of the machine, who can read the arguments of a process.

Every user of the machine can read the arguments of every process (`ps`, ``/proc/<pid>/cmdline``), but only the user
who runs a process can read its environment. So child processes get passwords in their environment or in a file, and
only if they need them. A password that a user types on the command line is among the arguments when the process starts;
on Linux, the process overwrites it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from qa_cluster.config import SETTINGS

_SECRETS = tuple(name for name, row in SETTINGS.items() if row.secret)
_ADDRESSES = tuple(name for name in SETTINGS if name.endswith("_url"))
_IN_ADDRESS = re.compile(rb"://[^@]*?:(.+)@", re.DOTALL)
_IN_SETTING = re.compile(
    rb"(?:--set=)?\s*(?:%b)\s*=(.+)" % b"|".join(name.replace("_", "[-_]").encode() for name in _SECRETS), re.DOTALL
)


def without_passwords(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without passwords, and without URLs that may contain a password.

    >>> without_passwords({"QA_CLUSTER_PASSWORD": "secret", "QA_SHARDS": "3"})
    {'QA_SHARDS': '3'}
    """
    hidden = {f"QA_{name.upper()}" for name in (*_SECRETS, *_ADDRESSES)}
    return {name: value for name, value in environment.items() if name not in hidden}


def hide_typed_passwords() -> None:
    """Overwrite the passwords in the arguments of this process with asterisks. `sys.argv` does not change.

    If the system does not allow this, do nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        arguments = Path("/proc/self/cmdline").read_bytes()
        places = list(typed_passwords(arguments))
        if not places:
            return
        first, end = _place_of_arguments()
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for start, size in places:
                if first + start + size <= end:
                    memory.seek(first + start)
                    memory.write(b"*" * size)
    except (OSError, ValueError, IndexError):
        return


def typed_passwords(arguments: bytes) -> Iterator[tuple[int, int]]:
    """Yield the positions of passwords among NUL-terminated arguments: offset and length in bytes.

    >>> list(typed_passwords(b"ask\\0redis://me:secret@host\\0"))
    [(15, 6)]
    """
    start = 0
    for word in arguments.split(b"\0"):
        found = _IN_SETTING.fullmatch(word)
        if found is None:
            found = _IN_ADDRESS.search(word)
        if found is not None:
            yield start + found.start(1), len(found[1])
        start += len(word) + 1


def _place_of_arguments() -> tuple[int, int]:
    """Return the addresses where this process's arguments start and end (exclusive) in its memory.

    The addresses are the fields `arg_start` and `arg_end` of proc(5).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])
