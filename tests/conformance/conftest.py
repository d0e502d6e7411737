"""Runs the tests of the clients against every deployment, and optionally writes docs/compatibility.md from the results.

The tests need the environment of `make conformance` (redisai pins redis<5 and pytest<8) and are skipped in others.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.report import Proofs

if TYPE_CHECKING:
    from tests.conformance.deployment import Deployment
    from tests.conformance.methods import CalledMethods

HERE = Path(__file__).resolve().parent
HAVE_CLIENTS = find_spec("redisai") is not None and find_spec("redgrease") is not None
collect_ignore_glob = [] if HAVE_CLIENTS else ["test_*.py"]
# pytest reuses a session fixture only if its parameter is the identical object
ALL = tuple((server, shards) for server in ("valkey", "redis") for shards in (1, 3))


def pytest_addoption(parser: pytest.Parser) -> None:
    if HAVE_CLIENTS:
        parser.addoption("--slice", action="store_true", help="one server, standalone")
        parser.addoption("--write", action="store_true", help="write docs/compatibility.md when all has passed")


def deployments(config: pytest.Config) -> list[tuple[str, int]]:
    """The pairs of server and number of shards to test."""
    names = {name.strip() for name in os.environ.get("QA_TEST_SERVERS", "valkey,redis").split(",")}
    chosen = [deployment for deployment in ALL if deployment[0] in names]
    return chosen[:1] if config.getoption("--slice") else chosen


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "deployment" not in metafunc.fixturenames:
        return
    wanted = metafunc.definition.get_closest_marker("shards")
    chosen = [d for d in deployments(metafunc.config) if wanted is None or d[1] == wanted.args[0]]
    names = [f"{server}-{shards}" for server, shards in chosen]
    metafunc.parametrize("deployment", chosen, ids=names, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # pytest groups tests by the index of a parameter, not by its value, so servers would restart often
    def order(item: pytest.Item) -> int:
        chosen = item.callspec.params.get("deployment") if hasattr(item, "callspec") else None
        return ALL.index(chosen) if chosen in ALL else -1

    items.sort(key=order)


@pytest.fixture(scope="session")
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Running servers. The parameter is the server program and the number of shards."""
    from tests.conformance.deployment import Deployment

    running = Deployment(*request.param)
    if running.missing:
        pytest.skip(running.missing)
    request.config.stash[PROOFS].ran_on(running.name, running.server, running.version)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove all keys and registrations before every test."""
    if "deployment" not in request.fixturenames:
        yield
        return
    running: Deployment = request.getfixturevalue("deployment")
    if request.node.get_closest_marker("torch") and not running.torch:
        pytest.skip("the worker's environment has no torch")
    yield
    running.clean()


@pytest.fixture(scope="session")
def torch_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The TorchScript files of `torch_models.py` by name."""
    from tests.conformance.deployment import worker_python

    looks = "import sys, importlib.util; sys.exit(importlib.util.find_spec('torch') is None)"
    if subprocess.run([worker_python(), "-c", looks], check=False).returncode:
        pytest.skip("the worker's environment has no torch")
    folder = tmp_path_factory.mktemp("torch")
    command = [worker_python(), "-W", "ignore", "-m", "tests.conformance.torch_models", folder]
    subprocess.run(command, cwd=HERE.parents[1], check=True)
    return {path.stem: path.read_bytes() for path in folder.iterdir()}


PROOFS: pytest.StashKey[Proofs] = pytest.StashKey()
METHODS: pytest.StashKey[CalledMethods] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PROOFS] = Proofs()
    if HAVE_CLIENTS:
        from tests.conformance.methods import CalledMethods

        config.stash[METHODS] = CalledMethods()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    report = (yield).get_result()  # type: ignore[misc]
    if report.when == "call" and report.passed:
        item.config.stash[PROOFS].passed(item)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not HAVE_CLIENTS or not session.config.getoption("--write"):
        return
    proofs, path = session.config.stash[PROOFS], HERE.parents[1] / "docs" / "compatibility.md"
    everywhere = {f"{server}-{'standalone' if n == 1 else f'{n} shards'}" for server, n in ALL}
    problems = {
        "deployments not tested": sorted(everywhere - proofs.deployments),
        "methods of the clients not called": session.config.stash[METHODS].left_out(),
        "not proved": sorted(proofs.unproved(session)),
    }
    if exitstatus == 0 and not any(problems.values()):
        path.write_text(proofs.document())
        print(f"\nwrote {path.relative_to(HERE.parents[1])}")
        return
    session.exitstatus = exitstatus or 1
    print(
        f"\n{path.name} is not changed: " + "; ".join(f"{what}: {which}" for what, which in problems.items() if which)
    )
