"""`make test-deploy` runs the tests of this folder, because they need its tools or take minutes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.programs import ROOT

# The environment with the packages of tests/deploy/requirements.txt.
TOOLS = Path(os.environ.get("QA_TEST_DEPLOY", ROOT / ".venv-deploy" / "bin"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.deploy)


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """A function that finds a program in the tools' environment or in the system, or fails the test."""

    def find(name: str) -> str:
        if (TOOLS / name).exists():
            return str(TOOLS / name)
        found = shutil.which(name)
        if found is None:
            pytest.fail(f"{name} is missing: docs/testing.md lists the requirements of `make test-deploy`")
        return found

    return find
