"""Exported files agree with plain PyTorch float32 on real questions: float32 exactly, int8 within its tolerance.

The tests need the `export` extra, the checkpoint's folder in QA_TEST_CHECKPOINT, and a SQuAD file in QA_TEST_QUESTIONS.
The test of int8 also needs a question set for the calibration in QA_TEST_TRAINING. QA_TEST_FULL=1 reads all questions
instead of some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from qa_cluster.models.evaluation.measuring import SetScore
from qa_cluster.models.exporting.export import TOLERANCE, ExportOptions, export
from qa_cluster.models.exporting.report import ExportReport
from qa_cluster.reading.manifest import Score
from qa_cluster.reading.runtimes import RUNTIMES

pytest.importorskip("torch", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]

FULL = os.environ.get("QA_TEST_FULL") == "1"
SOME, SOME_EXAMPLES = 120, 60


def place(name: str) -> Path:
    found = os.environ.get(name)
    if not found:
        pytest.skip(f"{name} is not set")
    return Path(found)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """Export the checkpoint in all precisions, whatever its loss, and return the report."""
    shown: list[ExportReport] = []
    options = ExportOptions(
        precision="int8",
        compare=True,
        calibration=place("QA_TEST_TRAINING"),
        evaluation=(place("QA_TEST_QUESTIONS"),),
        limit=None if FULL else SOME,
        max_examples=ExportOptions().max_examples if FULL else SOME_EXAMPLES,
        force=True,
        report=shown.append,
    )
    export(str(place("QA_TEST_CHECKPOINT")), tmp_path_factory.mktemp("agreement") / "out", options)
    return shown[0]


def compared(report: ExportReport, precision: str) -> Iterator[tuple[str, SetScore, Score]]:
    """The runtime of each file, its scores on each question set, and the score of PyTorch on the same set."""
    before, *files = report.variants
    found = [way for way in files if way.precision == precision]
    assert [way.runtime for way in found] == list(RUNTIMES)
    for way in found:
        for name, scored in way.scored.items():
            yield way.runtime, scored, before.scored[name].score


def test_float32_files_give_the_spans_of_the_checkpoint(report: ExportReport) -> None:
    for runtime, scored, score in compared(report, "float32"):
        assert scored.agreement == 1.0, runtime
        assert scored.score == score


def test_int8_files_mostly_give_the_spans_of_the_checkpoint(report: ExportReport) -> None:
    for runtime, scored, score in compared(report, "int8"):
        # with few questions, a single answer changes F1 by nearly one point
        assert score.f1 - scored.score.f1 < (TOLERANCE / 100 if FULL else 0.02), runtime
        assert scored.agreement > 0.9
