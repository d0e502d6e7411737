"""A fake worker with random answers to jobs: right, wrong, for other jobs, repeated, late or missing. It may also die.

Some of its functions are slow and continue after their deadline.

Option: the seed of its random choices.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.fuzz.generate import Generator
from tests.fuzz.shapes import done
from tests.fuzz.words import RESP, Command, Word, junk, word
from tests.harness.fake_worker.link import Link, ReplyError
from tests.harness.fake_worker.worker import Worker

NAMES = b"*2\r\n*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n"
TENSOR: Command = ["INT8", 1, 2, b"\0\1"]
PATIENCE_SECONDS = 2.0
FUNCTIONS = ("script", "trigger", "event", "onregistered", "command")
SLOW_SECONDS = [0.25, 0.6]  # longer than the time limits of jobs: within and after the grace time


class Behaviour(Worker):
    """The worker."""

    jobs_at_once = 8

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__(options)
        self.generation = 0
        self.chance = random.Random(int(options[0]) + self.opening["worker"])

    def connect(self) -> None:
        """Connects, and learns the module's commands."""
        super().connect()
        self.generator = Generator(self.run_link.call("COMMAND", "LIST", "FILTERBY", "MODULE", "qa"))

    def attempt(self, *words: Word) -> Any:
        """Sends a command whose error does not matter."""
        try:
            return self.run_link.call(*words)
        except ReplyError:
            return None

    def outcome(self, kind: str, job: list[Any]) -> Command:
        """The outcome of a job, right in half of the cases."""
        chance = self.chance
        right = chance.random()
        if kind == "model.load" and right < 0.8:
            return ["OK", NAMES]
        if kind == "script.load" and right < 0.8:
            return ["OK", b"+OK\r\n"]
        if kind == "model.run" and right < 0.5:
            return ["TENSORS", 1, *TENSOR]
        if kind == "dag.run" and right < 0.5:
            return self.dag(job)
        if kind in ("script", "trigger", "event", "command", "onregistered") and right < 0.5:
            return [chance.choice(["OK", "OK", "OVERRIDE"]) if kind == "event" else "OK", chance.choice(RESP[4:6])]
        statuses = ["OK", "OVERRIDE", "SKIP", "ERR", "ABORTED", "TENSORS", "TIMEDOUT", "DAG", "WHAT"]
        rest: list[Command] = [[], [chance.choice(RESP)], [word(chance), word(chance)]]
        rest += [[1, word(chance), 0, junk(chance)], done(chance)[3:]]
        return [chance.choice(statuses), *chance.choice(rest)]

    def dag(self, job: list[Any]) -> Command:
        """An outcome with random numbers of steps and results. Some of these outcomes are right."""
        chance = self.chance
        steps, results = chance.choice([1, 1, 1, 2, 3, 30]), chance.choice([0, 1, 1, 1, 2])
        states: Command = []
        for _ in range(steps):
            states += chance.choice([["OK", 5, 1, ""], ["OK", 5, 1, ""], ["ERR", 5, 0, "ERR no"], ["NA", 0, 0, ""]])
        tensors: Command = []
        for _ in range(results):
            tensors += chance.choice([TENSOR, TENSOR, ["NA"]])
        return ["DAG", steps, *states, results, *tensors]

    def mischief(self, job: int) -> None:
        """Sends a command that the server has not asked for."""
        chance = self.chance
        kind = chance.randrange(8)
        if kind == 0:
            self.attempt("QA.DONE", chance.choice([job, job - 1, job + 1, 2**63 - 1, 0]), *done(chance)[2:])
        elif kind == 1:
            self.attempt("QA.SEND", word(chance), junk(chance))
        elif kind == 2 and chance.random() < 0.3:
            self.atomic()
        elif kind == 6 and chance.random() < 0.2:
            self.register()
        elif kind == 3 and chance.random() < 0.002:
            os._exit(1)
        elif kind == 4 and chance.random() < 0.002:
            self.control.socket.sendall(junk(chance))
        elif kind == 5 and chance.random() < 0.001:
            os.kill(os.getpid(), signal.SIGSTOP)

    def wander(self) -> None:
        """Sends random commands of the module on a separate link. Closes the link if no reply arrives."""
        chance = random.Random(self.opening["worker"])
        link: Link | None = None
        while True:
            time.sleep(0.005)
            name = chance.choice(self.generator.internal if chance.random() < 0.7 else self.generator.names)
            if name in ("QA.ATOMIC", "QA.READY") or (name == "QA.NEXT" and chance.random() < 0.99):
                continue
            if link is None:
                link = self.link()
                link.socket.settimeout(PATIENCE_SECONDS)
            try:
                link.send(*self.generator.of(chance, name))
                if chance.random() < 0.01:  # closes the link, which may be blocked
                    raise EOFError
                link.read()
            except ReplyError:
                continue
            except (TimeoutError, EOFError, ConnectionError):
                link.close()
                link = None

    def atomic(self) -> None:
        """Runs an atomic block, which may exceed its lease."""
        with self.run_link.lock:
            self.run_link.send("QA.ATOMIC", 30)
            try:
                if self.control.read() != "GO":
                    return
                commands: list[Command] = [["SET", "s", "1"], ["AI.TENSORSET", "t1", "INT8", 1]]
                commands += [["GET", "hook:a"], ["RG.TRIGGER", "echo"]]
                for words in commands:
                    self.control.send(*words)
                    self.control.read_element()
                time.sleep(self.chance.choice([0, 0, 0.05]))
                self.control.send("END")
                self.run_link.read()
            except ReplyError:
                self.control.read_element()  # END arrived after the lease

    def work(self, job: list[Any]) -> None:
        """Ends a job, except in rare cases."""
        number, kind = job[:2]
        if not number or self.chance.random() < 0.002:
            return
        try:
            if not self.attempt("QA.DONE", number, *self.outcome(kind, job)):
                self.attempt("QA.DONE", number, "ERR", "ERR no good outcome")
        except (EOFError, OSError):
            os._exit(0)

    def register(self) -> None:
        """Registers a trigger, events and a stream. After a failure, the next call uses new ids."""
        ids = [f"id-{4 * self.generation + number}" for number in range(1, 5)]
        rows: Command = [ids[0], "CommandReader", "async", "", "echo", "", "", "*0\r\n", "pd", "user", 0]
        rows += [ids[1], "KeysReader", "async", "", "hook:*", "keymiss", "get,mget", "*0\r\n", "pd", "own", 0]
        rows += [ids[2], "KeysReader", "async", "", "ev:*", "", "", "*0\r\n", "pd", "user", 0]
        stream: Command = [ids[3], "StreamReader", "async", "", "ev:st*", "", "", "*0\r\n", "pd", "user", 0]
        replies = [self.attempt("QA.REGISTER", "base", "", "src", "payload", 3, *rows)]
        replies.append(self.attempt("QA.REGISTER", "streams", "", "src", "payload", 1, *stream))
        self.generation += None in replies

    def begin(self) -> None:
        """Starts as usual, and then also sends random commands."""
        super().begin()
        threading.Thread(target=self.wander, daemon=True).start()

    def take(self, job: list[Any]) -> None:
        """Works on a job after some time, and may send a wrong command."""
        delays = SLOW_SECONDS if job[1] in FUNCTIONS and self.chance.random() < 0.1 else [0, 0, 0.02, 0.15]
        timer = threading.Timer(self.chance.choice(delays), self.work, [job])
        timer.daemon = True
        timer.start()
        self.mischief(job[0])
