"""Answers of the last released question-answering pipeline of transformers; runs in a separate environment.

    python tests/parity/reference.py CHECKPOINT CASES OUT [--logits]

CASES has one JSON object per line: `question`, `context` and, in `parameters`, the keyword arguments. OUT gets the same
objects with `result` or, on a failure, `error`. With `--logits`, it also gets `windows`: the token ids, start logits
and end logits of each window. The program needs the packages of requirements.txt and nothing of this project.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import pipeline

THREADS = 1


class Recorder:
    """A model that records its inputs and outputs, so that cases that differ only in decoding are fast.

    `decimals` rounds the logits, so that the stored logits are exactly those that the pipeline decoded.
    """

    def __init__(self, model: Any, *, decimals: int | None = None) -> None:
        self._forward = model.forward
        self._decimals = decimals
        self._known: dict[tuple[int, ...], Any] = {}
        self.windows: list[dict[str, list[float]]] = []
        model.forward = self.forward

    def forward(self, **arrays: Any) -> Any:
        ids = arrays["input_ids"]
        name = tuple(ids[0].tolist())
        if len(ids) > 1 or name not in self._known:
            outputs = self._forward(**arrays)
            if self._decimals is not None:
                for part in ("start_logits", "end_logits"):
                    outputs[part] = outputs[part].round(decimals=self._decimals)
            self._known[name] = outputs
        outputs = self._known[name]
        used = int(arrays["attention_mask"][0].sum())
        self.windows.append(
            {
                "ids": ids[0, :used].tolist(),
                "types": arrays["token_type_ids"][0, :used].tolist() if "token_type_ids" in arrays else [],
                "start": [round(value, 5) for value in outputs["start_logits"][0, :used].tolist()],
                "end": [round(value, 5) for value in outputs["end_logits"][0, :used].tolist()],
            }
        )
        return outputs

    def forget(self) -> None:
        self._known.clear()


def asked(qa: Any, recorder: Recorder, case: dict[str, Any]) -> dict[str, Any]:
    """Return `result` or `error` of a case, and its `windows`."""
    recorder.windows.clear()
    try:
        result = qa(question=case["question"], context=case["context"], **case["parameters"])
    except BaseException as error:  # a panic of the tokenizer is not an Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        return {"error": f"{type(error).__name__}: {error}"[:200], "windows": []}
    return {"result": result, "windows": list(recorder.windows)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Answers of the pipeline of transformers 4.57.6.")
    parser.add_argument("checkpoint", help="folder of a question-answering checkpoint")
    parser.add_argument("cases", type=Path, help="JSON lines: question, context, parameters")
    parser.add_argument("out", type=Path, help="file to write: the same lines with their results")
    parser.add_argument("--logits", action="store_true", help="write the windows and their logits too")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    qa = pipeline("question-answering", model=given.checkpoint, device=-1)
    recorder = Recorder(qa.model)
    cases = [json.loads(line) for line in given.cases.read_text(encoding="utf-8").splitlines()]
    last = ("", "")
    with given.out.open("w", encoding="utf-8") as out:
        for number, case in enumerate(cases, 1):
            if (case["question"], case["context"]) != last:
                recorder.forget()
                last = (case["question"], case["context"])
            case.update(asked(qa, recorder, case))
            if not given.logits:
                del case["windows"]
            out.write(json.dumps(case, ensure_ascii=False) + "\n")
            if number % 500 == 0:
                print(f"{number} of {len(cases)}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
