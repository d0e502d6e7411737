"""Computes the limits of processor time and memory for reading one file from the size of the file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

MIB = 1024 * 1024
# After this many files of a format have exceeded their limits, the time limit of the format is multiplied by `CUT`.
MAX_HITS = 3
CUT = 0.1
READY = b"r"  # the process that reads files writes this byte when it has started


@dataclass(frozen=True, slots=True)
class Cost:
    """The limits of reading one file.

    Attributes:
        seconds: the limit of processor time.
        mib: how much the address space of the process may grow, in MiB.
    """

    seconds: float
    mib: int


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of time and memory for a file, which grow with its size.

    Each limit is a base value and an amount for each MiB of the file, up to a maximum. For example, a file of 0.5 MiB
    has 10 s + 0.5 * 40 s of processor time:

    >>> Budget().cost(1000).seconds, Budget().cost(MIB // 2).seconds, Budget().cost(50 * MIB).seconds
    (10.04, 30.0, 60.0)
    """

    seconds: float = 10.0
    seconds_per_mib: float = 40.0
    most_seconds: float = 60.0
    mib: int = 512
    mib_per_mib: int = 128
    most_mib: int = 1536
    # This limit is large, because a machine may be busy, and the processor time is the actual limit.
    wall_seconds: float = 300.0

    def cost(self, size: int, *, is_cut: bool = False) -> Cost:
        """Return the limits for a file of `size` bytes.

        With `is_cut`, the time limit is one tenth of the usual limit (`CUT`); see `Hits`.
        """
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
    """Counts the files that exceeded their limits.

    After `MAX_HITS` such files of a format, the time limit of the format is reduced. So a folder of such files takes
    less time.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, format: str) -> None:
        """Count a file. `format` is empty if the file exceeded its limits before its format was known."""
        self._counts[format] += 1

    @property
    def cut(self) -> list[str]:
        """The formats whose files have one tenth of the usual time limit from now on."""
        return [format for format, count in self._counts.items() if count >= MAX_HITS]
