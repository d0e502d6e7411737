"""Reading users' files: every format, and errors that name file, place and reason."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.documents.corpus import read_documents, read_from
from qa_cluster.documents.folder_reading import ErrorObserver
from qa_cluster.documents.source_map import read_map
from qa_cluster.documents.stored import check_document
from qa_cluster.errors import InputTooLong, InvalidInput, RequestError
from qa_cluster.sources.extracted import Extracted, ParagraphPlace, Section
from qa_cluster.types import Document


def write(folder: Path, name: str, content: object) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return file


def read(*paths: Path) -> list[Document]:
    return list(read_documents(paths))


def read_skipping(paths: Sequence[Path], errors: list[RequestError], **options: Any) -> Iterator[Document]:
    """Yield the documents that can be read. The errors of the others are added to `errors`."""
    found = read_from(paths, on_error="skip", observer=ErrorObserver(errors.append), **options)
    return (document for _, document in found)


def test_plain_text_keeps_every_character(tmp_path: Path) -> None:
    text = "Zürich lies on a lake.\r\n\r\n東京 does not. 🙂\n"
    [document] = read(write(tmp_path, "cities.txt", text.encode()))
    assert (document.id, document.title, document.text) == ("cities.txt", "cities", text)


def test_markdown_takes_its_first_heading_as_title(tmp_path: Path) -> None:
    [document] = read(write(tmp_path, "a.md", "intro\n\n## The title\n\ntext\n"))
    assert document.title == "The title"
    assert document.text.startswith("intro")


def test_json_lines(tmp_path: Path) -> None:
    lines = [{"id": "a", "text": "One."}, {"id": "b", "title": "B", "text": "Two.", "metadata": {"year": 2020}}]
    file = write(tmp_path, "d.jsonl", "\n".join(map(json.dumps, lines)) + "\n\n")
    assert read(file) == [
        Document(id="a", text="One."),
        Document(id="b", text="Two.", title="B", metadata={"year": 2020}),
    ]


def test_squad_paragraphs_become_documents(tmp_path: Path) -> None:
    data = [
        {"title": "T", "paragraphs": [{"context": "One.", "qas": []}, {"context": "Two."}]},
        {"title": "T", "paragraphs": [{"context": "Three."}]},
        {"paragraphs": [{"context": "Four."}]},
    ]
    found = read(write(tmp_path, "s.json", {"version": "1", "data": data}))
    assert [(document.id, document.title, document.text) for document in found] == [
        ("T:0", "T", "One."),
        ("T:1", "T", "Two."),
        ("T:2", "T", "Three."),
        ("s-2:0", "s-2", "Four."),
    ]


def test_cord19_article(tmp_path: Path) -> None:
    article = {
        "paper_id": "abc",
        "metadata": {"title": "On lungs"},
        "abstract": [{"text": "Short."}],
        "body_text": [{"text": "Long."}, {"text": " "}],
    }
    [document] = read(write(tmp_path, "abc.json", article))
    assert (document.id, document.title, document.text) == ("abc", "On lungs", "Short.\n\nLong.")


def test_folders_are_read_in_order_and_name_their_files(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", "B.")
    write(tmp_path, "sub/a.txt", "A.")
    write(tmp_path, "picture.png", b"\x89PNG")
    assert [document.id for document in read(tmp_path)] == ["b.txt", "sub/a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"caf\xe9", ["a.txt", "not UTF-8 at byte 3"]),
        ("a.txt", " \n", ["a.txt", "the text is empty"]),
        ("a.pdf", "x", ["a.pdf", "'.pdf'", ".jsonl"]),
        ("a.jsonl", '{"id": "x", "text": "ok"}\n{"id": ', ["a.jsonl:2", "not JSON"]),
        ("a.jsonl", "[1]", ["a.jsonl:1", "must be an object", "[1]"]),
        ("a.jsonl", '{"text": "x"}', ["a.jsonl:1", "'id'"]),
        ("a.jsonl", '{"id": 7, "text": "x"}', ["a.jsonl:1", "'id' is 7"]),
        ("a.jsonl", '{"id": "x", "text": 5}', ["a.jsonl:1", "'text' is 5"]),
        ("a.jsonl", '{"id": "x", "text": "t", "metadata": []}', ["'metadata' is []"]),
        ("a.jsonl", '{"id": "x", "text": "t", "body": "b"}', ["unknown field 'body'"]),
        ("a.jsonl", '{"id": "x", "text": "\\ud800"}', ["surrogate"]),
        ("a.jsonl", b'{"id": "x", "text": "\xff"}', ["a.jsonl:1", "not UTF-8 at byte"]),
        ("a.json", "{}", ["a.json", "neither SQuAD", "CORD-19", ".jsonl"]),
        ("a.json", "[" * 100_000, ["a.json", "not JSON"]),
        ("a.json", {"data": [3]}, ["data[0]", "paragraphs"]),
        ("a.json", {"data": [{"title": ["x"], "paragraphs": []}]}, ["data[0]", "'title'"]),
        ("a.json", {"data": [{"paragraphs": [{"context": 4}]}]}, ["data[0].paragraphs[0]", "'text' is 4"]),
        ("a.json", {"paper_id": "x", "body_text": "x"}, ["'body_text'", "list"]),
        ("a.json", {"paper_id": "x", "body_text": []}, ["the text is empty"]),
    ],
)
def test_an_unreadable_file_is_named(tmp_path: Path, name: str, content: object, words: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(write(tmp_path, name, content))
    for word in words:
        assert word in str(caught.value)


def test_names_of_compressed_files_lose_their_ending(tmp_path: Path) -> None:
    line = json.dumps({"id": "x", "text": "One."})
    squad = json.dumps({"data": [{"paragraphs": [{"context": "Two."}]}]})
    texts = {"a.txt": "Three.", "b.md": "Four.", "d.jsonl": f"{line}\n", "s.json": squad}
    for name, text in texts.items():
        write(tmp_path, f"{name}.gz", gzip.compress(text.encode()))
    found = {document.id: (document.title, document.text) for document in read(tmp_path)}
    assert found == {
        "a.txt": ("a", "Three."),
        "b.md": ("b", "Four."),
        "x": ("", "One."),
        "s-0:0": ("s-0", "Two."),
    }
    write(tmp_path, "a.txt", "Three again.")
    with pytest.raises(InvalidInput, match=r"a\.txt\.gz: the id 'a\.txt' is also used"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.txt.gz", "a.json.gz"])
def test_a_damaged_gzip_file_is_named(tmp_path: Path, name: str) -> None:
    packed = gzip.compress(json.dumps({"id": "x", "text": "One. " * 1000}).encode())
    with pytest.raises(InvalidInput, match=rf"{name}: .*gzip"):
        read(write(tmp_path, name, packed[:-20]))


@pytest.mark.hostile
def test_a_compressed_text_is_limited_too(tmp_path: Path) -> None:
    bomb = write(tmp_path, "a.txt.gz", gzip.compress(bytes(10_000_000)))
    with pytest.raises(InputTooLong, match=r"a\.txt\.gz: .*1000003"):
        list(read_documents([bomb], max_bytes=1_000_000))
    lines = write(tmp_path, "a.jsonl.gz", gzip.compress(b'{"id": "' + b"x" * 20_000_000))
    with pytest.raises(InputTooLong, match=r"a\.jsonl\.gz:1: the line has more than"):
        list(read_documents([lines], max_bytes=1_000_000))


def test_missing_paths_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere: no such file"):
        read(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"no file in this folder"):
        read(tmp_path)


def test_a_document_over_the_limit_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", "é" * 600)
    with pytest.raises(InputTooLong, match="1200 bytes, the limit is 1000"):
        list(read_documents([file], max_bytes=1000))


def test_skip_reports_and_continues(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"id": "x", "text": "ok"}\nbroken\n{"id": "y", "text": "ok"}\n')
    write(tmp_path, "b.txt", b"\xff")
    write(tmp_path, "c.txt", "Fine.")
    skipped: list[RequestError] = []
    found = list(read_skipping([tmp_path], skipped))
    assert [document.id for document in found] == ["x", "y", "c.txt"]
    assert [str(error).split("/")[-1].split(":")[0] for error in skipped] == ["a.jsonl", "b.txt"]


def test_two_documents_with_one_id_are_an_error_that_names_both(tmp_path: Path) -> None:
    write(tmp_path, "x/a.txt", "One.")
    write(tmp_path, "y/a.txt", "Two.")
    lines = write(tmp_path, "z.jsonl", '{"id": "z", "text": "t"}\n{"id": "z", "text": "u"}\n')
    with pytest.raises(InvalidInput, match=r"y/a\.txt: the id 'a\.txt' .*x/a\.txt"):
        read(tmp_path / "x", tmp_path / "y")
    with pytest.raises(InvalidInput, match=r"z\.jsonl:2: the id 'z' .*z\.jsonl:1"):
        read(lines)
    skipped: list[RequestError] = []
    found = read_skipping([tmp_path / "x", tmp_path / "y", lines], skipped)
    assert [document.text for document in found] == ["One.", "t"]
    assert len(skipped) == 2
    lines.unlink()
    assert [document.id for document in read(tmp_path)] == ["x/a.txt", "y/a.txt"]


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "One.")
    for name in ("b.txt", "c.jsonl"):
        (tmp_path / name).symlink_to("gone")
    skipped: list[RequestError] = []
    assert len(list(read_skipping([tmp_path], skipped))) == 1
    assert [str(error).rpartition("/")[2].partition(":")[0] for error in skipped] == ["b.txt", "c.jsonl"]
    assert all("a link to 'gone'" in str(error) for error in skipped)


def test_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'ignore'"):
        list(read_from([tmp_path], on_error="ignore"))


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", '{"id": "x", "text": "ok"}\nbroken\n')
    documents = read_documents([file])
    assert next(documents).id == "x"
    with pytest.raises(InvalidInput, match=r"a\.jsonl:2"):
        next(documents)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.txt", "One.")
    write(tmp_path, "shut/b.txt", "Two.")
    scandir = os.scandir

    def refusing(path: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "shut":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    skipped: list[RequestError] = []
    found = list(read_skipping([tmp_path], skipped))
    assert [document.id for document in found] == ["a.txt"]
    assert [str(error) for error in skipped] == [f"{tmp_path}/shut: cannot list this folder: Permission denied"]
    with pytest.raises(InvalidInput, match="cannot list this folder"):
        read(tmp_path)


def test_a_prefix_starts_every_id_and_counts_against_its_limit(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "One.")
    write(tmp_path, "b.jsonl", json.dumps({"id": "x" * 510, "text": "Two."}))
    skipped: list[RequestError] = []
    found = read_skipping([tmp_path], skipped, id_prefix="n/")
    assert [document.id[:7] for document in found] == ["n/a.txt", "n/xxxxx"]
    found = read_skipping([tmp_path], skipped, id_prefix="no/")
    assert [document.id for document in found] == ["no/a.txt"]
    assert "b.jsonl:1: document id" in str(skipped[0]) and "513 bytes, the limit is 512" in str(skipped[0])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"id": "x" * 513, "text": "t"}, "has 513 bytes"),
        ({"id": "x", "text": "t", "title": "x" * 4097}, "title of document 'x' has 4097 bytes"),
        ({"id": "x", "text": "t", "metadata": {"k": "x" * 65536}}, "the limit is 65536"),
        ({"id": "x", "text": "t" * 5_000_001}, "has 5000001 code points"),
        (
            {"id": "x", "text": "t", "metadata": {"k": 2**64}},
            "metadata of document 'x' has the number 18446744073709551616",
        ),
        ({"id": "x", "text": "a。" * 100_001}, "text of document 'x' has more than 100000 sentences"),
        ({"id": "x", "text": '{"nan": NaN}', "metadata": {"k": float("nan")}}, "is not JSON"),
    ],
)
def test_an_error_of_a_limit_names_file_and_line(tmp_path: Path, line: object, words: str) -> None:
    file = write(tmp_path, "a.jsonl", json.dumps(line))
    with pytest.raises(RequestError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}:1: ")
    assert words in str(caught.value)


def test_named_paths_without_a_document_are_skipped_too(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    picture = write(tmp_path, "picture.png", b"\x89PNG")
    paths = [tmp_path / "empty", picture, tmp_path / "nowhere", write(tmp_path, "a.txt", "One.")]
    skipped: list[RequestError] = []
    assert len(list(read_skipping(paths, skipped))) == 1
    assert len(skipped) == 3


class Upper:
    """An extractor that returns upper case."""

    forced = ""
    max_bytes = 1_000_000

    def extract(self, data: bytes, name: str) -> tuple[str, Extracted]:
        if Path(name).name.startswith("bad"):
            raise InvalidInput("is no text")
        sections = (Section(0, 5, ("A",)), Section(9, 12, ("A", "B")))
        return "text", Extracted("T" * 1000, data.decode().upper(), sections, (ParagraphPlace(0, 3),), "line")


def test_an_extractor_reads_all_files_but_json_and_says_where_its_text_is_from(tmp_path: Path) -> None:
    for name in ("b.rst", "sub/README", ".git/HEAD", "picture.png", "bad.1"):
        write(tmp_path, name, "some words of it")
    write(tmp_path, "c.jsonl", '{"id": "j", "text": "as it is"}\n')
    errors: list[RequestError] = []
    found = list(read_skipping([tmp_path], errors, extractor=Upper()))
    assert [document.id for document in found] == ["b.rst", "j", "sub/README"]
    assert [document.text for document in found] == ["SOME WORDS OF IT", "as it is", "SOME WORDS OF IT"]
    assert [str(error) for error in errors] == [f"{tmp_path / 'bad.1'}: is no text"]
    source = read_map(found[2].metadata)
    assert (source.file, source.format) == ("sub/README", "text")
    assert [source.section_at(start) for start in (0, 7, 10)] == [("A",), (), ("A", "B")]
    assert source.number_at(8) == 3
    assert len(found[2].title) == 300
    assert found[1].metadata == {}


def test_another_version_of_the_extractor_changes_the_version_of_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "b.rst", "some words of it")

    def version() -> str:
        [document] = read_documents([file], extractor=Upper())
        return check_document(document.id, document.text, document.title, document.metadata).version

    before = version()
    assert version() == before
    monkeypatch.setattr("qa_cluster.documents.corpus.EXTRACTOR_VERSION", 999)
    assert version() != before
