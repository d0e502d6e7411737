"""Compares all answers of transformers' pipeline and this project's pipeline, with a real checkpoint.

    python -m tests.parity.full --reference PYTHON CHECKPOINT QUESTIONS.. [--pairs N] [--out FOLDER]

PYTHON is the program of the environment of requirements.txt. The program first exports CHECKPOINT in float32, which
needs the extra `export`. QUESTIONS are SQuAD-format files; their text is stored only in FOLDER. The exit status is 1 if
an answer differs and is not equally good.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from qa_cluster.reading.local_reader import LocalReader
from tests.parity.cases import cases
from tests.parity.compare import compare

HERE = Path(__file__).parent
SEED = 5
PARAMETERS: list[dict[str, Any]] = [
    {},
    {"top_k": 3, "handle_impossible_answer": True},
    {"align_to_words": False, "max_answer_len": 30},
]


def pairs_of(questions: Path) -> list[tuple[str, str]]:
    """The questions and contexts of a SQuAD-format file."""
    document = json.loads(questions.read_text(encoding="utf-8"))
    paragraphs = [paragraph for article in document["data"] for paragraph in article["paragraphs"]]
    return [(asked["question"], paragraph["context"]) for paragraph in paragraphs for asked in paragraph["qas"]]


def write_cases(found: list[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in found), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Parity with the pipeline of transformers, on whole question sets.")
    parser.add_argument("--reference", required=True, help="Python program of the parity environment")
    parser.add_argument("--pairs", type=int, help="number of pairs to ask from each file, drawn with a fixed seed")
    parser.add_argument(
        "--out", type=Path, default=Path("build/parity"), help="folder for the reader, cases and answers"
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("questions", type=Path, nargs="*")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    folder = given.out / "float32"
    export = [sys.executable, "-m", "qa_cluster.models", "export", str(given.checkpoint), str(folder)]
    subprocess.run(export, check=True, stdout=subprocess.DEVNULL)
    sets = {"edge cases": cases()}
    for path in given.questions:
        pairs = pairs_of(path)
        if given.pairs is not None and given.pairs < len(pairs):
            pairs = random.Random(SEED).sample(pairs, given.pairs)
        sets[path.stem] = [
            {"question": question, "context": context, "parameters": parameters}
            for question, context in pairs
            for parameters in PARAMETERS
        ]
    reader = LocalReader(folder)
    failed = False
    for name, found in sets.items():
        asked, answered = given.out / f"{name}.cases.jsonl", given.out / f"{name}.reference.jsonl"
        write_cases(found, asked)
        script = [given.reference, str(HERE / "reference.py"), str(given.checkpoint), str(asked), str(answered)]
        subprocess.run(script, check=True)
        lines = answered.read_text(encoding="utf-8").splitlines()
        report = compare(reader, (json.loads(line) for line in lines))
        print(f"{name}: {json.dumps(report.summary())}")
        for item in report.different:
            print("  ", json.dumps({key: item[key] for key in ("question", "parameters", "result", "ours")})[:600])
            failed = failed or not (item["tie"] or item["filled"])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
