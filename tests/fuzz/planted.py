"""Proof that the fuzzer finds mistakes: it fuzzes builds of the module with one deliberate mistake each.

Each mistake is a replacement in a copy of `native/`. The proof builds the copy with the sanitizers, and the fuzzer must
find the mistake. If the source does not contain the text to replace, the proof fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.programs import ROOT

FUZZ = ("tests.fuzz.fuzz_commands", "--server", "redis", "--seed", "3", "--cases", "12000", "--files", "0")
SECONDS = 280


@dataclass(frozen=True)
class Mistake:
    """One replacement in one file."""

    name: str
    file: str
    before: str
    after: str
    problem: str = ""  # words that the reported problem must contain


MISTAKES = [
    Mistake(
        "a worker's link is freed and stays in the list",
        "worker/qa_commands.c",
        "    remove_waiter(data);\n",
        "    (void)remove_waiter;\n",
    ),
    Mistake(
        "a client that leaves its job is not noticed",
        "jobs/clients.c",
        "    RedisModule_SetDisconnectCallback(job->client, JOB_Disconnected);\n",
        "    (void)JOB_Disconnected;\n",
    ),
    Mistake(
        "every tensor leaves something behind",
        "scripts/ai/tensor.c",
        "!= 1) return;\n    RedisModule_Free(tensor);\n",
        "!= 1) return;\n    RedisModule_Free(tensor);\n    memset(RedisModule_Alloc(512), 1, 512);\n",
    ),
    Mistake(
        "a damaged tensor may have any type",
        "scripts/ai/tensor_type.c",
        "type < TENSOR_FLOAT || type > TENSOR_STRING || ndim > TENSOR_MAX_NDIM",
        "ndim > TENSOR_MAX_NDIM",
    ),
    Mistake(
        "a model's batch size is not saved",
        "models/model.c",
        "    RedisModule_SaveUnsigned(io, (uint64_t)model->batch_size);\n",
        "    RedisModule_SaveUnsigned(io, 0);\n",
    ),
]


def build(mistakes: Sequence[Mistake], folder: Path, target: str) -> Path:
    """A copy of the module with these mistakes."""
    native = folder / "native"
    shutil.copytree(ROOT / "native", native, ignore=shutil.ignore_patterns("build"))
    (folder / "qa_cluster").symlink_to(ROOT / "qa_cluster")  # the build reads its scripts
    for mistake in mistakes:
        (path,) = native.rglob(mistake.file)
        text = path.read_text()
        if mistake.before not in text:
            raise SystemExit(
                f"{mistake.file} has changed: {mistake.before!r} is not in it; plant {mistake.name!r} again"
            )
        path.write_text(text.replace(mistake.before, mistake.after))
    subprocess.run(["make", "--silent", "-C", str(native), f"build/{target}"], check=True)
    return native / "build" / target


def sanitized(module: Path) -> Mapping[str, str]:
    """The environment for servers that load this build."""
    library = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    return {**os.environ, "QA_TEST_MODULE": str(module), "QA_TEST_PRELOAD": library.strip()}


def _found(mistake: Mistake, command: Sequence[str], target: str, seconds: float) -> bool:
    with tempfile.TemporaryDirectory(prefix="qa-planted-") as folder:
        module = build([mistake], Path(folder), target)
        done = subprocess.run(
            [sys.executable, "-m", *command],
            env=sanitized(module) if "asan" in target else {**os.environ, "QA_TEST_MODULE": str(module)},
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            cwd=ROOT,
        )
    problems = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("FOUND", "PROBLEM"))]
    named = [line for line in problems if mistake.problem in line]
    red = bool(named) and done.returncode == 1
    print(f"{'found' if red else 'NOT FOUND'}: {mistake.name}")
    print("\n".join(f"    {line[:300]}" for line in (named or problems)[:3]) or done.stderr[-500:], flush=True)
    return red


def prove(
    mistakes: Sequence[Mistake] = MISTAKES,
    command: Sequence[str] = FUZZ,
    target: str = "qa-asan.so",
    seconds: float = SECONDS,
) -> int:
    """Runs a program on builds with one mistake each, which it must report; returns the exit status."""
    missed = [mistake.name for mistake in mistakes if not _found(mistake, command, target, seconds)]
    print(f"planted: {len(mistakes) - len(missed)} of {len(mistakes)} mistakes were found")
    return 1 if missed else 0
