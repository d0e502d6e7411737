"""The report of an export: the figures of the checkpoint and of the exported files.

The report is written to the folder of the reader as `report.json`, `report.md` and `report.svg`, and printed as tables.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..evaluation.latency import LENGTHS
from ..evaluation.measuring import Measured

REPORT_JSON = "report.json"
REPORT_TEXT = "report.md"
REPORT_PLOT = "report.svg"
REPORT_FILES = (REPORT_JSON, REPORT_TEXT, REPORT_PLOT)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The results of `qa-cluster model export`.

    Attributes:
        chosen: the precision of the exported reader.
        threads: the number of threads of the runtimes.
        calibration_error: the calibration error of the fitted probabilities on held-out examples; None without held-out
            examples.
        calibration_error_before: the calibration error of the reader's own odds, the probabilities without a fit; None
            without held-out examples.
        variants: the measurements of each variant: first the checkpoint in PyTorch, then the exported files.
    """

    model: str
    revision: str
    chosen: str
    threads: int
    tolerance: float
    calibration_error: float | None
    calibration_error_before: float | None
    variants: tuple[Measured, ...]

    def to_json(self) -> str:
        """Return the report as JSON text, the contents of `report.json`."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def to_markdown(self) -> str:
        """Return the report as Markdown text, the contents of `report.md`."""
        lines = [
            f"# {self.model}",
            "",
            f"Revision `{self.revision}`, {self.chosen}. *Agreement* is the share of questions with the same answer as "
            f"the checkpoint in PyTorch. An export may lose {self.tolerance:g} points of F1.",
            "",
        ]
        for title, header, rows in self._tables():
            lines += [f"## {title}", "", _line(header), _line(["---"] * len(header)), *map(_line, rows), ""]
        if self.calibration_error is not None and self.calibration_error_before is not None:
            lines += [
                "Expected calibration error on held-out examples: "
                f"{self.calibration_error_before:.3f} for the reader's own odds, {self.calibration_error:.3f} after "
                "calibration.",
                "",
            ]
        lines += [f"![F1, size and latency]({REPORT_PLOT})", ""]
        return "\n".join(lines)

    def show(self, console: Console) -> None:
        """Print the tables of the report on `console`."""
        for title, header, rows in self._tables():
            table = Table(title=title, title_justify="left")
            for number, name in enumerate(header):
                table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
            for row in rows:
                table.add_row(*row)
            console.print(table)

    def write(self, folder: Path) -> None:
        """Write the three files of the report (`REPORT_FILES`) to `folder`."""
        from .report_plot import plot

        (folder / REPORT_JSON).write_text(self.to_json(), encoding="utf-8")
        (folder / REPORT_TEXT).write_text(self.to_markdown(), encoding="utf-8")
        plot(self.variants, self.model, folder / REPORT_PLOT)

    def _tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        tables = [
            (
                f"{name}: {self.variants[0].scored[name].questions} questions",
                ["precision", "runtime", "size MB", "exact match", "F1", "no answer", "agreement"],
                [_scores(variant, name) for variant in self.variants],
            )
            for name in self.variants[0].scored
        ]
        lengths = [length for length in LENGTHS if length in self.variants[0].latency]
        tables.append(
            (
                f"Milliseconds for a pair by its tokens, {self.threads} threads: median (quartiles)",
                ["precision", "runtime", *map(str, lengths)],
                [_latencies(variant, lengths) for variant in self.variants],
            )
        )
        return tables


def _scores(variant: Measured, name: str) -> list[str]:
    found = variant.scored[name]
    told = found.score.no_answer_accuracy
    return [
        variant.precision,
        variant.runtime,
        f"{variant.size_bytes / 1e6:.1f}",
        f"{found.score.exact_match:.4f}",
        f"{found.score.f1:.4f}",
        "–" if told is None else f"{told:.4f}",
        f"{found.agreement:.1%}",
    ]


def _latencies(variant: Measured, lengths: Sequence[int]) -> list[str]:
    times = [variant.latency[length] for length in lengths]
    return [
        variant.precision,
        variant.runtime,
        *(f"{time.median_ms:.1f} ({time.low_ms:.1f}–{time.high_ms:.1f})" for time in times),
    ]


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
