"""Only processes of qa-cluster receive signals. They end in time, or with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qa_cluster.cluster.servers.processes import ProcessRef, command_line, spawn, stop_all
from qa_cluster.errors import ClusterError
from tests.harness.polling import eventually

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


def start(tmp_path: Path, program: str, marker: str) -> ProcessRef:
    log = tmp_path / "log"
    pid = spawn([sys.executable, "-c", program, marker], log=log)
    eventually(lambda: "up" in log.read_text())
    return ProcessRef(pid, marker, "sleeper")


def test_a_process_ends_even_if_it_ignores_the_signal(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN, "marker-b")
    assert process.is_running()
    began = time.monotonic()
    stop_all([process], timeout_seconds=0.3)
    assert not process.is_running()
    assert time.monotonic() - began >= 0.3


@pytest.mark.parametrize("insist", [True, False])
def test_a_server_that_ignores_its_signal_gets_another(tmp_path: Path, insist: bool) -> None:
    busy = f"import signal; signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, ends)); {SLEEPER}"
    ends = "def ends(*_): print('ended in order', flush=True); raise SystemExit\n"
    process = start(tmp_path, ends + busy, "marker-e")
    stop_all([process], timeout_seconds=120 if insist else 1, insist=insist)
    assert not process.is_running()
    assert ("ended in order" in (tmp_path / "log").read_text()) == insist


def test_a_foreign_process_is_left_alone(tmp_path: Path) -> None:
    process = start(tmp_path, SLEEPER, "marker-c")
    stop_all([ProcessRef(process.pid, "another marker", "impostor")], timeout_seconds=0.1)
    assert process.is_running()
    stop_all([process], timeout_seconds=5)


def test_a_pid_that_does_not_exist_is_not_running() -> None:
    assert not ProcessRef(2**22 + 1, "x", "nobody").is_running()
    assert command_line(2**22 + 1) == ""


def test_a_program_that_cannot_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"/nowhere/program.*No such file"):
        spawn(["/nowhere/program"], log=tmp_path / "log")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can end a process together with its parent")
def test_a_tethered_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent_code = (
        "import signal, sys, time; from pathlib import Path; from qa_cluster.cluster.servers.processes import spawn\n"
        f"pid = spawn([sys.executable, '-c', {SLEEPER!r}, 'marker-d'], log=Path({str(tmp_path / 'log')!r}),"
        " tether_signal=signal.SIGTERM)\n"
        "print(pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = ProcessRef(int(parent.stdout.readline()), "marker-d", "child")
        eventually(lambda: "up" in (tmp_path / "log").read_text())
        assert child.is_running()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        eventually(lambda: not child.is_running())
