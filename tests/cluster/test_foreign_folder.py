"""qa-cluster runs no program that a file in the current folder names if another user may have written the file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qa_cluster.cluster.cli import main
from qa_cluster.cluster.provision import jobs
from qa_cluster.cluster.servers import single
from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from tests.harness.ports import free_port
from tests.harness.strangers import give_away

pytestmark = pytest.mark.hostile

Up = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program that creates a file `ran`."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def up(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Up:
    """A function that runs `qa-cluster up --bare` in the current folder and returns its error."""

    def run(*arguments: str, code: int) -> str:
        monkeypatch.setattr(sys, "argv", ["qa-cluster", *arguments, "up", "--bare"])
        monkeypatch.setenv("QA_START_TIMEOUT_MS", "60000")
        with pytest.raises(SystemExit) as ended:
            main()
        errors = " ".join(capsys.readouterr().err.split())
        assert ended.value.code == code, errors
        return errors

    return run


def settings_file(folder: Path) -> Path:
    file = folder / "qa-cluster.toml"
    file.write_text(f'server = "{folder}/program"\nshards = 1\n')
    return file


def stored_cluster(folder: Path) -> Path:
    """The folder of a cluster whose state file names the program."""
    made = folder / ".qa-cluster"
    made.mkdir(0o700)
    state = {"format": 1, "shards": 1, "replicas": 0, "ports": [free_port()], "created": True}
    (made / "cluster.json").write_text(json.dumps({**state, "program": str(folder / "program")}))
    return made


def test_the_program_of_another_users_settings_file_runs_only_if_the_file_is_named(
    up: Up, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = settings_file(folder)
    give_away(file, monkeypatch)
    said = up(code=2)
    assert not (folder / "ran").exists()
    assert f"settings file '{file}' belongs to user" in said
    assert "--config qa-cluster.toml or QA_CONFIG=qa-cluster.toml" in said
    assert "ended during its start" in up("--config", "qa-cluster.toml", code=3)
    assert (folder / "ran").exists()


@pytest.mark.parametrize("place", ["qa-cluster.toml", "."])
def test_the_program_of_a_settings_file_that_others_may_change_does_not_run(up: Up, folder: Path, place: str) -> None:
    settings_file(folder)
    (folder / place).chmod(0o777)
    assert "may be written by every user" in up(code=2)
    assert not (folder / "ran").exists()


def test_the_program_of_another_users_cluster_runs_only_if_the_cluster_is_named(
    up: Up, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stored_cluster(folder)
    give_away(made, monkeypatch)
    said = up(code=2)
    assert not (folder / "ran").exists()
    assert f"the data folder '{made}' belongs to user" in said
    assert f"--data-dir {made} or QA_DATA_DIR" in said
    assert "ended during its start" in up("--data-dir", str(made), code=3)
    assert (folder / "ran").exists()


def test_neither_background_jobs_nor_a_server_start_in_another_users_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(stored_cluster(folder), monkeypatch)
    with pytest.raises(ConfigError, match="belongs to user"):
        jobs.directory(Settings())
    with pytest.raises(ConfigError, match="belongs to user"):
        single.prepare(Settings(), "127.0.0.1", free_port())
