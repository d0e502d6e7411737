"""Compares `qa_cluster.pipeline` with answers of the pipeline of transformers, as `reference.py` wrote them.

    python -m tests.parity.compare READER REFERENCE [--json OUT] [--show N]

READER is the folder of an exported reader, REFERENCE the output of `reference.py` for the reader's checkpoint.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qa_cluster.huggingface.answers import Answers, Preparer
from qa_cluster.huggingface.parameters import Parameters, check_padding
from qa_cluster.reading.local_reader import LocalReader
from qa_cluster.reading.runtimes import Logits
from qa_cluster.reading.windows import Window

SCORE_TOLERANCE = 1e-4
# Candidates whose scores differ by less than this may have another order in another runtime.
TIE = 1e-4


@dataclass
class Report:
    """Counts equal results."""

    cases: int = 0
    same: int = 0
    spans: int = 0
    same_best: int = 0
    worst_score: float = 0.0
    different: list[dict[str, Any]] = field(default_factory=list)

    def add(self, case: dict[str, Any], ours: Any) -> None:
        self.cases += 1
        theirs = case["result"]
        left, right = listed(theirs), listed(ours)
        self.same_best += span(left[0]) == span(right[0])
        if isinstance(theirs, list) == isinstance(ours, list) and list(map(span, left)) == list(map(span, right)):
            self.spans += 1
            worst = max(abs(a["score"] - b["score"]) for a, b in zip(left, right, strict=True))
            self.worst_score = max(self.worst_score, worst)
            if worst <= SCORE_TOLERANCE:
                self.same += 1
                return
        self.different.append({**case, "ours": ours, "tie": is_tie(left, right), "filled": is_filled(left, right)})

    def summary(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "same spans and scores": self.same,
            "same spans": self.spans,
            "same best span": self.same_best,
            "largest difference of a score": self.worst_score,
            "of the different, ties": sum(item["tie"] for item in self.different),
            "filled up with nothing": sum(item["filled"] for item in self.different),
        }


def listed(result: Any) -> list[dict[str, Any]]:
    return result if isinstance(result, list) else [result]


def span(answer: dict[str, Any]) -> tuple[str, int, int]:
    return answer["answer"], answer["start"], answer["end"]


def is_tie(left: list[dict[str, Any]], right: list[dict[str, Any]]) -> bool:
    """Whether both lists have the same scores, rank by rank, so that only equally good answers differ."""
    return len(left) == len(right) and all(
        abs(a["score"] - b["score"]) <= TIE for a, b in zip(left, right, strict=True)
    )


def is_filled(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> bool:
    """Whether `theirs` only adds answers with the score 0, as release 4.57.6 does for short contexts."""
    kept = [answer for answer in theirs if answer["score"] > 0]
    return len(kept) < len(theirs) and list(map(span, kept)) == list(map(span, ours))


class Reading:
    """Reads pairs with one reader; caches the last logits, so that cases that differ only in decoding are fast."""

    def __init__(self, reader: LocalReader) -> None:
        self._reader = reader
        self._preparer = Preparer(reader.tokenizer, reader.manifest)
        self._known: dict[bytes, Logits] = {}

    def answer(self, question: str, context: str, given: dict[str, Any]) -> Any:
        check_padding(given.get("padding"))
        parameters = Parameters.of({name: value for name, value in given.items() if name != "padding"})
        prepared = self._preparer.prepare(question, context, parameters)
        self._known = {_name(window): self._logits(window) for window in prepared.windows}
        answers = Answers(prepared, parameters)
        for window in prepared.windows:
            answers.add(window, *self._known[_name(window)])
        return answers.result()

    def _logits(self, window: Window) -> Logits:
        return self._known.get(_name(window)) or self._reader.read([window])[0]


def _name(window: Window) -> bytes:
    return window.input_ids.tobytes()


def compare(reader: LocalReader, cases: Iterable[dict[str, Any]]) -> Report:
    """Answer every case and compare."""
    report, reading = Report(), Reading(reader)
    for case in cases:
        if "result" in case:
            report.add(case, reading.answer(case["question"], case["context"], case["parameters"]))
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the pipeline with that of transformers.")
    parser.add_argument("reader", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--show", type=int, default=5, help="differences to show")
    parser.add_argument("--runtime", default=None)
    parser.add_argument("--limit", type=int, default=None, help="compare the first cases only")
    given = parser.parse_args()
    lines = given.reference.read_text(encoding="utf-8").splitlines()[: given.limit]
    cases = [json.loads(line) for line in lines]
    reader = LocalReader(given.reader, runtime=given.runtime)
    for parameters in {json.dumps(case["parameters"]): None for case in cases}:
        report = compare(reader, (case for case in cases if json.dumps(case["parameters"]) == parameters))
        print(parameters, json.dumps(report.summary()))
        for item in report.different[: given.show]:
            shown = {name: item[name] for name in ("question", "result", "ours", "tie")}
            print("  ", json.dumps(shown, ensure_ascii=False)[:700])
    return 0


if __name__ == "__main__":
    sys.exit(main())
