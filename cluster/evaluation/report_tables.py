"""Prints the report of `qa-cluster eval` as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..terminal import console, tables

_NUMBERS = ("questions", "EM", "F1", "no answer right", "sentences read", "calibration error", "no answer given")
_DEPTHS = ("@1", "@5", "@8", "@20")
# The figures of plain questions: the text in the table, and the key in the report.
_PLAIN_ROWS = (
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
    """Print all parts that the report has."""
    if "plain" in report:
        _plain(report)
        return
    level = f"{report['intervals']['level']:.0%}"
    console.say(
        f"{report['file']}: {console.counted(report['questions'], 'question')},"
        f" {console.counted(report['documents'], 'document')}; reader {report['reader']}; {level} intervals in brackets"
    )
    if "context_given" in report:
        _context_given(report["context_given"], report["unanswerable"])
    if "ranking" in report:
        _ranking(report["ranking"])
    if "system" in report:
        _system(report["system"], report["unanswerable"])


def _context_given(part: Mapping[str, Any], unanswerable: int) -> None:
    of_types = {"all": part["figures"], **part["by_type"]}
    rows = [{"type": name, **_figures(found, unanswerable)} for name, found in of_types.items()]
    tables.table(rows, title="The reader on the given contexts", right=_NUMBERS)
    if part["trust"] is not None:
        error, chance = (part["trust"][key] for key in ("calibration_error", "calibration_error_by_chance"))
        console.say(f"calibration error of the score: {error:.3f}; perfect scores would have {chance:.3f} by chance")


def _ranking(part: Mapping[str, Any]) -> None:
    rows = [{"ranking": "qa-cluster", **_recall(part)}]
    if "reference" in part:
        rows.append({"ranking": "bm25s", **_recall(part["reference"])})
        difference = {f"@{depth}": _signed(found) for depth, found in part["difference"].items()}
        rows.append({"ranking": "difference", "questions": "", **difference})
    title = f"Recall: a sentence with the answer is among the first of {part['sentences']} sentences"
    tables.table(rows, title=title, right=("questions", *_DEPTHS))
    by_type = [
        {"recall by type": name, "questions": found["questions"]}
        | {f"@{depth}": f"{interval['value']:.3f}" for depth, interval in found["recall"].items()}
        for name, found in part["by_type"].items()
    ]
    tables.table(by_type, right=("questions", *_DEPTHS))


def _system(part: Mapping[str, Any], unanswerable: int) -> None:
    rows = []
    for run in part["runs"]:
        trusted = run["trust"]
        row = {"read": run["name"], **_figures(run, unanswerable)}
        row["sentences read"] = f"{run['sentences_read']['value']:.2f}"
        row["calibration error"] = f"{trusted['calibration_error']:.3f}" if trusted else ""
        row["no answer given"] = f"{run['refused']:.1%}" if trusted else ""
        rows.append(row)
    tables.table(rows, title=f"The whole system, with at most {part['retriever_k']} sentences read", right=_NUMBERS)
    tables.table(
        [
            {"difference of": item["of"], "minus": item["minus"]}
            | {"EM": _signed(item["exact_match"]), "F1": _signed(item["f1"])}
            for item in part["differences"]
        ],
        right=("EM", "F1"),
    )
    _by_type(part["runs"])
    _trust(part["runs"])


def _by_type(runs: list[Mapping[str, Any]]) -> None:
    names = [run["name"] for run in runs]
    tables.table(
        [
            {"F1 by type": name, "questions": found["questions"]}
            | {run["name"]: _interval(run["by_type"][name]["f1"]) for run in runs}
            for name, found in runs[0]["by_type"].items()
        ],
        right=("questions", *names),
    )


def _trust(runs: list[Mapping[str, Any]]) -> None:
    run = next((run for run in reversed(runs) if run["trust"]), None)
    if run is None:
        return
    tables.table(
        [
            {"score shown": f"{part['probability']:.2f}", "right": f"{part['right']:.2f}", "answers": part["answers"]}
            for part in run["trust"]["bins"]
        ],
        title=f"Scores, {run['name']}",
        right=("score shown", "right", "answers"),
    )
    tables.table(
        [
            {"highest scores": f"{part['coverage']:.0%}", "right": f"{part['right']:.2f}"}
            | {"with a score from": f"{part['probability']:.2f}"}
            for part in run["trust"]["coverage"]
        ],
        right=("highest scores", "right", "with a score from"),
    )


def _plain(report: Mapping[str, Any]) -> None:
    """Print the figures of plain questions, the cost of a question, and the figures for each value of a --by field."""
    part = report["plain"]
    found, cost = part["figures"], part["cost"]
    console.say(
        f"{report['file']}: {console.counted(found['questions'], 'question')}, {found['without_answer']} without"
        f" an answer, on {console.counted(report['documents'], 'document')}; reader {report['reader']};"
        f" {report['intervals']['level']:.0%} intervals in brackets"
    )
    rows = [{"figure": name, "": _interval(found[key])} for name, key in _PLAIN_ROWS if found[key] is not None]
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
        _by_label(label, values)
    if "fit" in report:
        _fit(report["fit"])


def _fit(fit: Mapping[str, Any]) -> None:
    words = fit["calibration"]
    before, after = (
        f"{found['a']:.3f} × order value {found['b']:+.3f}" for found in (fit["before"], fit["calibration"])
    )
    console.say(
        f"fitted to {console.counted(fit['questions'], 'question')}: log odds {before} became {after}, no-answer"
        f" threshold {fit['no_answer_threshold']:g}, calibration error {fit['error']:.3f}, sure from"
        f" {words['sure']:g}, likely from {words['likely']:g}; written to {fit['manifest']}"
    )


def _by_label(label: str, values: Mapping[str, Any]) -> None:
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


def _figures(found: Mapping[str, Any], unanswerable: int) -> dict[str, str]:
    row = {
        "questions": str(found["questions"]),
        "EM": _interval(found["exact_match"]),
        "F1": _interval(found["f1"]),
    }
    if unanswerable:
        rightly = found["no_answer_accuracy"]
        row["no answer right"] = _interval(rightly) if rightly is not None else ""
    return row


def _recall(found: Mapping[str, Any]) -> dict[str, str]:
    return {"questions": str(found["questions"])} | {
        f"@{depth}": _interval(interval) for depth, interval in found["recall"].items()
    }


def _interval(found: Mapping[str, float]) -> str:
    """Return a value with its confidence interval, such as "0.623 [0.590, 0.655]"."""
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def _signed(found: Mapping[str, float]) -> str:
    return f"{found['value']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"
