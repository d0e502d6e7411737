"""Prints the report on plain questions as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..terminal import console, tables

_ROWS = (
    ("right first", "right_first"),
    ("right in the first three", "right_in_three"),
    ("EM", "exact_match"),
    ("F1", "f1"),
    ("no answer given although one exists", "told_none"),
    ("wrong with a score above 0.5", "wrong_and_sure"),
    ("answer given although none exists", "answered_without"),
    ("answer given although none exists, score above 0.5", "answered_without_sure"),
    ("right among answers with a score from 0.8", "very_sure_right"),
    ("area under the risk-coverage curve", "risk_area"),
)


def show(report: Mapping[str, Any]) -> None:
    """Print the figures, the cost of a question, and the figures by label."""
    part = report["plain"]
    found, cost = part["figures"], part["cost"]
    console.say(
        f"{report['file']}: {console.counted(found['questions'], 'question')}, {found['without_answer']} without"
        f" an answer, on {console.counted(report['documents'], 'document')}; reader {report['reader']};"
        f" {report['intervals']['level']:.0%} intervals in brackets"
    )
    rows = [{"figure": name, "": _interval(found[key])} for name, key in _ROWS if found[key] is not None]
    if found["calibration_error"] is not None:
        error, chance = found["calibration_error"], found["calibration_error_by_chance"]
        rows.append({"figure": "calibration error of the score", "": f"{error:.3f} (perfect scores: {chance:.3f})"})
    tables.table(rows, title=f"Answers, with at most {report['retriever_k']} sentences read")
    milliseconds = cost["milliseconds"]
    console.say(
        f"for each question, {cost['sentences_read']['value']:.2f} sentences were read; it took"
        f" {milliseconds['p50']:.1f} ms (median; 95 % within {milliseconds['p95']:.1f} ms)"
    )
    for label, values in part["by"].items():
        _by(label, values)
    if "fit" in report:
        _fit(report["fit"])


def _fit(fit: Mapping[str, Any]) -> None:
    words = fit["calibration"]
    before, after = (f"{found['a']:.3f} × order {found['b']:+.3f}" for found in (fit["before"], fit["calibration"]))
    console.say(
        f"fitted to {console.counted(fit['questions'], 'question')}: log odds {before} became {after}, no-answer"
        f" threshold {fit['no_answer_threshold']:g}, calibration error {fit['error']:.3f}, sure from"
        f" {words['sure']:g}, likely from {words['likely']:g}; written to {fit['manifest']}"
    )


def _by(label: str, values: Mapping[str, Any]) -> None:
    names = ("right first", "in three", "answered without")
    tables.table(
        [
            {f"by {label}": value or "(none)", "questions": str(found["questions"])}
            | {
                name: _interval(found[key]) if found[key] is not None else ""
                for name, key in zip(names, ("right_first", "right_in_three", "answered_without"), strict=True)
            }
            for value, found in values.items()
        ],
        right=("questions", *names),
    )


def _interval(found: Mapping[str, float]) -> str:
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"
