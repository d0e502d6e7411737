"""Hostile folders: links that lead out of them, special files, and unlimited sizes."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qa_cluster.documents.corpus import read_documents, read_from
from qa_cluster.documents.files import FOLLOWED, LINK, SPECIAL, SourceFile
from qa_cluster.documents.folder_reading import ErrorObserver, FolderReading, ReadingObserver
from qa_cluster.errors import InvalidInput, RequestError
from qa_cluster.sources.process.extractor import Extractor
from tests.harness.figures import Figures
from tests.unit.documents.test_corpus import read_skipping

pytestmark = pytest.mark.hostile

FOLLOWING = FolderReading(follow_links=True)


class LeftOut(ReadingObserver):
    def __init__(self, on_left_out: Callable[[Path, str], None]) -> None:
        self._on_left_out = on_left_out

    def left_out(self, path: Path, reason: str) -> None:
        self._on_left_out(path, reason)


def link_to_file(folder: Path, outside: Path) -> None:
    (folder / "b.txt").symlink_to(outside / "secret.txt")


def relative_link(folder: Path, outside: Path) -> None:
    (folder / "b.txt").symlink_to(os.path.relpath(outside / "secret.txt", folder))


def link_to_folder(folder: Path, outside: Path) -> None:
    (folder / "b").symlink_to(outside)


def chain_of_links(folder: Path, outside: Path) -> None:
    (folder / "b.txt").symlink_to("sub/c.txt")
    (folder / "sub").mkdir()
    (folder / "sub/c.txt").symlink_to("../d.md")
    (folder / "d.md").symlink_to(outside / "secret.txt")


def link_through_a_folder(folder: Path, outside: Path) -> None:
    (folder / "b").symlink_to(outside)
    (folder / "c.txt").symlink_to("b/secret.txt")


def link_to_a_hidden_file(folder: Path, outside: Path) -> None:
    (folder / ".env").write_text("The password is hunter2.")
    (folder / "b.txt").symlink_to(".env")


ATTACKS = [
    link_to_file,
    relative_link,
    link_to_folder,
    chain_of_links,
    link_through_a_folder,
    link_to_a_hidden_file,
]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("The password is hunter2.")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("A.")
    return folder


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_link_leads_out_of_the_folder(folder: Path, outside: Path, attack: Callable[[Path, Path], None]) -> None:
    attack(folder, outside)
    left_out: list[tuple[Path, str]] = []
    found = read_from([folder], observer=LeftOut(lambda path, reason: left_out.append((path, reason))))
    assert [document.id for _, document in found] == ["a.txt"]
    assert {reason for path, reason in left_out if path.name != ".env"} == {LINK}


@pytest.mark.parametrize("attack", ATTACKS[:5])
def test_links_are_followed_on_request(folder: Path, outside: Path, attack: Callable[[Path, Path], None]) -> None:
    attack(folder, outside)
    left_out: list[str] = []
    found = read_from([folder], reading=FOLLOWING, observer=LeftOut(lambda _, reason: left_out.append(reason)))
    assert "The password is hunter2." in [document.text for _, document in found]
    assert set(left_out) == {FOLLOWED}


def test_a_link_within_the_folder_is_read(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/b.txt").symlink_to("../a.txt")
    (folder / "c.txt").symlink_to(folder / "sub/b.txt")
    assert [(document.id, document.text) for document in read_documents([folder])] == [
        ("a.txt", "A."),
        ("c.txt", "A."),
        ("sub/b.txt", "A."),
    ]


def test_a_folder_that_becomes_a_link_while_it_is_read(folder: Path, outside: Path) -> None:
    (folder / "b").mkdir()
    (folder / "b/secret.txt").write_text("B.")
    errors: list[RequestError] = []
    documents = read_skipping([folder], errors)
    assert next(documents).id == "a.txt"
    (folder / "b").rename(outside / "moved")
    (folder / "b").symlink_to(outside)
    assert list(documents) == []
    assert len(errors) == 1 and "b/secret.txt: cannot be read" in str(errors[0])


def test_loops_of_links_end(folder: Path) -> None:
    (folder / "b.txt").symlink_to("c.txt")
    (folder / "c.txt").symlink_to("b.txt")
    below = folder
    for _ in range(30):  # 2^30 paths
        below /= "x"
        below.mkdir()
        (below / "up").symlink_to("../..")
        (below / "again").symlink_to("..")
    (below / "z.txt").write_text("Z.")
    for follow_links in (False, True):
        errors: list[RequestError] = []
        reading = FOLLOWING if follow_links else None
        found = read_from([folder], on_error="skip", observer=ErrorObserver(errors.append), reading=reading)
        assert [document.text for _, document in found] == ["A.", "Z."]
        assert [str(error).partition(": ")[0] for error in errors] == [f"{folder}/b.txt", f"{folder}/c.txt"]


def test_special_files_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the path of a socket must be short
    os.mkfifo("b.txt")
    Path("zero.txt").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("d.txt")
        left_out: list[tuple[str, str]] = []
        found = read_from([folder], observer=LeftOut(lambda path, reason: left_out.append((path.name, reason))))
        assert [document.id for _, document in found] == ["a.txt"]
    assert left_out == [("b.txt", SPECIAL), ("d.txt", SPECIAL), ("zero.txt", SPECIAL)]
    for path in (folder / "b.txt", folder / "zero.txt"):
        with pytest.raises(InvalidInput, match="not a regular file"):
            list(read_documents([path]))
    # a pipe that replaces a file does not block
    with pytest.raises(InvalidInput, match="not a regular file"):
        SourceFile(folder / "b.txt", "b.txt", folder, "b.txt").read(10)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.json", "a.rst"])
def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path, figures: Figures, name: str) -> None:
    file = tmp_path / name
    with file.open("wb") as sparse:
        sparse.truncate(2 << 30)
    with figures.measured(f"sparse {name} of 2 GiB", limit_seconds=1.0), Extractor() as extractor:
        raw = None if name.endswith((".txt", ".md", ".json")) else extractor
        with pytest.raises(RequestError, match=r"a\.\w+: has 2147483648 bytes, the limit is \d+"):
            list(read_documents([file], extractor=raw))


def test_a_line_without_end_is_one_error(tmp_path: Path, figures: Figures) -> None:
    file = tmp_path / "a.jsonl"
    with file.open("wb") as lines:
        lines.write(b'{"id": "a", "text": "A."}\n')
        lines.seek(1 << 30, os.SEEK_CUR)  # a sparse file
        lines.write(b'\n{"id": "b", "text": "B."}\n')
    errors: list[RequestError] = []
    with figures.measured("line of 1 GiB", limit_seconds=20.0, limit_mib=150):
        found = list(read_skipping([file], errors, max_bytes=1 << 20))
    assert [document.id for document in found] == ["a", "b"]
    [error] = errors
    assert f"{file}:2: the line has more than" in str(error)


def test_a_line_may_escape_every_character(tmp_path: Path) -> None:
    text = "é" * 1000
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"id": "a", "text": text}))
    [document] = read_documents([file], max_bytes=2000)
    assert document.text == text


def test_a_file_that_grows_is_read_to_its_limit(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"more than 1000 bytes|not a regular file"):
        SourceFile(Path("/proc/self/maps"), "maps").read(1000)


def test_many_files_are_listed_in_time(folder: Path, figures: Figures) -> None:
    for number in range(1000):
        (folder / f"{number}.txt").symlink_to("/etc/passwd")
    begun = time.monotonic()
    with figures.measured("1,000 links out of the folder", limit_seconds=2.0):
        assert [document.id for document in read_documents([folder])] == ["a.txt"]
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("extracts", [False, True])
def test_names_in_another_encoding_are_stored_with_escapes(tmp_path: Path, extracts: bool) -> None:
    """Linux file names are bytes. Old archives and network drives have names in Latin-1 or Shift JIS."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9s"
    os.makedirs(folder + b"/\x93\xfa")
    for name in (b"men\xfc.txt", b"plain.md", b"\x93\xfa/day.txt"):
        with open(os.path.join(folder, name), "w") as file:
            file.write("The door is blue.\n")
    with open(folder + b"/broken\xe9.jsonl", "w") as file:
        file.write("no JSON\n")
    errors: list[RequestError] = []
    with Extractor() as extractor:
        found = read_skipping([Path(os.fsdecode(folder))], errors, extractor=extractor if extracts else None)
        names = {document.id for document in found}
    assert names == {"men\\xfc.txt", "plain.md", "\\x93\\xfa/day.txt"}
    assert [r"caf\xe9s/broken\xe9.jsonl:1: not JSON" in str(error) for error in errors] == [True]
