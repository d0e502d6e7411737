"""A shard worker of the standard library that obeys the bytes of the "model": for the tests of the AI.* commands.

    identity   outputs are the inputs            add_scalar  one output without dimensions
    refuse     the file is no model              garbage     a blob that does not fit its shape
    slow       0.5 s, then identity              few         no outputs at all
    bytes      the model's own bytes, asked for with QA.MODEL        die   the process ends

Every `model.drop` is pushed to the list `drops`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any

OPENING = 3


class Link:
    """One connection to the shard."""

    def __init__(self, opening: dict[str, Any]) -> None:
        if opening["socket"]:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(opening["socket"])
        else:
            self.socket = socket.create_connection((opening["host"], opening["port"]))
        self.file = self.socket.makefile("rb")
        self.call("QA.HELLO", 1, opening["token"])

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


def run(link: Link, job: int, ref: int, count: int, flat: list[Any]) -> None:
    model: bytes = link.call("QA.MODEL", ref)[2]
    tensors = inputs_of(count, flat)
    if model == b"die":
        os._exit(1)
    if model == b"slow":
        time.sleep(0.5)
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


def serve(link: Link) -> None:
    while True:
        link.call("QA.BEAT", 0, 0, 0, 0, 0, 0)
        jobs = link.call("QA.NEXT", 1, 500)
        if isinstance(jobs, bytes):  # CLUSTERDOWN: the server unblocks everybody while the cluster is down
            time.sleep(0.05)
            continue
        for job, kind, _attempt, _timeout, *arguments in jobs or []:
            if kind == b"model.load":
                if arguments[3] == b"refuse":
                    link.call("QA.DONE", job, "ERR", "No graph was found in the protobuf.")
                elif arguments[3] == b"bad names":
                    link.call("QA.DONE", job, "OK", "*1\r\n*0\r\n")
                else:
                    link.call("QA.DONE", job, "OK", "*2\r\n*1\r\n$1\r\nx\r\n*1\r\n$1\r\ny\r\n")
            elif kind == b"model.run":
                run(link, job, arguments[0], arguments[3], arguments[5:])
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
