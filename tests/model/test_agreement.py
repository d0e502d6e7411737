"""Exported files agree with plain PyTorch float32 on real questions: float32 exactly, int8 within its tolerance.

The tests need the `export` extra, the checkpoint's folder in QA_TEST_CHECKPOINT, and a SQuAD file in QA_TEST_QUESTIONS.
The test of int8 also needs a question set for the calibration in QA_TEST_TRAINING. QA_TEST_FULL=1 reads all questions
instead of some.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qa_cluster.models.exporting.export import TOLERANCE, ExportOptions, export
from qa_cluster.models.exporting.report import ExportReport
from qa_cluster.reading.runtimes import RUNTIMES

pytest.importorskip("torch", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]

FULL = os.environ.get("QA_TEST_FULL") == "1"
SOME = 120


def place(name: str) -> Path:
    found = os.environ.get(name)
    if not found:
        pytest.skip(f"{name} is not set")
    return Path(found)


def measure(out: Path, options: dict[str, object]) -> ExportReport:
    """Export the checkpoint, whatever its loss, and return the report."""
    shown: list[ExportReport] = []
    fixed = {"evaluation": (place("QA_TEST_QUESTIONS"),), "limit": None if FULL else SOME, "report": shown.append}
    export(str(place("QA_TEST_CHECKPOINT")), out, ExportOptions(**{**fixed, "force": True, **options}))  # type: ignore[arg-type]
    return shown[0]


def test_float32_files_give_the_spans_of_the_checkpoint(tmp_path: Path) -> None:
    before, *files = measure(tmp_path / "out", {"precision": "float32"}).variants
    assert [way.runtime for way in files] == list(RUNTIMES)
    for way in files:
        for name, found in way.scored.items():
            assert found.agreement == 1.0, way.runtime
            assert found.score == before.scored[name].score


def test_int8_files_mostly_give_the_spans_of_the_checkpoint(tmp_path: Path) -> None:
    before, *files = measure(tmp_path / "out", {"precision": "int8", "calibration": place("QA_TEST_TRAINING")}).variants
    for way in files:
        for name, found in way.scored.items():
            lost = before.scored[name].score.f1 - found.score.f1
            # with few questions, a single answer changes F1 by nearly one point
            assert lost < (TOLERANCE / 100 if FULL else 0.02), (way.runtime, lost)
            assert found.agreement > 0.9
