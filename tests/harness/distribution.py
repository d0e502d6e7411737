"""The distribution of tests over the processes of pytest-xdist (`--dist loadfile`), and their order.

The tests of a file share servers, and some files share a cluster. Tests of different server programs share nothing, so
the two halves of a file may run at the same time. The folders with the longest tests start first, and short tests come
last. Files of the `MIXED` folders run in random order, so that some tests compute while others wait.
"""

from __future__ import annotations

from zlib import crc32

from tests.harness.selection import server_of

# Files whose tests share servers that start once in a process.
TOGETHER = {
    f"tests/{group.partition(' ')[0]}/test_{file}.py": group
    for group, files in {
        "cluster": "backup restore_interrupted",
        "cluster documents": "documents_command ingest_sources",
        "cluster readers": "model_faults models",
        "functions": "answers call_times ingest moved_partition pipeline reading_context",
        "functions documents": (
            "collections collection_rights filters long_documents moved_listing ranking search service_rights"
        ),
        "system": "losses meaning overload site stock_clients",
        "system replicas": "batch_failover failover",
    }.items()
    for file in files.split()
}
LONGEST_FIRST = ("docs", "benchmarks", "system", "soak", "functions", "fuzz")
MIXED = ("cluster", "gears", "module", "contract", "model")


def scope_of(test: str) -> str:
    """The group of tests that run in the same process, from the id of a test: one or more files, on one server."""
    file = test.partition("::")[0]
    return f"{TOGETHER.get(file, file)} {server_of(test)}".rstrip()


def rank_of(test: str) -> tuple[int, bool, int]:
    """The sort key of a test: its folder, then whether its file shares a cluster; in `MIXED` folders a random order."""
    folder, file = test.split("/")[1], test.partition("::")[0]
    if folder in MIXED:
        return len(LONGEST_FIRST), True, crc32(file.encode())
    rank = LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST) + 1
    return rank, file not in TOGETHER, 0
