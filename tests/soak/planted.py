"""Proof that the soak finds faults: short runs with modules that have one deliberate mistake each must fail."""

from __future__ import annotations

from tests.fuzz import planted
from tests.fuzz.planted import Mistake

MISTAKES = [
    Mistake(
        "a call leaks 256 bytes",
        "functions/cmd_trigger.c",
        "static void free_trigger(void *data) {\n",
        "#include <string.h>\nstatic void free_trigger(void *data) {\n    memset(RedisModule_Alloc(256), 1, 256);\n",
        problem="server memory has grown",
    ),
    Mistake(
        "a full queue has an error that clients do not know",
        "jobs/jobs.c",
        '"OVERLOADED queue is full',
        '"ERR queue is full',
        problem="queue is full",
    ),
]


def prove(server: str) -> int:
    """Runs the soak with each mistake; returns the exit status."""
    command = ("tests.soak.soak", "--minutes", "2", "--seed", "1", "--server", server)
    return planted.prove(MISTAKES, command, "qa.so", 600)
