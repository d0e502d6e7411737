"""Which files of a folder are read: patterns, generated folders, and files that git ignores."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from qa_cluster.documents.corpus import read_from
from qa_cluster.documents.folder_reading import FolderReading, ReadingObserver
from qa_cluster.documents.folders.rules import (
    EXCLUDED,
    GENERATED,
    GENERATED_FOLDERS,
    HIDDEN,
    IGNORED,
    MAX_GITIGNORE_BYTES,
    NOT_INCLUDED,
    OTHER_KIND,
    FolderRules,
)
from qa_cluster.errors import InvalidInput


class LeftOut(ReadingObserver):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reasons: dict[str, str] = {}

    def left_out(self, path: Path, reason: str) -> None:
        self.reasons[str(path.relative_to(self.folder))] = reason


def write(folder: Path, *names: str, text: str = "Some words.") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(folder: Path, rules: FolderRules | None = None) -> tuple[list[str], dict[str, str]]:
    observer = LeftOut(folder)
    found = read_from([folder], on_error="skip", observer=observer, reading=FolderReading(rules or FolderRules()))
    return [document.id for _, document in found], observer.reasons


def test_generated_files_are_left_out_and_reported(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "pic.png", ".env", "sub/_static/x.txt", *(f"{name}/b.txt" for name in GENERATED_FOLDERS))
    ids, reasons = read(tmp_path)
    assert ids == ["a.txt"]
    generated = dict.fromkeys((*GENERATED_FOLDERS, "sub/_static"), GENERATED)
    assert reasons == {"pic.png": OTHER_KIND, ".env": HIDDEN, **generated}
    ids, reasons = read(tmp_path, FolderRules(ignore=False))
    assert ids == sorted(["a.txt", "sub/_static/x.txt", *(f"{name}/b.txt" for name in GENERATED_FOLDERS)])
    assert reasons == {"pic.png": OTHER_KIND, ".env": HIDDEN}


def test_patterns_of_the_user(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.txt", "guide/c.md", "guide/d.txt", "guide/old/e.md", "_static/f.md")
    ids, reasons = read(tmp_path, FolderRules(include=["*.md"], exclude=["old/", "/a.md"]))
    assert ids == ["guide/c.md"]
    assert reasons == {
        "a.md": EXCLUDED,
        "b.txt": NOT_INCLUDED,
        "guide/d.txt": NOT_INCLUDED,
        "guide/old": EXCLUDED,
        "_static": GENERATED,
    }
    assert read(tmp_path, FolderRules(include=["guide/", "!guide/*.txt"]))[0] == ["guide/c.md", "guide/old/e.md"]
    assert read(tmp_path, FolderRules(include=["/*.md"]))[0] == ["a.md"]
    assert read(tmp_path, FolderRules(exclude=["*", "!b.txt"]))[0] == ["b.txt"]
    assert read(tmp_path, FolderRules(include=["_static/"], ignore=False))[0] == ["_static/f.md"]


GITIGNORE = [
    "*.txt",
    "!/keep.txt",
    "build/",
    "/top.md",
    "deep/**/x.md",
    "# not.md",
    "\\#sharp.md",
    "sp\\ ",
    "sub/two.md",
]
NAMES = [
    *("a.txt", "keep.txt", "sub/keep.txt", "build/a.md", "sub/build/b.md", "top.md", "sub/top.md", "deep/x.md"),
    *("deep/er/x.md", "deep/er/y.md", "not.md", "#sharp.md", "sub/one.md", "sub/two.md", "sub/sub/two.md", "sub/n.txt"),
    *("sub/three.md", "sub/sub/three.md", "café.md", "out/in.md", "out/kept.md"),
]


def test_the_same_files_are_ignored_as_by_git(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    write(folder, *NAMES)
    (folder / ".gitignore").write_text("\n".join([*GITIGNORE, "café.md", "out/*", "!out/kept.md"]))
    (folder / "sub/.gitignore").write_text("!n.txt\n/three.md\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    listed = subprocess.run(
        ["git", "-c", "core.quotePath=false", "ls-files", "--others", "--exclude-standard"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    expected = sorted(name for name in listed.stdout.splitlines() if not name.rpartition("/")[2].startswith("."))
    ids, reasons = read(folder)
    assert sorted(ids) == expected
    assert IGNORED in reasons.values()
    below = subprocess.run(
        ["git", "-c", "core.quotePath=false", "ls-files", "--others", "--exclude-standard", "."],
        cwd=folder / "sub",
        check=True,
        capture_output=True,
        text=True,
    )
    ids, _ = read(folder / "sub")
    assert sorted(ids) == sorted(name for name in below.stdout.splitlines() if not name.startswith("."))


def test_a_folder_that_git_ignores_is_read_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("_build/\n*.txt\n")
    write(tmp_path, "docs/_build/html/a.txt", "docs/_build/html/b.md", "docs/c.txt", "docs/d.md")
    assert read(tmp_path / "docs/_build/html")[0] == ["a.txt", "b.md"]
    assert read(tmp_path / "docs")[0] == ["d.md"]
    (tmp_path / ".git").rmdir()
    assert read(tmp_path / "docs")[0] == ["c.txt", "d.md"]


def test_an_empty_folder_says_what_was_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "b.md", "c.png")
    (tmp_path / ".gitignore").write_text("a.md")
    with pytest.raises(InvalidInput) as caught:
        list(read_from([tmp_path], reading=FolderReading(FolderRules(exclude=["b.md"]))))
    for words in (
        "1: a .gitignore file names it",
        "1: an --exclude pattern matches it",
        "1: its name is not a document's name",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "# comment", "[a", "a\nb", "!"])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="--exclude"):
        FolderRules(exclude=[pattern])


@pytest.mark.hostile
@pytest.mark.parametrize(
    "text", ["*a*a*a*b", "**/a/**/b/**/*c*d*/**", "x\n" * MAX_GITIGNORE_BYTES, "*/*/*/*/*/*/*"], ids=range(4)
)
@pytest.mark.parametrize("above", [False, True])
def test_a_gitignore_that_takes_long_to_match_is_refused(tmp_path: Path, text: str, above: bool) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "folder"
    write(folder, *(f"{'a' * length}.md" for length in (200, 240)))
    (tmp_path / ("" if above else "folder") / ".gitignore").write_text(text)
    with pytest.raises(InvalidInput, match=r"\.gitignore: "):
        read(folder)
    assert len(read(folder, FolderRules(ignore=False))[0]) == 2


@pytest.mark.hostile
def test_the_time_for_all_patterns_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qa_cluster.documents.folders.rules.MAX_MATCHING_SECONDS", 0.02)
    below = "/".join(["a" * 200] * 15)
    write(tmp_path, f"{below}/{'a' * 200}.md")
    (tmp_path / ".gitignore").write_text("*a*a*b\n**/*a*a*b\n")
    begun = time.monotonic()
    with pytest.raises(InvalidInput, match="--no-ignore"):
        read(tmp_path)
    assert time.monotonic() - begun < 30


@pytest.mark.hostile
def test_a_gitignore_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("*.md")
    write(tmp_path, "folder/a.md")
    (tmp_path / "folder/.gitignore").symlink_to("../secret")
    assert read(tmp_path / "folder")[0] == ["a.md"]


def test_a_folder_gets_all_options_and_no_state_of_another_folder(tmp_path: Path) -> None:
    rules = FolderRules(("*.md",), ("drafts/",))
    rules.add_gitignore("", "a.md", ".gitignore")
    assert rules.reason("a.md", is_folder=False) == IGNORED
    of_folder = {"_tracked", "_above", "_within", "_spent_seconds"}
    started = rules.start(tmp_path)
    options = [
        {name: value for name, value in vars(each).items() if name not in of_folder} for each in (rules, started)
    ]
    assert options[0] == options[1]
    assert started.reason("a.md", is_folder=False) == ""
    assert rules.reason("a.md", is_folder=False) == IGNORED
