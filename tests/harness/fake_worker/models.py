"""Models that do what their bytes say, and scripts that do what their function's name says.

    identity   outputs are the inputs                      add_scalar  one output without dimensions
    refuse     an error: the file is not a model           garbage     a blob that does not fit its shape
    held       waits for a file `go`, then identity        few         no outputs
    bytes      the model's own bytes from QA.MODELPART     die         the process ends
    busy       the outcome TIMEDOUT                        fail        an error

The worker refuses a script whose source is `refuse`. The name of a function says what its step does: `echo` outputs
user, function, keys and arguments as strings, `source` outputs the source. Any other function behaves like a model of
that name. A step `lie-..` makes the whole result of its DAG invalid (see LIES). The worker pushes every `model.drop` to
the list `drops`. It runs one job at a time.
"""

from __future__ import annotations

import os
from typing import Any

from tests.harness.fake_worker.link import Word
from tests.harness.fake_worker.worker import Worker, wait_for_file

MAX_PART = 4 << 20
Slots = dict[int, list[Any]]

TENSOR: list[Word] = ["INT8", 1, 1, b"\1"]
# The words of QA.DONE for a DAG of one step and one result.
LIES: dict[bytes, list[Word]] = {
    b"lie-ok": ["OK"],
    b"lie-tensors": ["TENSORS", 1, *TENSOR],
    b"lie-skip": ["SKIP"],
    b"lie-count": ["DAG", 2, "OK", 1, 1, "", 1, *TENSOR],
    b"lie-negative": ["DAG", -1, "OK", 1, 1, "", 1, *TENSOR],
    b"lie-state": ["DAG", 1, "FINE", 1, 1, "", 1, *TENSOR],
    b"lie-us": ["DAG", 1, "OK", -1, 1, "", 1, *TENSOR],
    b"lie-long": ["DAG", 1, "OK", 2**62, 1, "", 1, *TENSOR],
    b"lie-samples": ["DAG", 1, "OK", 1, 2**62, "", 1, *TENSOR],
    b"lie-error": ["DAG", 1, "ERR", 1, 1, "", 1, "NA"],
    b"lie-good-error": ["DAG", 1, "OK", 1, 1, "but", 1, *TENSOR],
    b"lie-skipped": ["DAG", 1, "NA", 0, 0, "", 1, "NA"],
    b"lie-missing": ["DAG", 1, "OK", 1, 1, "", 1, "NA"],
    b"lie-results": ["DAG", 1, "OK", 1, 1, "", 2, *TENSOR, *TENSOR],
    b"lie-none": ["DAG", 1, "OK", 1, 1, "", 0],
    b"lie-blob": ["DAG", 1, "OK", 1, 1, "", 1, "INT32", 1, 4, b"short"],
    b"lie-end": ["DAG", 1, "OK", 1, 1, "", 1, "INT32", 1],
    b"lie-step": ["DAG", 1, "OK"],
    b"lie-more": ["DAG", 1, "OK", 1, 1, "", 1, *TENSOR, "more"],
    b"busy": ["TIMEDOUT"],
}


def tensors_of(count: int, flat: list[Any]) -> list[list[Any]]:
    """Takes the tensors (type, rank, dimensions, blob) from the front of a job's arguments."""
    tensors = []
    for _ in range(count):
        width = 3 + flat[1]
        tensors.append(flat[:width])
        del flat[:width]
    return tensors


def act(word: bytes) -> None:
    """Waits for the word `held`, and dies for the word `die`."""
    if word == b"held":
        wait_for_file("go")
    if word == b"die":
        os._exit(1)


class Step:
    """One step of a dag.run job, taken from the front of its arguments."""

    def __init__(self, rest: list[Any]) -> None:
        self.kind, self.ref, self.backend, self.device, *self.batching = (rest.pop(0) for _ in range(7))
        self.function: bytes = rest.pop(0)
        self.keys, self.args, self.inputs, self.outputs = ([rest.pop(0) for _ in range(rest.pop(0))] for _ in range(4))
        self.word = b""

    def run(self, worker: Behaviour, user: bytes, slots: Slots) -> list[Word]:
        """Fills the outputs of the step; returns state, us, samples and error."""
        if self.kind == b"model":
            source = self.word = worker.fetch(self.ref)
        else:
            source, self.word = worker.run_link.call("QA.SCRIPT", self.ref)[1], self.function
        given = [slots[slot] for slot in self.inputs if slot in slots]
        if len(given) < len(self.inputs):
            return ["NA", 0, 0, ""]
        act(self.word)
        if self.word == b"fail":
            return ["ERR", 7, 0, "ERR the step\nfailed"]
        outputs = given[: len(self.outputs)]
        if self.word == b"echo":
            words = [user, self.function, *self.keys, b"|", *self.args]
            outputs = [[b"STRING", 1, len(words), b"".join(word + b"\0" for word in words)]]
        if self.word == b"source":
            outputs = [[b"STRING", 1, 1, source + b"\0"]]
        slots.update(zip(self.outputs, outputs, strict=True))
        return ["OK", 1000, outputs[0][2] if outputs and outputs[0][1] else 0, ""]


class Behaviour(Worker):
    """The worker."""

    decode = False
    jobs_at_once = 1

    def fetch(self, ref: int) -> bytes:
        """The bytes of a model, in parts."""
        size: int = self.run_link.call("QA.MODEL", ref)[2]
        model = b""
        while len(model) < size:
            model += self.run_link.call("QA.MODELPART", ref, len(model), 7 if size < 1000 else MAX_PART)
        return model

    def notice(self, kind: str, arguments: list[Any]) -> None:
        """Records the refs of dropped models."""
        if kind == "model.drop":
            self.run_link.call("RPUSH", "drops", arguments[0])

    def do_model_load(self, _attempt: int, ref: int, _backend: bytes, _device: bytes, size: int, *_: Any) -> list[Word]:
        """Accepts a model, with the input x and the output y."""
        model = self.fetch(ref)
        if model == b"refuse":
            return ["ERR", "No graph was found in the protobuf."]
        if len(model) != size:
            return ["ERR", f"{size} bytes were announced, {len(model)} came"]
        if model == b"bad names":
            return ["OK", b"*1\r\n*0\r\n"]
        return ["OK", b"*2\r\n*1\r\n$1\r\nx\r\n*1\r\n$1\r\ny\r\n"]

    def do_model_run(self, _attempt: int, ref: int, *rest: Any) -> list[Word]:
        """Runs the behaviour that the model's bytes name."""
        model = self.fetch(ref)
        tensors = tensors_of(rest[6], list(rest[8:]))
        act(model)
        if model == b"busy":
            return ["TIMEDOUT"]
        if model == b"fail":
            return ["ERR", "ERR the model\nfailed"]
        if model == b"garbage":
            tensors = [[b"INT32", 1, 4, b"short"]]
        elif model == b"few":
            tensors = []
        elif model == b"add_scalar":
            tensors = [[b"FLOAT", 0, b"\0\0\x80\x3f"]]
        elif model.startswith(b"bytes"):
            tensors = [[b"UINT8", 1, len(model), model]]
        return ["TENSORS", len(tensors), *(part for tensor in tensors for part in tensor)]

    def do_script_load(self, _attempt: int, *arguments: Any) -> list[Word]:
        """Refuses the script if its source says so."""
        source, names = arguments[2], arguments[4:]
        if source == b"refuse":
            return ["ERR", f"Function {names[0].decode()} does not exist in the given script."]
        return ["SKIP"] if source == b"garbage" else ["OK"]

    def do_dag_run(self, _attempt: int, user: bytes, _timeout: Any, *arguments: Any) -> list[Word]:
        """Runs the steps in their order, and stops after a step that failed."""
        rest = list(arguments)
        slots: Slots = dict(enumerate(tensors_of(rest.pop(0), rest)))
        steps = [Step(rest) for _ in range(rest.pop(0))]
        reports: list[Word] = []
        for step in steps:
            reports += step.run(self, user, slots) if "ERR" not in reports[::4] else ["NA", 0, 0, ""]
        for step in steps:
            if step.word in LIES:
                return LIES[step.word]
        results = [part for slot in rest[1:] for part in slots.get(slot, ["NA"])]
        return ["DAG", len(steps), *reports, len(rest) - 1, *results]
