"""Figures of attacks: tests of the mark `hostile` record them, and the run prints them as a table at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROPERTY = "figure"
# Figures before the fixes (commit 778c3cb), by the start of the attack's name.
BEFORE = {
    "hung worker: longest wait": "504 after 11 s",
    "hung shard: longest wait": "6.4 s",
    "slow model: wait of a question": "4.3 s",
    "writes of others, failed after SET": "50 of 50",
    "workers that a text ends": "6 in 80 s",
    "time until the document fails": "never",
    "longest wait of a question": "504 each time",
    "fake primary: times": "4 times",
    "fake primary: servers": "2 servers",
    "links in deep elements": "65 s",
    "substitutions": "over 15 s",
    "100,000 nodes: refused after": "over 8 min",
    "restart with three hostile models": "over 8 min",
}


def _resident_mib(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


@dataclass(frozen=True)
class Figures:
    """The figures of one test."""

    record_property: Callable[[str, object], None]

    def record(self, attack: str, figure: float, unit: str, limit: float) -> None:
        """Record the figure of an attack, and check it against its limit."""
        self.record_property(_PROPERTY, (attack, f"{figure:.3g} {unit}", f"{limit:g} {unit}"))
        assert figure <= limit, f"{attack}: {figure:.3g} {unit}, the limit is {limit:g} {unit}"

    def record_wait(self, attack: str, seconds: float, limit_seconds: float) -> None:
        """Record an elapsed time. Its limit is for a machine with free cores, and grows with the machine's load."""
        crowd = crowding()
        self.record_property(_PROPERTY, (attack, f"{seconds:.3g} s", f"{limit_seconds:g} s x {crowd:.1f}"))
        assert seconds <= limit_seconds * crowd, (
            f"{attack}: {seconds:.3g} s, the limit is {limit_seconds:g} s times {crowd:.1f} for the machine's load"
        )

    @contextmanager
    def measured(self, attack: str, *, limit_seconds: float, limit_mib: float | None = None) -> Iterator[None]:
        """Record the processor time of this process and its ended children; with `limit_mib`, also its memory."""
        before = 0.0
        if limit_mib is not None:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            before = _resident_mib("VmRSS")
        begun = _processor_seconds()
        yield
        self.record(attack, _processor_seconds() - begun, "s", limit_seconds)
        if limit_mib is not None:
            self.record(attack, _resident_mib("VmHWM") - before, "MiB", limit_mib)


def crowding() -> float:
    """The number of processes that each core of this machine had to run in the last minute, and at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def table(properties: Iterable[tuple[str, Any]]) -> list[str]:
    """The lines of the table, from the properties of all reports.

    >>> table([("figure", ("substitutions (a.rst)", "2 s", "4 s"))])
    ['attack                 before     measured  limit', 'substitutions (a.rst)  over 15 s  2 s       4 s']
    """
    rows = [
        (attack, next((before for start, before in BEFORE.items() if attack.startswith(start)), ""), figure, limit)
        for name, (attack, figure, limit) in ((name, value) for name, value in properties if name == _PROPERTY)
    ]
    if not rows:
        return []
    rows.insert(0, ("attack", "before", "measured", "limit"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
