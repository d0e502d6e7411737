"""The unmodified clients of Triton and KServe use a service of a real cluster.

Each client runs in a separate process, because their versions of gRPC and their event loops conflict.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.harness.programs import ROOT, binary_or_skip
from tests.harness.system import UNHURRIED, System


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """A cluster of two shards and its service."""
    with System(binary_or_skip("valkey"), shards=2, apart=True, **UNHURRIED) as running:
        running.start_service()
        yield running


@pytest.mark.timeout(900)
@pytest.mark.parametrize("with_key", [False, True], ids=["without keys", "with a key"])
@pytest.mark.parametrize("program", ["triton_program", "kserve_program"])
def test_foreign_client(system: System, program: str, with_key: bool) -> None:
    key = ""
    if with_key:
        created = system.cli("keys", "create", program, "--scope", "ask", "--json").stdout
        key = json.loads(created)["key"]
    else:
        system.cli("keys", "clear", "--yes")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.adapters.kserve.{program}", str(system.port), key],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{system.logs()}"
    assert "all is well" in done.stdout
