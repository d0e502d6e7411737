"""The resources of idle processes, and their growth over the run.

Each measurement is made while load and faults pause and every queue is empty. So growth means that resources are not
released. Growth is a trend: the median slope of all pairs of measurements, multiplied by the whole time. A single high
or low value therefore counts little. The first measurements do not count, because caches fill. Faults replace workers
all the time, so only the measurements at the calm end count for workers.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.processes import descendants
from tests.harness.system import SHARDS, System

WARM_UP = 1 / 3  # the share of the measurements that does not count
FEWEST = 4  # the number of measurements for a trend; with fewer, only constant resources are judged
LOOKS = 5
PAUSE_SECONDS = 0.4  # the server shrinks buffers of clients that are idle for two seconds
KB, MB = 1 << 10, 1 << 20
# A server stores the ids of the newest 10,000 unregistered registrations, and the load unregisters continuously. Each
# takes an id, an entry in a dictionary and a place in a ring (213 kB for 1,500 ids).
UNREGISTERED_ID_BYTES = 125


@dataclass(frozen=True)
class Tolerance:
    """The allowed growth of a resource over all shards. `calm`: measurements during faults do not count."""

    growth: float
    calm: bool = False
    constant: bool = False


TOLERANCES = {
    "server memory": Tolerance(256 * KB),
    "server RSS": Tolerance(16 * MB),
    "server descriptors": Tolerance(2, constant=True),  # except the descriptors of clients
    "server threads": Tolerance(SHARDS, constant=True),  # a thread of the allocator, which can start at any time
    "worker RSS": Tolerance(48 * MB, calm=True),
    "worker descriptors": Tolerance(6, calm=True),
    "worker threads": Tolerance(6, calm=True),  # pools fill on demand
    "api RSS": Tolerance(8 * MB),
    "api descriptors": Tolerance(12),  # the service pools connections
    "api threads": Tolerance(4),
    "processes": Tolerance(0, constant=True),
}


@dataclass(frozen=True)
class Row:
    """A row of the report."""

    name: str
    first: float
    last: float
    growth: float
    limit: float
    judged: bool

    @property
    def grown(self) -> bool:
        """Whether the resource has grown too much."""
        return self.judged and self.growth > self.limit


@dataclass(frozen=True)
class Look:
    """One measurement of the resources."""

    at: float
    calm: bool
    use: dict[str, float]


def process_use(pid: int) -> dict[str, float]:
    """The memory, descriptors and threads of a process; OSError when it has ended."""
    folder = Path("/proc") / str(pid)
    resident = int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "RSS": resident,
        "descriptors": len(os.listdir(folder / "fd")),
        "threads": len(os.listdir(folder / "task")),
    }


def own_memory(fields: dict[str, Any]) -> int:
    """The memory of a server, except temporary buffers and stored ids of unregistered registrations."""
    names = ("mem_clients_normal", "mem_aof_buffer", "mem_cluster_links", "used_memory_scripts_eval")
    buffers = sum(int(fields.get(name, 0)) for name in names)
    return int(fields["used_memory"]) - buffers - int(fields["qa_unregistered_ids"]) * UNREGISTERED_ID_BYTES


class Watch:
    """Makes measurements, and judges them."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.looks: list[Look] = []

    def look(self, *, calm: bool = False) -> None:
        """Measures all resources, summed over the shards.

        Each value is the minimum of several readings, because timers and buffers change.
        """
        samples = []
        for _ in range(LOOKS):
            time.sleep(PAUSE_SECONDS)
            samples.append(self._sample())
        least = {name: min(sample[name] for sample in samples) for name in samples[0]}
        self.looks.append(Look(time.monotonic(), calm, least))

    def _sample(self) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for index in range(SHARDS):
            fields = self.system.info(self.system.nodes[index])
            server = int(fields["process_id"])
            use = process_use(server)
            use["descriptors"] -= int(fields["connected_clients"])
            use["memory"] = own_memory(fields)
            for name, value in use.items():
                sums[f"server {name}"] += value
            for name, value in process_use(int(fields["qa_worker_pid"])).items():
                sums[f"worker {name}"] += value
            sums["processes"] += sum("worker" in line for line in descendants(server).values())
        if self.system.service is not None:
            for name, value in process_use(self.system.service.pid).items():
                sums[f"api {name}"] += value
            sums["processes"] += len(descendants(self.system.service.pid))
        return sums

    def judge(self) -> list[Row]:
        """Compares the growth of each resource with its tolerance."""
        rows = []
        for name, tolerance in TOLERANCES.items():
            points = [(look.at, look.use[name]) for look in self.looks if look.calm or not tolerance.calm]
            if not points:
                continue
            trend = len(points) * (1 - WARM_UP) >= FEWEST
            points = points[int(len(points) * WARM_UP) :] if trend else points
            first, last = points[0][1], points[-1][1]
            growth = trend_of(points) if trend else last - first
            rows.append(Row(name, first, last, growth, tolerance.growth, trend or tolerance.constant))
        return rows


def trend_of(points: list[tuple[float, float]]) -> float:
    """The median slope, multiplied by the whole time."""
    slopes = [(b - a) / (later - before) for (before, a), (later, b) in itertools.combinations(points, 2)]
    return statistics.median(slopes) * (points[-1][0] - points[0][0])
