"""Runs `make test` again and again beside busy processes, to show whether chance can fail a test.

    python -m tests.harness.rounds --rounds 10 --busy 2 [--log FILE] [COMMAND..]

It prints a line per round: its number, seconds, how many tests passed, and the names of those that failed. It also
appends the lines to a log: after an interruption the same command continues (`--fresh` begins anew). The output of each
round is beside the log. The exit status is 1 if any round of the log failed. COMMAND replaces `make test`.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.harness.processes import descendants

# The process ends when its parent is gone, however that ended.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
PASSED = re.compile(r"^(?:=+ )?(?:\d+ \w+, )*(\d+) passed\b.* in [\d.]+s", re.MULTILINE)
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
LINE = re.compile(r"^round (\d+): .*?(\d+) failed")
GRACE_SECONDS = 60
LOOK_SECONDS = 0.2
PR_SET_CHILD_SUBREAPER = 36
MAKES_OWN = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "ARGS")


@dataclass(frozen=True)
class Round:
    """The result of one round."""

    number: int
    seconds: float
    passed: int
    failed: tuple[str, ...]

    @classmethod
    def of(cls, number: int, seconds: float, status: int, output: str) -> Round:
        """Reads the result from the command's output and exit status."""
        failed = tuple(dict.fromkeys(FAILED.findall(output)))
        if status and not failed:
            failed = (f"the command ended with {status}",)
        return cls(number, seconds, sum(map(int, PASSED.findall(output))), failed)

    def __str__(self) -> str:
        names = ": " + "; ".join(self.failed) if self.failed else ""
        return f"round {self.number}: {self.seconds:.0f} s, {self.passed} passed, {len(self.failed)} failed{names}"


@contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs this many processes that only compute."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


# The number of the signal that asked for the end. Handlers only note it: an exception from one could come between the
# start of a process and the first line that knows it.
_asked: list[int] = []


def _end_of(process: subprocess.Popen[bytes], beside: Collection[subprocess.Popen[bytes]] | None) -> int:
    """The exit status of a process, once it has ended; SystemExit once a signal has asked for the end."""
    while True:
        if _asked:
            sys.exit(128 + _asked[0])
        if beside is not None:
            _forget_orphans([process, *beside])
        try:
            return process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _forget_orphans(own: Collection[subprocess.Popen[bytes]]) -> None:
    """Takes adopted processes that have ended out of the list of processes.

    A round leaves more than a thousand, and each makes every look at that list, such as those of the tests, slower.
    """
    while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        mine = [process for process in own if process.pid == ended.si_pid]
        if mine:
            mine[0].wait()
        else:
            os.waitpid(ended.si_pid, 0)
        if not any(process.returncode is None for process in own):
            return  # without children the call above fails


def adopt_orphans() -> bool:
    """Become the parent of what the processes below leave: servers, which have sessions of their own.

    Their environment does not tell them: a server overwrites it with its title. Returns whether it can (Linux).
    """
    return sys.platform == "linux" and ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _end(process: subprocess.Popen[bytes], others: set[int]) -> None:
    """End a command, and then whatever it started and left; `others` were there before it."""
    os.killpg(process.pid, signal.SIGINT)  # pytest ends its servers then
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while left := descendants(os.getpid()).keys() - others:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_SECONDS)


def run(command: list[str], output: Path, beside: Collection[subprocess.Popen[bytes]] | None = None) -> int:
    """The exit status of a command whose output goes to a file; its processes end with this one.

    A process that adopts orphans names the children that it started itself, `beside`: the others are orphans.
    """
    others = set(descendants(os.getpid()))
    # A `make` that has started this passes its own variables, ARGS among them, to every `make` below it.
    environment = {name: value for name, value in os.environ.items() if name not in MAKES_OWN}
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        try:
            return _end_of(process, beside)
        except BaseException:
            _end(process, others)
            raise


def earlier(log: Path) -> list[tuple[int, int]]:
    """The numbers of the rounds in the log, and how many failures each had."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(found[1]), int(found[2])) for found in map(LINE.match, lines) if found]


def rounds(command: list[str], wanted: int, processes: int, log: Path, *, adopts: bool = False) -> int:
    """Runs the rounds that the log lacks; returns how many of all rounds failed.

    `adopts`: this process has adopted orphans, and no children but them and those that are started here.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    found = earlier(log)
    bad = sum(failures > 0 for _, failures in found)
    with busy(processes) as beside:
        for number in range(len(found) + 1, wanted + 1):
            output = log.with_name(f"{log.stem}-{number}.txt")
            begun = time.monotonic()
            status = run(command, output, beside if adopts else None)
            done = Round.of(number, time.monotonic() - begun, status, output.read_text(errors="replace"))
            bad += bool(done.failed)
            print(done, flush=True)
            with log.open("a") as lines:
                print(done, file=lines)
    print(f"{wanted} rounds beside {processes} busy processes: {bad} failed", flush=True)
    return bad


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--log", type=Path, default=Path("build/rounds/log.txt"))
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: _asked.append(received))
    adopts = adopt_orphans()
    if options.fresh:
        options.log.unlink(missing_ok=True)
    bad = rounds(options.command or ["make", "test"], options.rounds, options.busy, options.log, adopts=adopts)
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
