"""Finds processes by their parent, as Linux lists them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

INFERENCE_WORKER = "qa_cluster.gears.inference.workers.child"


def descendants(root: int) -> dict[int, str]:
    """Command lines of all live descendants of `root` (Linux; empty elsewhere)."""
    return _named(_below(root, _children()))


def inference_workers(root: int) -> list[int]:
    """The live inference workers below `root`, sorted by process id."""
    children = _children()
    found = {pid for pid, command in _named(_below(root, children)).items() if INFERENCE_WORKER in command}
    # a child of an inference worker has its parent's command line until it runs its own program
    below = {pid for one in found for pid in _below(one, children)}
    return sorted(found - below)


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not count as running."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def resume(pid: int) -> None:
    """Resumes a stopped worker; if it was stopped for too long, the server may have replaced it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _children() -> dict[int, list[int]]:
    """The live children of every process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if Path("/proc").is_dir() else ():
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text()
        except OSError:
            continue  # the process has just ended
        state, parent = stat.rpartition(")")[2].split(maxsplit=2)[:2]
        if state != "Z":
            children.setdefault(int(parent), []).append(int(name))
    return children


def _below(root: int, children: dict[int, list[int]]) -> list[int]:
    found: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, ())]
        found += level
    return found


def _named(pids: list[int]) -> dict[int, str]:
    """The command lines of the processes that still run."""
    named = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has just ended
            command = Path("/proc", str(pid), "cmdline").read_bytes()
            named[pid] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return named
