"""Fit the score limits for "sure" and "likely": python3 -m tests.yardstick.confidence FIGURES [READER]

FIGURES is the output of `qa-cluster eval QUESTIONS --out FIGURES`. The program prints the limits, and the number of
right answers for each word. With READER, the folder of a reader, it writes the limits to the reader's manifest. The
limits of a plan with fitted stages belong in `qa_cluster/reading/plan.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from qa_cluster.errors import InvalidInput, QAError
from qa_cluster.evaluation.confidence_fit import ConfidenceLimits, fit_confidence
from qa_cluster.reading.manifest import MANIFEST_FILE, Manifest


def fit_from_report(report: Mapping[str, Any]) -> ConfidenceLimits:
    """Fit the limits to the answers in a report of `qa-cluster eval --out` with plain questions.

    Raises:
        InvalidInput: the report has no answers to plain questions.
    """
    try:
        rows = report["answers"]["plain"]
        first = [row["answers"][0] for row in rows if row["answerable"] and row["answers"]]
        return fit_confidence([float(each["probability"]) for each in first], [bool(each["right"]) for each in first])
    except (KeyError, TypeError) as error:
        raise InvalidInput(
            f"the report has no answers to plain questions ({error!r}): write it with `qa-cluster eval --out`"
        ) from error


def main(figures: str, reader: str = "") -> None:
    """Fit and print the limits, and write them to the manifest."""
    found = fit_from_report(json.loads(Path(figures).read_text(encoding="utf-8")))
    print(json.dumps(asdict(found), indent=1))
    if reader:
        path = Path(reader) / MANIFEST_FILE
        manifest = Manifest.load(path)
        fitted = replace(manifest, calibration=found.of(manifest.calibration))
        path.write_text(fitted.to_json(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (OSError, ValueError, QAError) as error:
        sys.exit(f"error: {error}")
