"""A worker that breaks the protocol at a point of its start, or in its answer to a job.

Options: --die-at-every-point (worker number n dies at the n-th of POINTS, later workers live), --mute (beats, but never
becomes ready).

The key `answer:K` contains the answer to a job of kind K. Without the key, the worker does the job as `functions` does.
The answer is a JSON list of the words after `QA.DONE id`, where `hex:..` stands for bytes, or one of these:

- `["die"]`, `["half"]` (dies in the middle of QA.DONE), `["stay in atomic"]`
- `["close control"]`, `["half control"]`, `["long control"]`
- `["twice"]` (ends the job twice), `["others"]` (also ends other jobs)
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.harness.fake_worker import functions
from tests.harness.fake_worker.functions import die
from tests.harness.fake_worker.link import ReplyError, Word, encode

POINTS = ["line", "hello", "sessions", "beat", "ready", "next", "control", "garbage"]


class Behaviour(functions.Behaviour):
    """The worker."""

    def __init__(self, options: Sequence[str]) -> None:
        self.rogue_options = options
        super().__init__([])

    def begin(self) -> None:
        """Starts, or dies before its start if an option says so."""
        if "--mute" in self.rogue_options:
            self.link().call("QA.SESSIONS")
            self.beat()
        number = self.opening["worker"] - 1
        if "--die-at-every-point" in self.rogue_options and number < len(POINTS):
            self.die_at(POINTS[number])
        super().begin()

    def die_at(self, point: str) -> None:
        """Starts up to this point and dies; after `control` the server must kill it."""
        if point == "line":
            die()
        link = self.link()
        if point == "hello":
            die()
        link.call("QA.SESSIONS")
        if point == "sessions":
            die()
        link.call("QA.BEAT", "rss_bytes", 1)
        if point == "beat":
            die()
        if point == "garbage":
            link.socket.sendall(b"*3\r\n$7\r\nQA.DONE\r\n$-7\r\n\0\xff")
            die()
        if point == "control":
            self.control.socket.sendall(b"\xff\xfe nobody asked")
        link.call("QA.READY")
        if point == "ready":
            die()
        if point == "next":
            link.send("QA.NEXT", 16, 1000)
            die()

    def work(self, job: list[Any]) -> None:
        """Sends the answer that the key `answer:KIND` contains."""
        number, kind = job[:2]
        told = self.run_link.call("GET", f"answer:{kind}") if number else None
        if told is None:
            super().work(job)
            return
        words: list[Word] = [bytes.fromhex(w[4:]) if str(w).startswith("hex:") else w for w in json.loads(told)]
        special = getattr(self, "answer_" + str(words[0]).replace(" ", "_"), None)
        if special is not None:
            special(number)
            return
        try:
            self.done.call("QA.DONE", number, *words)
        except ReplyError as error:
            self.run_link.call("RPUSH", "refused", f"{kind}: {error}")
            try:
                self.done.call("QA.DONE", number, "ERR", f"ERR refused: {error}")
            except ReplyError as late:
                self.run_link.call("RPUSH", "late", str(late))

    def answer_die(self, _number: int) -> None:
        die()

    def answer_half(self, number: int) -> None:
        self.done.socket.sendall(encode(["QA.DONE", number, "OK", b"+OK\r\n"])[:-9])
        die()

    def answer_close_control(self, _number: int) -> None:
        self.control.close()

    def enter_atomic(self) -> None:
        """Enters an atomic block, and waits for the server's GO."""
        link = self.link()
        threading.Thread(target=lambda: link.send("QA.ATOMIC", 1000), daemon=True).start()
        if self.control.read() != "GO":
            raise RuntimeError("no atomic block")

    def answer_half_control(self, _number: int) -> None:
        self.enter_atomic()
        self.control.socket.sendall(encode(["SET", "half", "1"])[:-5])

    def answer_long_control(self, _number: int) -> None:
        self.enter_atomic()
        self.control.socket.sendall(b"*2\r\n$3\r\nGET\r\n$999999999\r\n")

    def answer_stay_in_atomic(self, _number: int) -> None:
        self.enter_atomic()
        time.sleep(3600)

    def answer_twice(self, number: int) -> None:
        replies = [str(self.done.attempt("QA.DONE", number, "OK", b"+first\r\n")).lstrip("-") for _ in range(2)]
        self.run_link.call("RPUSH", "twice", *replies)

    def answer_others(self, number: int) -> None:
        strange: list[Word] = [number + 1, number + 1000, 0, -1, 2**63 - 1, "x", ""]
        replies = [str(self.done.attempt("QA.DONE", other, "OK", b"+stolen\r\n")).lstrip("-") for other in strange]
        self.run_link.call("RPUSH", "others", *replies)
        self.done.call("QA.DONE", number, "OK", b"+own\r\n")
