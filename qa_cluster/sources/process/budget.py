"""What reading one file may cost: processor time and memory, by its size."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

MIB = 1024 * 1024
# The number of files of a format that may exceed their limits before the time limit of the format is cut.
MAX_HITS = 3
CUT = 0.1
READY = b"r"  # what the process that reads files writes when it has started


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that reading one file may cost."""

    seconds: float
    mib: int


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits by the size of a file: a floor, a part for each MiB, and a ceiling.

    >>> Budget().cost(1000).seconds, Budget().cost(MIB // 2).seconds, Budget().cost(50 * MIB).seconds
    (10.04, 30.0, 60.0)
    """

    seconds: float = 10.0
    seconds_per_mib: float = 40.0
    most_seconds: float = 60.0
    mib: int = 512
    mib_per_mib: int = 128
    most_mib: int = 1536
    # Generous: a machine may be busy, and the processor time is the actual limit.
    wall_seconds: float = 300.0

    def cost(self, size: int, *, is_cut: bool = False) -> Cost:
        """Return the limits for a file of this size in bytes; a cut format has a tenth of the time."""
        seconds = min(self.seconds + self.seconds_per_mib * size / MIB, self.most_seconds)
        mib = min(self.mib + self.mib_per_mib * size // MIB, self.most_mib)
        return Cost(round(seconds * (CUT if is_cut else 1), 2), mib)

    def wall(self, *, is_cut: bool) -> float:
        """Return the limit of elapsed time in seconds, which also ends a process that uses no processor time.

        >>> Budget().wall(is_cut=False), Budget().wall(is_cut=True)
        (300.0, 30.0)
        """
        return self.wall_seconds * (CUT if is_cut else 1)


class Hits:
    """Counts the files that exceeded their limits, so that a folder of many such files cannot multiply the limits."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, format: str) -> None:
        """Count a file; the format is empty if the file exceeded its limits before its format was known."""
        self._counts[format] += 1

    @property
    def cut(self) -> list[str]:
        """The formats whose limit of time is a tenth for the rest of the run."""
        return [format for format, count in self._counts.items() if count >= MAX_HITS]
