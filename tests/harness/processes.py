"""Processes by what started them, as Linux lists them."""

from __future__ import annotations

import os
from pathlib import Path

INFERENCE_WORKER = "qa_cluster.gears.inference.workers.child"


def descendants(root: int) -> dict[int, str]:
    """Command lines of all live descendants of `root` (Linux; empty elsewhere)."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it has just ended
        fields = stat.rpartition(")")[2].split()
        if fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
            names[int(entry.name)] = command
    found: dict[int, str] = {}
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level and pid not in found}
        found.update({pid: names[pid] for pid in level})
    return found


def inference_workers(root: int) -> list[int]:
    """The live inference workers below `root`, in the order of their ids."""
    found = {pid for pid, command in descendants(root).items() if INFERENCE_WORKER in command}
    # what one of them starts has its command line, until it has its own; it may also have ended by now
    below = {pid for one in found for pid in descendants(one)}
    return sorted((found - below) & descendants(root).keys())


def started_with(variable: str) -> list[int]:
    """The live processes with this ``NAME=value`` in the environment they were started with, except this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended, or is another user's
        if variable.encode() in environment and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found
