"""Random AI.*, RG.* and QA.* commands against a real server with a hostile worker, from clients that vanish.

    python -m tests.fuzz.fuzz_commands --cases 5000 --seed 1 [--server redis]

Ends with 1, and says which case, when the server dies, hangs, loses step with a client or the sanitizer complains.
QA_TEST_MODULE and QA_TEST_PRELOAD choose a sanitized build as for the tests (tests/servers.py).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tests.fuzz.generate import KEYS, Command, command, encode
from tests.module.fake_worker import Link, ReplyError
from tests.servers import Server, chosen_servers, eventually, find_binary

WORKER = Path(__file__).with_name("hostile_worker.py")
SETTINGS: dict[str, object] = {
    "qa.job-timeout-ms": 200,
    "qa.hook-timeout-ms": 200,
    "qa.script-timeout-ms": 300,
    "qa.cancel-grace-ms": 500,
}
SETTINGS |= {"qa.worker-backoff-ms": 5, "qa.max-queue": 50, "qa.max-events": 100, "appendonly": "yes"}
PATIENCE_SECONDS = 10.0
CHECK_EVERY = 50
MOST_WAITING = 12
REPORTS = ("ERROR: AddressSanitizer", "runtime error:", "ASSERTION FAILED", "BUG REPORT")


class Finding(Exception):
    """What the fuzzer is after."""


class Fuzzer:
    """One run."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.chance = random.Random(seed)
        self.links: list[Link] = []
        self.waiting: list[Link] = []  # have not read their replies yet
        self.dumps: list[bytes] = []
        self.last: list[Command] = []

    def connect(self) -> Link:
        """A new client."""
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(PATIENCE_SECONDS)
        connected.connect(str(self.server.socket))
        return Link(connected)

    def step(self) -> None:
        """One command, and whatever its client does next."""
        chance = self.chance
        if not self.links or (len(self.links) < MOST_WAITING and chance.random() < 0.2):
            self.links.append(self.connect())
        link = chance.choice(self.links)
        words = self.disturbance(chance) if chance.random() < 0.08 else command(chance)
        self.last = [*self.last[-20:], words]
        self.links.remove(link)
        try:
            link.socket.sendall(encode(words))
            link.socket.sendall(encode(["ECHO", "in step"]))
        except ConnectionError:
            link.socket.close()
            return
        self.waiting.append(link)
        if chance.random() < 0.4:
            self.settle(link)
        while len(self.waiting) > MOST_WAITING:
            self.settle(chance.choice(self.waiting))

    def settle(self, link: Link) -> None:
        """Its client reads the replies, or leaves without them."""
        self.waiting.remove(link)
        if self.chance.random() < 0.3:
            link.socket.close()
            return
        try:
            self.read_error_too(link)
            if self.read_error_too(link) not in ("in step", "QUEUED"):
                raise Finding("a client is out of step")
        except (EOFError, ConnectionError):
            link.socket.close()
        except TimeoutError as error:
            raise Finding(f"no reply within {PATIENCE_SECONDS} s") from error
        else:
            self.links.append(link)

    def read_error_too(self, link: Link) -> Any:
        """A reply of any kind."""
        try:
            return link.read()
        except ReplyError as error:
            return error

    def disturbance(self, chance: random.Random) -> Command:
        """What the server or an administrator may do meanwhile."""
        kind = chance.randrange(10)
        if kind == 0:
            self.kill_worker()
        if kind == 1:
            return ["RESTORE", chance.choice(KEYS[:4]), 0, self.damaged(chance), "REPLACE"]
        choices: list[Command] = [
            ["CLIENT", "KILL", "USER", "default", "SKIPME", "yes"],
            ["CLIENT", "PAUSE", 30, chance.choice(["WRITE", "ALL"])],
            ["FLUSHALL", chance.choice(["SYNC", "ASYNC"])] if chance.random() < 0.3 else ["WAIT", 0, 1],
            ["DEBUG", "RELOAD"] if chance.random() < 0.2 else ["SAVE"],
            ["ACL", "SETUSER", "default", "on", "nopass", "~*", "&*", "+@all"],
            ["CONFIG", "SET", "qa.max-queue", chance.choice([1, 50])],
            ["INFO", "everything"],
            ["CLIENT", "UNBLOCK", chance.randint(1, 200), "ERROR"],
            ["MULTI"],
            ["EXEC"],
        ]
        return chance.choice(choices)

    def kill_worker(self) -> None:
        """Rarely: its restarts get slower each time."""
        pid = self.server.field("worker_pid") if self.chance.random() < 0.05 else 0
        if pid:
            os.kill(pid, signal.SIGKILL)

    def damaged(self, chance: random.Random) -> bytes:
        """A payload that RESTORE takes apart."""
        with self.server.client(decode_responses=False) as client:
            client.execute_command("DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", 1)
            dump = client.dump(chance.choice(KEYS[:4]))
        if dump:
            self.dumps = [*self.dumps[-10:], dump]
        if not self.dumps:
            return b"x"
        body = bytearray(chance.choice(self.dumps))
        for _ in range(chance.randint(0, 4)):
            body[chance.randrange(len(body) - 10)] = chance.randrange(256)
        return bytes(body)

    def check(self) -> None:
        """The server lives, answers and has nothing to report."""
        output = self.server.output()
        if any(report in output for report in REPORTS):
            raise Finding("the server's output has a report")
        if self.server.process is None or self.server.process.poll() is not None:
            raise Finding("the server has ended")
        with self.server.client(socket_timeout=PATIENCE_SECONDS) as client:
            client.ping()

    def run(self, cases: int) -> None:
        """All cases, then a last look: everybody gone, nothing may be left over."""
        for case in range(cases):
            try:
                self.step()
                if case % CHECK_EVERY == 0:
                    self.check()
            except (Finding, OSError) as error:
                raise Finding(f"case {case}: {error}; the last commands: {self.last[-5:]!r}") from error
        while self.waiting:
            self.settle(self.waiting[0])
        for link in self.links:
            link.socket.close()
        self.check()
        eventually(self.is_idle, PATIENCE_SECONDS)

    def is_idle(self) -> bool:
        """No client waits any more."""
        fields = self.server.info()
        return int(fields["qa_queued_clients"]) == 0 and int(fields["blocked_clients"]) <= 1


def fuzz(cases: int, seed: int, name: str) -> dict[str, int]:
    """Runs the fuzzer on a server of its own; raises Finding. Returns how many jobs of each kind were done."""
    binary = find_binary(name)
    if binary is None:
        raise SystemExit(f"no {name} server on this machine")
    worker = f'"{sys.executable}" "{WORKER}" {seed}'
    with Server(binary, SETTINGS, worker=worker) as server:
        server.wait_ready()
        try:
            Fuzzer(server, seed).run(cases)
        except Exception as error:
            raise Finding(f"seed {seed}: {error!r}\n{server.output()}") from error
        jobs = {key: int(value["ok"]) for key, value in server.info().items() if key.startswith("qa_jobs_")}
        jobs["workers"] = int(server.field("worker_number"))
        process = server.process
        server.stop()
        if process is None or process.returncode != 0:
            raise Finding(f"seed {seed}: the server ended with {process and process.returncode}\n{server.output()}")
        return jobs


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", choices=["valkey", "redis"], default=chosen_servers()[0])
    options = parser.parse_args()
    try:
        jobs = fuzz(options.cases, options.seed, options.server)
    except Finding as finding:
        raise SystemExit(f"FOUND: {finding}") from finding
    print(f"{options.cases} cases, seed {options.seed}, {options.server}: nothing found; {jobs}")


if __name__ == "__main__":
    main()
