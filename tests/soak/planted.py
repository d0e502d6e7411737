"""Proof that the soak finds faults: short runs with modules that have one deliberate mistake each must fail."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.planted import Mistake, build
from tests.harness.programs import ROOT

MINUTES = 2.0
SECONDS = 600


@dataclass(frozen=True)
class Proof:
    """A mistake, and the words that the reported problem must contain."""

    mistake: Mistake
    problem: str


PROOFS = [
    Proof(
        Mistake(
            "a call leaks 256 bytes",
            "functions/cmd_trigger.c",
            "static void free_trigger(void *data) {\n",
            "#include <string.h>\nstatic void free_trigger(void *data) {\n"
            "    memset(RedisModule_Alloc(256), 1, 256);\n",
        ),
        "server memory has grown",
    ),
    Proof(
        Mistake(
            "a full queue has an error that clients do not know",
            "jobs/jobs.c",
            '"OVERLOADED queue is full',
            '"ERR queue is full',
        ),
        "queue is full",
    ),
]


def found(proof: Proof, server: str) -> bool:
    """Whether the soak fails for this reason; prints its output."""
    with tempfile.TemporaryDirectory(prefix="qa-planted-") as folder:
        module = build([proof.mistake], Path(folder), "qa.so")
        command = [sys.executable, "-m", "tests.soak.soak", "--minutes", str(MINUTES), "--seed", "1"]
        done = subprocess.run(
            [*command, "--server", server],
            env={**os.environ, "QA_TEST_MODULE": str(module)},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            cwd=ROOT,
        )
    problems = [line for line in done.stdout.splitlines() if line.startswith("PROBLEM")]
    named = [line for line in problems if proof.problem in line]
    is_found = bool(named) and done.returncode == 1
    print(f"{'found' if is_found else 'NOT FOUND'}: {proof.mistake.name}")
    print("\n".join(f"    {line[:200]}" for line in (named or problems)[:3]) or done.stderr[-500:], flush=True)
    return is_found


def prove(server: str) -> int:
    """Runs the soak with each mistake; returns the exit status."""
    missed = [proof.mistake.name for proof in PROOFS if not found(proof, server)]
    print(f"planted: {len(PROOFS) - len(missed)} of {len(PROOFS)} mistakes were found")
    return 1 if missed else 0
