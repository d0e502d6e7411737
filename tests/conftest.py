"""Rules for every test: the selection, a clean environment, and no process that outlives the run."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from qa_cluster.reading.manifest import MANIFEST_FILE, TOKENIZER_FILE, Manifest
from qa_cluster.reading.tokenization import ReaderTokenizer
from qa_cluster.reading.windows import PairEncoder, TextPairEncoder
from tests.harness import figures as measured
from tests.harness.cancellation import uncancelled
from tests.harness.distribution import rank_of
from tests.harness.processes import descendants
from tests.harness.programs import ROOT, binary_or_skip, chosen_servers
from tests.harness.selection import Run, is_wholly_long
from tests.harness.skipped import summary

# Examples and strategies may be slow: the machine may be busy.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A run in the background ignores SIGINT. Commands that tests interrupt would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each process collects thousands of tests, and the garbage collections would take a quarter of this time.
gc.disable()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine functions that are tests or fixtures run in one event loop of asyncio (`anyio_mode` is `auto`)."""
    return "asyncio"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Makes `--dist loadfile` distribute smaller groups than files (distribution.py)."""
    from tests.harness.scheduler import ByFileAndServer

    return ByFileAndServer(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--quick`: what `make test` runs. `--all-servers`: `make test-servers`."""
    parser.addoption("--quick", action="store_true", help="leave out what only `make test-all` runs (selection.py)")
    parser.addoption(
        "--all-servers", action="store_true", help="run tests on all servers, also where they do not differ"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import a file if the quick selection leaves out all of its tests."""
    path = collection_path.relative_to(ROOT).as_posix() if collection_path.is_relative_to(ROOT) else ""
    return True if config.getoption("quick") and is_wholly_long(path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests as `selection.py` says. If there are several processes, long tests come first."""
    run = Run(
        chosen_servers()[1:],
        config.getoption("quick"),
        config.getoption("all_servers"),
        has_torch=find_spec("torch") is not None,
    )
    left_out = {
        item
        for item in items
        if run.leaves_out(item.nodeid, one_server=item.get_closest_marker("one_server") is not None)
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Wraps the coroutine function of a test, so that its cancellation does not reach the task of all tests."""
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test) and not hasattr(test, "hypothesis"):
        pyfuncitem.obj = uncancelled(test)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints one line with the skipped tests and the packages that they need, then the figures of attacks."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    if line := summary(found[2] if isinstance(found, tuple) else str(found) for found in skipped):
        terminalreporter.write_line(line)
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    for line in measured.table(figure for report in calls for figure in report.user_properties):
        terminalreporter.write_line(line)


def pytest_collection_finish() -> None:
    """Excludes the collected tests from garbage collection, because they live until the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def figures(record_property: Any) -> measured.Figures:
    """Records the figures of an attack for the table at the end of the run."""
    return measured.Figures(record_property)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No QA_* setting of the developer's shell reaches a test (QA_TEST_* choose what is tested)."""
    for name in list(os.environ):
        if name.startswith("QA_") and not name.startswith("QA_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def reader() -> Path:
    """The folder of the bundled reader."""
    from qa_cluster.models.bundle import default_reader

    return default_reader()


@pytest.fixture(scope="session")
def manifest(reader: Path) -> Manifest:
    """The manifest of the bundled reader."""
    return Manifest.load(reader / MANIFEST_FILE)


@pytest.fixture(scope="session")
def encoder(reader: Path, manifest: Manifest) -> TextPairEncoder:
    """An encoder of pairs for the bundled reader."""
    return TextPairEncoder(ReaderTokenizer((reader / TOKENIZER_FILE).read_bytes()), PairEncoder(manifest))


@pytest.fixture(params=chosen_servers())
def server_binary(request: pytest.FixtureRequest) -> Path:
    """The program of each server in turn."""
    return binary_or_skip(request.param)


@pytest.fixture(scope="module", params=chosen_servers())
def shared_binary(request: pytest.FixtureRequest) -> Path:
    """The program of each server in turn, for fixtures with the scope of a file."""
    return binary_or_skip(request.param)


@pytest.fixture(scope="session", autouse=True)
def no_orphans() -> Iterator[None]:
    """Checks that every process that a test started has ended when the run ends."""
    before = set(descendants(os.getpid()))
    yield
    deadline = time.monotonic() + 60
    while (
        left := {p: c for p, c in descendants(os.getpid()).items() if p not in before}
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"processes left running: {left}"
