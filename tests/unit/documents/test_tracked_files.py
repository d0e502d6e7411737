"""Reading only the files that git tracks. The configuration of a foreign checkout must run no program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qa_cluster.documents.corpus import read_from
from qa_cluster.documents.folder_reading import FolderReading, ReadingObserver
from qa_cluster.documents.folders.rules import UNTRACKED, FolderRules
from qa_cluster.documents.folders.tracked_files import TrackedFiles
from qa_cluster.errors import InvalidInput


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(("git", "-C", folder, *arguments), check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("a.md", "docs/b.md", "docs/deep/ü.md", "other/c.md", "docs/new.md"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n\nWords.\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "a.md", "docs/b.md", "docs/deep/ü.md")
    return tmp_path


class Seen(ReadingObserver):
    def __init__(self) -> None:
        self.paths: list[str] = []

    def left_out(self, path: Path, reason: str) -> None:
        if reason == UNTRACKED:
            self.paths.append(path.name)


def test_only_tracked_files_are_read(checkout: Path) -> None:
    seen = Seen()
    reading = FolderReading(FolderRules(tracked=True))
    found = read_from([checkout], observer=seen, reading=reading)
    assert [document.id for _, document in found] == ["a.md", "docs/b.md", "docs/deep/ü.md"]
    assert sorted(seen.paths) == ["new.md", "other"]
    below = read_from([checkout / "docs"], reading=reading)
    assert [document.id for _, document in below] == ["b.md", "deep/ü.md"]


def test_the_configuration_of_a_checkout_runs_no_program(checkout: Path) -> None:
    program = checkout / "program"
    program.write_text(f"#!/bin/sh\ntouch {checkout}/ran\n")
    program.chmod(0o755)
    hooks = checkout / "hooks"
    hooks.mkdir()
    (hooks / "post-index-change").write_text(program.read_text())
    (hooks / "post-index-change").chmod(0o755)
    for name, value in {"core.fsmonitor": program, "core.hooksPath": hooks, "core.pager": program}.items():
        git(checkout, "config", name, str(value))
    assert TrackedFiles.of(checkout).has("docs/b.md", is_folder=False)
    assert not (checkout / "ran").exists()


def test_a_folder_outside_a_checkout_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="git cannot list its files: fatal: not a git repository"):
        TrackedFiles.of(tmp_path)


def test_without_git_the_error_says_so(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(InvalidInput, match=r"git cannot list its files: .*No such file"):
        TrackedFiles.of(checkout)
