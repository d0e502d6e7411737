"""The report of a run: tables with medians over rounds and their spread, and facts of the machine."""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("openvino", "onnxruntime", "torch", "transformers", "fastapi", "mosec", "redis")


def median(values: Sequence[float], digits: int = 2) -> str:
    """``median [least–most]`` of the rounds."""
    middle = statistics.median(values)
    if len(values) == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} [{min(values):.{digits}f}–{max(values):.{digits}f}]"


@dataclass
class Report:
    """The tables of a run, which are printed and saved as JSON."""

    server: str
    corpus: str
    model: str
    machine: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = machine()
        self.console = Console(width=118)
        lines = [f"{name}: {value}" for name, value in self.machine.items()]
        lines += [f"server: {self.server}", f"corpus: {self.corpus}", f"model: {self.model}"]
        self.console.print("\n".join(lines), highlight=False)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
        """Print a table, and add it to the report."""
        shown = Table(title=title, title_justify="left", caption=escape(note), caption_justify="left")
        for index, column in enumerate(columns):
            shown.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
        for row in rows:
            shown.add_row(*row)
        self.console.print(shown)
        self.tables.append(
            {"title": title, "columns": list(columns), "rows": [list(row) for row in rows], "note": note}
        )

    def save(self, folder: Path) -> Path:
        """Write the run to a dated JSON file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / time.strftime("%Y%m%dT%H%M%S.json")
        values = asdict(self)
        path.write_text(json.dumps(values, indent=1, ensure_ascii=False))
        return path


def _versions(names: Sequence[str]) -> Iterator[str]:
    """Name and version of each of these packages that is installed."""
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            yield f"{name} {version(name)}"


def server_version(program: Path) -> str:
    """Name and version of a server program."""
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()
    found = next((word.removeprefix("v=") for word in shown if word.startswith("v=")), " ".join(shown[:4]))
    return f"{program.name} {found}"


def machine() -> dict[str, Any]:
    """The machine and software of the run."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    flags = Path("/proc/cpuinfo").read_text()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "processor": f"{len(names)} × {names[0].partition(':')[2].strip()}",
        "avx512_vnni": "avx512_vnni" in flags,
        "amx_int8": "amx_int8" in flags,
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(_versions(PACKAGES)),
        "commit": commit.stdout.strip(),
    }
