"""Keeps passwords out of what others see of a process: its arguments, and the environment of those it starts.

Every user of the machine can read the arguments of every process (`ps`, ``/proc/<pid>/cmdline``); its environment only
the same user can. So children get passwords by their environment or a file, and those that need none get none. What
somebody has typed is there when the process starts: it writes over it, which is possible on Linux.
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
    """An environment for a program that needs no password: without those settings, and without addresses that may
    hold one.

    >>> without_passwords({"QA_CLUSTER_PASSWORD": "secret", "QA_SHARDS": "3"})
    {'QA_SHARDS': '3'}
    """
    hidden = {f"QA_{name.upper()}" for name in (*_SECRETS, *_ADDRESSES)}
    return {name: value for name, value in environment.items() if name not in hidden}


def hide_typed_passwords() -> None:
    """Write asterisks over the passwords among the arguments of this process, as others see them; `sys.argv` stays.

    Where the system does not let a process do that, it does nothing.
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
    """Where passwords stand among arguments, each of which ends with a NUL: place and length in bytes.

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
    """Where the arguments of this process stand in its memory: `arg_start` and `arg_end` of proc(5)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])
