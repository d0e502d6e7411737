#!/usr/bin/env python3
"""Classify the wrong first answers of an evaluation: python3 errors.py FIGURES [KIND]

FIGURES is the output of `qa-cluster eval questions-dev.jsonl --out FIGURES`. The program prints the share of each kind
of error among the wrong first answers, with examples. With KIND, it prints only examples of this kind.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from check import words

HERE = Path(__file__).resolve().parent
EXAMPLES = 3
MOST = 50


def kind_of(question, first):
    """The kind of error of a wrong first answer; None without an answer."""
    if first is None:
        return "none told"
    own = question["document"] in (first["document_id"], *first["also_in"])
    given = words(first["text"])
    accepted = [words(answer) for answer in question["answers"]]
    if not own and any(holds(given, answer) or holds(answer, given) for answer in accepted):
        return "the answer, or nearly, from a document that the question does not name"
    if not own:
        return "another document"
    if any(set(given) & set(answer) for answer in accepted):
        return "overlaps with the answer"
    return "another place of the right document"


def holds(outer, inner):
    """Whether `outer` contains all words of `inner` in a row."""
    return any(outer[at : at + len(inner)] == inner for at in range(len(outer) - len(inner) + 1)) if inner else False


def main(figures, only=None):
    found = json.loads(Path(figures).read_text(encoding="utf-8"))
    lines = (HERE / found["file"]).read_text(encoding="utf-8").splitlines()
    questions = {row["question"]: row for row in map(json.loads, lines)}
    kinds = defaultdict(list)
    for row in found["answers"]["plain"]:
        if questions[row["question"]]["answers"] and not row["right"]:
            first = row["answers"][0] if row["answerable"] else None
            kinds[kind_of(questions[row["question"]], first)].append((row, first))
    total = sum(map(len, kinds.values()))
    if not total:
        sys.exit("there are no wrong first answers")
    for kind, rows in sorted(kinds.items(), key=lambda item: -len(item[1])):
        if only not in (None, kind):
            continue
        print(f"{len(rows) / total:6.1%}  {len(rows):4}  {kind}")
        for row, first in rows[: EXAMPLES if only is None else None]:
            given = "" if first is None else f"{first['text'][:MOST]!r} ({first['probability']:.2f}), "
            print(f"              {row['question']}  {given}not {questions[row['question']]['answers'][0][:MOST]!r}")
    later = sum(row["right_in_three"] for rows in kinds.values() for row, _ in rows)
    print(f"{later / total:6.1%}  {later:4}  of these questions have the right answer in second or third place")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
