"""A worker that answers jobs as luck has it: rightly, wrongly, for others, twice, late, never; and that may die.

hostile_worker.py SEED
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.fuzz.generate import RESP, Word, junk, word
from tests.module.fake_worker import Link, ReplyError

READER = ["KeysReader", "CommandReader", "x"]


def registration(chance: random.Random, number: int) -> list[Word]:
    """Sometimes a good one."""
    match = chance.choice(["hook:*", "ev:*", "echo", "do", "*", ""])
    events, commands = chance.choice(["", "keymiss", "set,del"]), chance.choice(["", "get", "get,mget", "set"])
    fields: list[Word] = [f"id-{number}", chance.choice(READER), "async", "", match]
    fields += [events, commands, chance.choice(RESP), "pd"]
    if chance.random() < 0.1:
        fields[chance.randrange(9)] = word(chance)
    return fields


class HostileWorker:
    """The worker."""

    def __init__(self, seed: int) -> None:
        self.control = Link(socket.socket(fileno=3))
        self.hello = json.loads(self.control.file.readline())
        self.chance = random.Random(seed + self.hello["worker"])
        self.next, self.other = self.link(), self.link()

    def link(self) -> Link:
        """A new link."""
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(self.hello["socket"])
        link = Link(connected)
        link.call("QA.HELLO", 1, self.hello["token"])
        return link

    def attempt(self, *words: Word) -> Any:
        """A command whose error does not matter."""
        try:
            return self.other.call(*words)
        except ReplyError:
            return None

    def beat(self) -> None:
        """Keeps the worker alive."""
        link = self.link()
        while True:
            link.call("QA.BEAT", 1, 1, 1, 1, 1, 1)
            time.sleep(0.1)

    def outcome(self, kind: str) -> list[Word]:
        """How a job ends."""
        chance = self.chance
        if kind == "model.load" and chance.random() < 0.8:
            return ["OK", b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n"]
        if kind == "model.run" and chance.random() < 0.5:
            return ["TENSORS", 1, "INT8", 1, 2, b"\0\1"]
        status = chance.choice(["OK", "OVERRIDE", "SKIP", "ERR", "TENSORS", "WHAT"])
        rest: list[list[Word]] = [
            [],
            [chance.choice(RESP)],
            [word(chance), word(chance)],
            [1, word(chance), 0, junk(chance)],
        ]
        return [status, *chance.choice(rest)]

    def mischief(self, job: int) -> None:
        """Something nobody asked for."""
        chance = self.chance
        kind = chance.randrange(8)
        if kind == 0:
            count = chance.randint(0, 3)
            rows = [field for number in range(count) for field in registration(chance, number)]
            said = chance.choice([count, count, word(chance)])
            self.attempt("QA.REGISTER", chance.choice(["a", "b", ""]), "", "src", junk(chance), said, *rows)
        elif kind == 1:
            self.attempt("QA.DONE", chance.choice([job, job - 1, job + 1, 2**63 - 1, 0]), *self.outcome(""))
        elif kind == 2:
            self.attempt(chance.choice(["QA.MODELREF", "QA.MODEL"]), chance.choice(["m1", "m2", 1, 2, 3, word(chance)]))
        elif kind == 3:
            self.attempt("QA.SEND", word(chance), junk(chance))
        elif kind == 4 and chance.random() < 0.3:
            self.atomic()
        elif kind == 5 and chance.random() < 0.01:
            os._exit(1)
        elif kind == 6 and chance.random() < 0.005:
            self.control.socket.sendall(junk(chance))
        elif kind == 7 and chance.random() < 0.3:
            self.attempt("QA.NEXT", word(chance), chance.choice([0, 1, -1, word(chance)]))

    def atomic(self) -> None:
        """A block, which may outlive its lease."""
        self.other.send("QA.ATOMIC", 30)
        try:
            if self.control.read() != "GO":
                return
            commands: list[list[Word]] = [["SET", "s", "1"], ["AI.TENSORSET", "t1", "INT8", 1]]
            commands += [["GET", "hook:a"], ["RG.TRIGGER", "echo"]]
            for words in commands:
                self.control.send(*words)
                self.control.read_element()
            time.sleep(self.chance.choice([0, 0, 0.05]))
            self.control.send("END")
            self.other.read()
        except ReplyError:
            self.control.read_element()  # the END came too late

    def work(self, job: int, kind: str) -> None:
        """Ends a job; rarely, does not."""
        if job and self.chance.random() < 0.998 and not self.attempt("QA.DONE", job, *self.outcome(kind)):
            self.attempt("QA.DONE", job, "ERR", "ERR no good outcome")

    def serve(self) -> None:
        """Takes jobs until the server goes."""
        threading.Thread(target=self.beat, daemon=True).start()
        rows = ["id-1", "CommandReader", "async", "", "echo", "", "", "*0\r\n", "pd"]
        rows += ["id-2", "KeysReader", "async", "", "hook:*", "keymiss", "get,mget", "*0\r\n", "pd"]
        rows += ["id-3", "KeysReader", "async", "", "ev:*", "", "", "*0\r\n", "pd"]
        self.other.call("QA.SESSIONS")
        self.attempt("QA.REGISTER", "base", "", "src", "payload", 3, *rows)
        self.other.call("QA.READY")
        while True:
            try:
                jobs = self.next.call("QA.NEXT", 8, 200) or []
            except ReplyError:
                time.sleep(0.05)
                continue
            for job in jobs:
                delay = self.chance.choice([0, 0, 0.02, 0.15])
                timer = threading.Timer(delay, self.work, job[:2])
                timer.daemon = True
                timer.start()
                self.mischief(job[0])


if __name__ == "__main__":
    try:
        HostileWorker(int(sys.argv[1])).serve()
    except (EOFError, OSError):
        sys.exit(0)
