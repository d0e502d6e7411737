"""The folder of a backup exists only if the backup is complete, and a damaged backup is not restored."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.cluster.backup.document_saving import DocumentSaving
from qa_cluster.cluster.backup.folder import BackupFolder, _locked, _move_to_target, new_backup, reading, verify
from qa_cluster.cluster.backup.lines import read_lines
from qa_cluster.cluster.backup.manifest import FORMAT, MANIFEST_FILE, BackupManifest, NoBackup
from qa_cluster.documents.stored import MAX_TEXT_LENGTH, check_document
from qa_cluster.errors import ConfigError
from tests.harness.commands import run_here

DOCUMENTS = "documents/abc.jsonl.gz"
NAMES = ("ada", "bob", "cyd")
# No server listens at this address. The command must report a bad backup before it connects.
NOWHERE = ("--cluster-url", "redis://127.0.0.1:1")


def line(name: str) -> dict[str, object]:
    text = f"{name} lives here. " * 50
    version = check_document(name, text).version
    return {
        "id": name,
        "collection": "default",
        "title": "",
        "metadata": {},
        "text": text,
        "version": version,
        "source": "",
    }


def manifest(folder: BackupFolder, documents: int) -> BackupManifest:
    return BackupManifest(
        version="0.0.0",
        created="2026-01-01T00:00:00Z",
        partitions=1,
        chosen=None,
        collections=(),
        shards=(),
        readers=(),
        counts={"documents": documents, "text_bytes": 0, "collections": 1, "models": 0, "functions": 0, "api_keys": 0},
        written_meanwhile=0,
        files=folder.files,
    )


def made(target: Path, *, force: bool = False, dead: frozenset[int] = frozenset()) -> Path:
    with new_backup(target, force=force) as (folder, finish):
        writer = folder.lines(DOCUMENTS)
        for name in NAMES:
            writer.add(line(name))
        folder.close(DOCUMENTS, dead)
        return finish(manifest(folder, len(NAMES) - len(dead)))


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    return made(tmp_path / "backup")


def qa(*arguments: str, code: int) -> str:
    done = run_here(arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return " ".join((done.stdout if code == 0 else done.stderr).replace("│", " ").split())


def test_a_finished_backup_is_complete_and_private(backup: Path) -> None:
    found = BackupManifest.load(backup)
    verify(backup, found)
    assert [value["id"] for value in read_lines(backup / DOCUMENTS)] == list(NAMES)
    assert found.files[DOCUMENTS].lines == 3
    for path in (backup, *backup.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    assert [path.name for path in backup.parent.iterdir()] == ["backup"]
    assert "the backup is complete: 3 documents" in qa("restore", str(backup), "--check", code=0)


def test_superseded_lines_are_left_out(tmp_path: Path) -> None:
    backup = made(tmp_path / "backup", dead=frozenset({0, 2}))
    verify(backup, BackupManifest.load(backup))
    assert [value["id"] for value in read_lines(backup / DOCUMENTS)] == ["bob"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_backup(tmp_path / "backup") as (folder, _):
        folder.lines(DOCUMENTS).add(line("ada"))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def interrupt_after(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Interrupt the process right after the next call of this function of `os`."""
    function = getattr(os, name)

    def interrupted(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(os, name, function)
        function(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, name, interrupted)


def test_an_interrupt_during_the_creation_of_the_folder_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, "mkdir")
    with pytest.raises(KeyboardInterrupt), new_backup(tmp_path / "backup"):
        raise AssertionError("the interrupt comes before")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_between_two_backups_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = made(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt), new_backup(backup, force=True) as (folder, finish):
        interrupt_after(monkeypatch, "rename")
        finish(manifest(folder, 0))
    assert BackupManifest.load(backup).counts["documents"] == 3
    assert list(tmp_path.iterdir()) == [backup]


def test_the_next_backup_removes_the_files_of_a_killed_one(tmp_path: Path) -> None:
    killed = tmp_path / ".backup.unfinished-1"
    (killed / "documents").mkdir(parents=True)
    with pytest.raises(NoBackup, match="never completed"):
        BackupManifest.load(killed)
    with new_backup(tmp_path / "backup") as (folder, _):
        assert not killed.exists()
        with new_backup(tmp_path / "backup") as (other, finish):  # a concurrent backup removes nothing
            assert folder.path.exists()
            finish(manifest(other, 0))
        assert folder.path.exists()


def test_force_replaces_only_a_folder_with_a_backup(backup: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not empty: choose a different folder, or replace"):
        made(backup)
    made(backup, force=True, dead=frozenset({0}))
    assert BackupManifest.load(backup).counts["documents"] == 2
    own = tmp_path / "own"
    own.mkdir()
    made(own)  # an empty folder is allowed
    shutil.rmtree(own)
    own.mkdir()
    (own / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="--force replaces only a backup"):
        made(own, force=True)
    assert (own / "letter.txt").read_text() == "dear"
    (own / "manifest.json").write_text('{"format": 2, "name": "a reader"}')  # other programs use this file name, too
    with pytest.raises(ConfigError, match="does not belong to a backup; --force replaces only a backup"):
        made(own, force=True)
    assert (own / "letter.txt").exists()
    with pytest.raises(ConfigError, match="is not a folder: create it"):
        made(tmp_path / "none" / "backup")
    with pytest.raises(ConfigError, match="is the root of a file system"):
        made(Path("/proc"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "own"]


def test_a_backup_gets_its_name_back_if_its_replacement_was_killed(backup: Path) -> None:
    aside = backup.rename(backup.with_name(".backup.replaced-1"))
    with pytest.raises(ConfigError, match="not empty"):
        made(backup)
    assert not aside.exists() and BackupManifest.load(backup).counts["documents"] == 3
    shutil.copytree(backup, aside)
    made(backup, force=True, dead=frozenset({0}))
    assert [path.name for path in backup.parent.iterdir()] == ["backup"]
    assert BackupManifest.load(backup).counts["documents"] == 2


def test_a_backup_that_is_being_restored_is_not_replaced(backup: Path) -> None:
    with reading(backup), reading(backup):
        with pytest.raises(ConfigError, match="is being restored: use another"):
            made(backup, force=True)
        with pytest.raises(ConfigError, match="is being restored: use another"):
            _move_to_target(backup.with_name("none"), backup)
    assert [path.name for path in backup.parent.iterdir()] == ["backup"]
    made(backup, force=True, dead=frozenset({0}))
    assert BackupManifest.load(backup).counts["documents"] == 2
    with _locked(backup, fcntl.LOCK_EX) as free, pytest.raises(ConfigError, match="is replacing"), reading(backup):
        assert free


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def link(path: Path) -> None:
    kept = path.rename(path.with_suffix(".kept"))
    path.symlink_to(kept)


def change(path: Path) -> None:
    path.write_text(path.read_text().replace('"partitions": 1', '"partitions": 2'))


def newer(path: Path) -> None:
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))


def outside(path: Path) -> None:
    """Make a consistent manifest that names a file outside its folder."""
    found = BackupManifest.load(path.parent)
    path.write_bytes(replace(found, files={"documents/../../x.jsonl.gz": found.files[DOCUMENTS]}).to_json())


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        (DOCUMENTS, flip, "abc.jsonl.gz: damaged, its SHA-256 differs"),
        (DOCUMENTS, cut, "abc.jsonl.gz: damaged, it has"),
        (DOCUMENTS, Path.unlink, "abc.jsonl.gz: missing"),
        (DOCUMENTS, link, "abc.jsonl.gz: cannot be read"),
        (MANIFEST_FILE, change, "manifest.json: damaged, its digest"),
        (MANIFEST_FILE, flip, "manifest.json: damaged"),
        (MANIFEST_FILE, newer, f"manifest.json: format {FORMAT + 1}, written by qa-cluster 0.0.0"),
        (MANIFEST_FILE, outside, "invalid entry of the file 'documents/../../x.jsonl.gz'"),
    ],
)
def test_a_damaged_or_newer_backup_is_refused_with_file_and_reason(
    backup: Path, name: str, damage: Callable[[Path], object], said: str
) -> None:
    damage(backup / name)
    refused = qa(*NOWHERE, "restore", str(backup), code=1)
    assert said in refused and "nothing was restored" in refused


def test_an_invalid_line_is_refused(tmp_path: Path) -> None:
    with new_backup(tmp_path / "backup") as (folder, finish):
        folder.lines("functions.jsonl.gz").add({"id": "x"})
        folder.close("functions.jsonl.gz")
        backup = finish(manifest(folder, 0))
    assert "functions.jsonl.gz: damaged, line 1: not a session" in qa(*NOWHERE, "restore", str(backup), code=1)
    with new_backup(tmp_path / "other") as (folder, finish):
        folder.lines(DOCUMENTS).add({"id": 1})
        folder.close(DOCUMENTS)
        other = finish(manifest(folder, 1))
    assert "abc.jsonl.gz: damaged, line 1 is not a document" in qa(*NOWHERE, "restore", str(other), code=1)


def test_wrong_options_and_folders_are_wrong_usage(backup: Path, tmp_path: Path) -> None:
    assert "no manifest.json: it is not a backup" in qa(*NOWHERE, "restore", str(tmp_path), code=2)
    assert "does not exist" in qa(*NOWHERE, "restore", str(tmp_path / "none"), code=2)
    assert "'keep' is not one of fail, skip, replace" in qa("restore", str(backup), "--on-conflict", "keep", code=2)
    assert "not have collection 'books'; it has default" in qa("restore", str(backup), "--collection", "books", code=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / MANIFEST_FILE).write_text(json.dumps({"model_id": "x"}))
    assert "not the manifest of a backup" in qa(*NOWHERE, "restore", str(tmp_path / "other"), code=2)
    assert "not empty" in qa(*NOWHERE, "backup", str(backup), code=2)
    qa(*NOWHERE, "restore", str(backup), code=3)
    qa(*NOWHERE, "backup", str(tmp_path / "new"), code=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "other"]


def test_an_invalid_text_is_named_instead_of_saved() -> None:
    """A plain SET can store any bytes, but a backup with an invalid text could never be restored."""
    record = [None, None, None, None]
    assert DocumentSaving._decode("plain", record, b"A stock client wrote this.") is not None
    assert DocumentSaving._decode("plain", record, b"x" * (MAX_TEXT_LENGTH + 1)) is None
    assert DocumentSaving._decode("n" * 600, record, b"short") is None
