"""The rounds count failures, continue after an interruption, and end their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.harness.polling import eventually
from tests.harness.processes import descendants
from tests.harness.programs import ROOT
from tests.harness.rounds import Round, earlier, rounds

OUTPUT = """
FAILED tests/a.py::test_one[x y] - AssertionError
ERROR tests/b.py::test_two
=== 1 failed, 40 passed, 2 skipped, 1 error in 12.30s (0:00:12) ===
=== 3 passed in 1.00s ===
"""


def test_account_of_a_round() -> None:
    done = Round.of(4, 61.4, 1, OUTPUT)
    assert str(done) == "round 4: 61 s, 43 passed, 2 failed: tests/a.py::test_one[x y]; tests/b.py::test_two"
    assert Round.of(1, 1, 2, "mypy: error").failed == ("the command ended with 2",)
    assert Round.of(1, 1, 0, "=== 3 passed in 1.00s ===").failed == ()


def test_rounds_are_taken_up_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "rounds" / "log.txt"
    once = tmp_path / "once"
    fails_later = [
        sys.executable,
        "-S",
        "-c",
        f"import os, sys; sys.exit(os.path.exists('{once}') or os.mkdir('{once}'))",
    ]
    assert rounds(fails_later, 1, 1, log) == 0
    assert rounds(fails_later, 3, 0, log) == 2
    assert [failures for _, failures in earlier(log)] == [0, 1, 1]
    assert rounds(["no such command"], 3, 0, log) == 2, "all rounds are in the log"
    assert capsys.readouterr().out.count("round 3:") == 1


def test_options_of_the_make_above_do_not_reach_the_make_of_a_round(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("ARGS ?= none\nall:\n\t@test $(ARGS) = none\n")
    command = f'{sys.executable} -c "import sys; from tests.harness.rounds import rounds; from pathlib import Path; '
    command += f"sys.exit(rounds(['make', '-C', '{tmp_path}', 'all'], 1, 0, Path('{tmp_path}/log.txt')))\""
    above = tmp_path / "above"
    above.write_text(f"rounds:\n\t{command}\n")
    subprocess.run(["make", "-f", str(above), "rounds", "ARGS=--rounds"], cwd=ROOT, check=True)


def test_what_was_started_ends_in_any_case(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.harness.rounds", "--log", str(tmp_path / "log.txt"), "--busy", "1"]
    with subprocess.Popen([*command, sys.executable, "-c", "import time; time.sleep(600)"], cwd=ROOT) as process:
        found = eventually(lambda: len(below := descendants(process.pid)) == 2 and below)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    eventually(lambda: not [pid for pid in found if Path(f"/proc/{pid}").exists()])
    assert os.getpid() not in found


def test_a_round_that_is_ended_leaves_no_server(tmp_path: Path) -> None:
    """A server has its own session and no environment that identifies it, and survives tests that a signal ends."""
    sleep = "import time; time.sleep(600)"
    start = f"subprocess.Popen([sys.executable, '-S', '-c', '{sleep}'], start_new_session=True, env={{}})"
    script = tmp_path / "round.py"
    script.write_text(f"import subprocess, sys\n{start}\n{sleep}\n")
    command = [sys.executable, "-m", "tests.harness.rounds", "--log", str(tmp_path / "log.txt"), "--busy", "0"]
    with subprocess.Popen([*command, sys.executable, "-S", str(script)], cwd=ROOT) as process:
        found = eventually(lambda: len(below := descendants(process.pid)) == 2 and below)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert not [pid for pid in found if runs(pid)]


def runs(pid: int) -> bool:
    """Whether a process has not ended; an ended process is a zombie until its new parent reaps it."""
    with suppress(OSError):  # it has ended
        return "Z (" not in Path(f"/proc/{pid}/status").read_text()
    return False


def zombies(parent: int) -> int:
    """Return the number of ended processes that their parent has not reaped."""
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            state, above = Path("/proc", name, "stat").read_text().rpartition(")")[2].split(maxsplit=2)[:2]
            found += state == "Z" and int(above) == parent
    return found


def test_orphans_that_have_ended_are_forgotten(tmp_path: Path) -> None:
    """Thousands of zombies made every scan of the processes slow, and with it the tests of later rounds."""
    script, all_ended = tmp_path / "round.py", tmp_path / "all ended"
    script.write_text(
        "import pathlib, subprocess, time\n"
        "for _ in range(50): subprocess.run(['sh', '-c', 'true &'])\n"
        f"pathlib.Path({str(all_ended)!r}).touch()\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-m", "tests.harness.rounds", "--log", str(tmp_path / "log.txt"), "--busy", "1"]
    with subprocess.Popen([*command, sys.executable, "-S", str(script)], cwd=ROOT) as process:
        try:
            eventually(all_ended.exists)
            eventually(lambda: zombies(process.pid) == 0)
        finally:
            process.send_signal(signal.SIGTERM)
