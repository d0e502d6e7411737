"""A shard worker of the standard library that obeys the bytes of the "model": for the tests of the AI.* commands.

    identity   outputs are the inputs            add_scalar  one output without dimensions
    refuse     the file is no model              garbage     a blob that does not fit its shape
    slow       1 s, then identity                few         no outputs at all
    bytes      the model's own bytes, asked for with QA.MODELPART    die   the process ends
    busy       it says TIMEDOUT

A script is refused if its source is `refuse`. What a step of it does is in the name of its function: `echo` puts out
user, function, keys and arguments as strings, `source` the source, anything else what a model of that name does.
A step `lie-..` makes the whole result of its DAG a lie (see LIES). Every `model.drop` is pushed to the list `drops`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

OPENING = 3
MAX_PART = 4 << 20
Slots = dict[int, list[Any]]


class Link:
    """One connection to the shard."""

    def __init__(self, opening: dict[str, Any]) -> None:
        if opening["socket"]:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(opening["socket"])
        else:
            self.socket = socket.create_connection((opening["host"], opening["port"]))
        self.file = self.socket.makefile("rb")
        self.call("QA.HELLO", 2, opening["token"])

    def call(self, *arguments: str | int | bytes) -> Any:
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
        return self.read()

    def read(self) -> Any:
        line = self.file.readline()
        if not line:
            sys.exit(0)
        kind, rest = line[:1], line[1:-2]
        if kind in b"+-":
            return rest
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"*":
            return [self.read() for _ in range(size)]
        return self.file.read(size + 2)[:-2]


def inputs_of(count: int, flat: list[Any]) -> list[list[Any]]:
    tensors = []
    for _ in range(count):
        width = 3 + flat[1]
        tensors.append(flat[:width])
        flat = flat[width:]
    return tensors


def fetch(link: Link, ref: int) -> bytes:
    size: int = link.call("QA.MODEL", ref)[2]
    parts: list[bytes] = []
    while (offset := sum(len(part) for part in parts)) < size:
        parts.append(link.call("QA.MODELPART", ref, offset, 7 if size < 1000 else MAX_PART))
    return b"".join(parts)


def run(link: Link, job: int, ref: int, count: int, flat: list[Any]) -> None:
    model = fetch(link, ref)
    tensors = inputs_of(count, flat)
    if model == b"die":
        os._exit(1)
    if model == b"slow":
        time.sleep(1)
    if model == b"busy":
        link.call("QA.DONE", job, "TIMEDOUT")
        return
    if model == b"garbage":
        tensors = [[b"INT32", 1, 4, b"short"]]
    elif model == b"few":
        tensors = []
    elif model == b"add_scalar":
        tensors = [[b"FLOAT", 0, b"\0\0\x80\x3f"]]
    elif model.startswith(b"bytes"):
        tensors = [[b"UINT8", 1, len(model), model]]
    elif model == b"fail":
        link.call("QA.DONE", job, "ERR", "ERR the model\nfailed")
        return
    link.call("QA.DONE", job, "TENSORS", len(tensors), *(part for tensor in tensors for part in tensor))


class Step:
    """One step of a dag.run job, taken from the front of its arguments."""

    def __init__(self, rest: list[Any]) -> None:
        self.kind, self.ref, self.backend, self.device, *self.batching = (rest.pop(0) for _ in range(7))
        self.function: bytes = rest.pop(0)
        self.keys, self.args, self.inputs, self.outputs = ([rest.pop(0) for _ in range(rest.pop(0))] for _ in range(4))
        self.word = b""

    def run(self, link: Link, user: bytes, slots: Slots) -> list[Any]:
        """Fills its outputs; returns state, us, samples, error."""
        if self.kind == b"model":
            source = self.word = fetch(link, self.ref)
        else:
            source, self.word = link.call("QA.SCRIPT", self.ref)[1], self.function
        outputs = [slots[slot] for slot in self.inputs if slot in slots][: len(self.outputs)]
        if len([slot for slot in self.inputs if slot in slots]) < len(self.inputs):
            return ["NA", 0, 0, ""]
        if self.word == b"slow":
            time.sleep(1)
        if self.word == b"die":
            os._exit(1)
        if self.word == b"fail":
            return ["ERR", 7, 0, "ERR the step\nfailed"]
        if self.word == b"echo":
            words = [user, self.function, *self.keys, b"|", *self.args]
            outputs = [[b"STRING", 1, len(words), b"".join(word + b"\0" for word in words)]]
        if self.word == b"source":
            outputs = [[b"STRING", 1, 1, source + b"\0"]]
        slots.update(zip(self.outputs, outputs, strict=True))
        return ["OK", 1000, outputs[0][2] if outputs and outputs[0][1] else 0, ""]


TENSOR = ["INT8", 1, 1, b"\1"]
# What QA.DONE says of a DAG of one step and one result.
LIES: dict[bytes, list[Any]] = {
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


def run_dag(link: Link, job: int, user: bytes, rest: list[Any]) -> None:
    slots: Slots = {}
    for slot in range(rest.pop(0)):
        width = 3 + rest[1]
        slots[slot], rest[:width] = rest[:width], []
    steps = [Step(rest) for _ in range(rest.pop(0))]
    reports: list[Any] = []
    for step in steps:
        reports += step.run(link, user, slots) if "ERR" not in reports[::4] else ["NA", 0, 0, ""]
    for step in steps:
        if step.word in LIES:
            link.call("QA.DONE", job, *LIES[step.word])
            return
    results = [part for slot in rest[1:] for part in slots.get(slot, ["NA"])]
    link.call("QA.DONE", job, "DAG", len(steps), *reports, len(rest) - 1, *results)


def load_script(link: Link, job: int, source: bytes, names: list[bytes]) -> None:
    if source == b"refuse":
        link.call("QA.DONE", job, "ERR", f"Function {names[0].decode()} does not exist in the given script.")
    else:
        link.call("QA.DONE", job, *(["SKIP"] if source == b"garbage" else ["OK"]))


def serve(link: Link) -> None:
    while True:
        link.call("QA.BEAT", 0, 0, 0, 0, 0, 0)
        jobs = link.call("QA.NEXT", 1, 500)
        if isinstance(jobs, bytes):  # CLUSTERDOWN: the server unblocks everybody while the cluster is down
            time.sleep(0.05)
            continue
        for job, kind, _attempt, _timeout, *arguments in jobs or []:
            if kind == b"model.load":
                model = fetch(link, arguments[0])
                if model == b"refuse":
                    link.call("QA.DONE", job, "ERR", "No graph was found in the protobuf.")
                elif len(model) != arguments[3]:
                    link.call("QA.DONE", job, "ERR", f"{arguments[3]} bytes were announced, {len(model)} came")
                elif model == b"bad names":
                    link.call("QA.DONE", job, "OK", "*1\r\n*0\r\n")
                else:
                    link.call("QA.DONE", job, "OK", "*2\r\n*1\r\n$1\r\nx\r\n*1\r\n$1\r\ny\r\n")
            elif kind == b"model.run":
                run(link, job, arguments[0], arguments[7], arguments[9:])
            elif kind == b"script.load":
                load_script(link, job, arguments[2], arguments[4:])
            elif kind == b"dag.run":
                run_dag(link, job, arguments[0], arguments[2:])
            elif kind == b"model.drop":
                link.call("RPUSH", "drops", arguments[0])


def main() -> None:
    with os.fdopen(OPENING, "rb", buffering=0) as control:
        line = b""
        while not line.endswith(b"\n"):
            line += control.read(1) or sys.exit(0)
        link = Link(json.loads(line))
        link.call("QA.READY")
        serve(link)


if __name__ == "__main__":
    main()
