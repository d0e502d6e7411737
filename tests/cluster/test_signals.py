"""A signal ends the work of an event loop in order, at any time. Each test uses a separate process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys
from qa_cluster.cluster.servers.signals import run_until_signal, until_signal

moment, number = sys.argv[1], int(sys.argv[2])
run = asyncio.run

def signalled(coroutine):
    if moment == "before":
        os.kill(os.getpid(), number)
    run(coroutine)

async def work():
    if moment == "first":
        os.kill(os.getpid(), number)
    try:
        await asyncio.sleep(60 if moment in ("before", "first") else 0.05)
    except asyncio.CancelledError:
        print("cancelled")
        raise
    if moment == "last":
        os.kill(os.getpid(), number)
    if moment == "error":
        raise ValueError("its own")

asyncio.run = signalled
with until_signal():
    try:
        run_until_signal(work())
        print("done")
    except (KeyboardInterrupt, ValueError) as error:
        print(type(error).__name__)
    try:
        os.kill(os.getpid(), number)
    except KeyboardInterrupt:
        print("what was installed before is back")
"""


@pytest.mark.parametrize(
    ("moment", "number", "told"),
    [
        ("before", 15, ["KeyboardInterrupt"]),
        ("first", 15, ["cancelled", "KeyboardInterrupt"]),
        ("first", 2, ["cancelled", "KeyboardInterrupt"]),
        ("last", 2, ["KeyboardInterrupt"]),
        ("never", 15, ["done"]),
        ("error", 15, ["ValueError"]),
    ],
)
def test_a_signal_ends_the_work_in_order(moment: str, number: int, told: list[str]) -> None:
    program = [sys.executable, "-W", "error", "-c", PROGRAM, moment, str(number)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [*told, "what was installed before is back"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")
