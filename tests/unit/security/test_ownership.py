"""A file is safe if this user or root owns it and no other user may write it."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from qa_cluster.security.ownership import objection
from tests.harness.strangers import give_away

pytestmark = pytest.mark.hostile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.touch(0o644)
    return made


def test_a_file_of_this_user_is_its_own(file: Path) -> None:
    assert objection(file) is None
    assert objection(file.parent) is None


def test_root_is_trusted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if file.stat().st_uid != 0:
        pytest.skip("only root makes files of root")
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert objection(file) is None


def test_another_users_file_is_not_ones_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_away(file, monkeypatch)
    assert str(objection(file)).startswith("belongs to user ")


def test_a_file_that_everybody_may_write(file: Path) -> None:
    file.chmod(0o646)
    assert objection(file) == "may be written by every user"


@pytest.mark.parametrize(("name", "members", "own"), [("me", [], True), ("me", ["eve"], False), ("staff", [], False)])
def test_the_group_may_write_if_it_is_the_users_own(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], own: bool
) -> None:
    file.chmod(0o664)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(grp, "getgrgid", lambda number: SimpleNamespace(gr_name=name, gr_mem=[*members, "me"]))
    assert objection(file) == (None if own else f"may be written by group {name}")


def test_a_group_without_a_name_is_not_private(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    file.chmod(0o664)
    monkeypatch.setattr(grp, "getgrgid", unknown)
    assert objection(file) == f"may be written by group {file.stat().st_gid}"


def test_a_folder_to_which_others_may_only_add(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert objection(tmp_path, others_may_add=True) is None
    assert objection(tmp_path) == "may be written by every user"
    tmp_path.chmod(0o777)
    assert objection(tmp_path, others_may_add=True) == "may be written by every user"


def test_another_users_link_to_ones_own_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert objection(link) is None
    give_away(link, monkeypatch)
    assert str(objection(link)).startswith("belongs to user ")
