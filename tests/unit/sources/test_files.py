"""Files of any kind: their encoding, their format, and the limits for hostile files."""

from __future__ import annotations

import gzip
import io
import os
import signal
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.sources import decoding, formats
from qa_cluster.sources.extract import extract
from qa_cluster.sources.process.budget import Budget
from qa_cluster.sources.process.extractor import Extractor
from tests.harness.processes import descendants
from tests.unit.sources.pdf_writer import PdfWriter
from tests.unit.sources.test_lossless import W, cells, docx, grid, number_of, odt, par, run


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Zürich".encode(), "Zürich"),
        ("\ufeffZürich".encode(), "Zürich"),
        ("Zürich".encode("utf-16"), "Zürich"),
        ("Zürich und Genève, “so”".encode("cp1252"), "Zürich und Genève, “so”"),
        ("# -*- coding: iso-8859-2 -*- Łódź".encode("iso-8859-2"), "# -*- coding: iso-8859-2 -*- Łódź"),
        (b"a\r\nb\rc", "a\nb\nc"),
    ],
)
def test_encodings(data: bytes, text: str) -> None:
    assert decoding.decode(data) == text


def test_a_file_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not text"):
        decoding.decode(b"\x7fELF\x00\x01\x02")


def test_gzip_has_a_bound() -> None:
    assert decoding.gunzip(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"
    with pytest.raises(InputTooLong, match="more than 1000 bytes"):
        decoding.gunzip(gzip.compress(bytes(10_000_000)), 1000)
    with pytest.raises(InvalidInput, match="ends too early"):
        decoding.gunzip(gzip.compress(b"text" * 100)[:-9])
    with pytest.raises(InvalidInput, match="damaged"):
        decoding.gunzip(gzip.compress(b"text" * 100)[:10] + b"\xff" * 40)


@pytest.mark.parametrize(
    ("name", "data", "format"),
    [
        ("a.rst", b"text", "rst"),
        ("a.md", b"text", "markdown"),
        ("tool.1", b".TH TOOL 1\n", "roff"),
        ("tool.1.gz", b".Dd x\n.Dt TOOL 1\n", "roff"),
        ("notes-1.2", b"plain words", "text"),
        ("page", b"<!DOCTYPE html><html>", "html"),
        ("a.txt", b"Title\n=====\n\n.. note:: x\n\n:ref:`y` and :meth:`z`\n", "rst"),
        ("README", b"# Tool\n\nSee [it](x).\n\n## Use\n\n```\nx\n```\n", "markdown"),
        ("changelog", b"tool (1.2-3) unstable; urgency=low\n\n  * x\n", "changelog"),
        ("NEWS", b"version 1.2 - 2020\n\nx\n\nversion 1.1 - 2019\n\ny\n", "changelog"),
        ("a", b"%PDF-1.4\n", "pdf"),
        ("README", b"words", "text"),
    ],
)
def test_the_format_by_name_then_by_contents(name: str, data: bytes, format: str) -> None:
    assert formats.format_of(name, data) == format


@pytest.mark.parametrize(
    ("name", "is_document"),
    [
        *((name, True) for name in ("a.rst", "ls.1.gz", "README", "README.Debian", "00FAQ")),
        *((name, False) for name in ("a.png", "a.so", ".hidden", "a.py", "x.tar.gz")),
    ],
)
def test_files_of_a_folder_that_may_be_documents(name: str, is_document: bool) -> None:
    assert formats.may_be_document(name) is is_document


def test_pdf() -> None:
    words = ("alpha", "beta", "gamma", "delta")
    pdf = PdfWriter()
    for number, word in enumerate(words, 1):
        if number > 1:
            pdf.page()
        pdf.line(f"The Annual Report {number}")
        pdf.line(f"Chapter {word} says that the imple-")
        pdf.line(f"mentation took {number} years.")
        for other in words:
            pdf.line(f"It is about {other}.")
        pdf.line(str(number))
    format, found = extract(pdf.written(), "report.pdf")
    assert (format, found.unit) == ("pdf", "page")
    assert "Chapter gamma says that the implementation took 3 years." in found.text
    assert "Annual Report 3" not in found.text
    assert number_of(found, "Chapter gamma") == 3


def docx_bytes() -> bytes:
    def styled(style: str, text: str) -> str:
        return par(f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>', run(text))

    kinds = '<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/></w:lvl></w:abstractNum>'
    lists = f'<w:numbering xmlns:w="{W}">{kinds}<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
    item = par('<w:pPr><w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr>', run("an item"))
    table = grid(cells("Name", "Size"), cells("a", "3"))
    body = styled("Title", "Guide") + styled("Heading1", "Start") + par(run("It  begins.")) + item + table
    return docx(body, {"word/numbering.xml": lists})


def test_office() -> None:
    format, found = extract(docx_bytes(), "guide.docx")
    assert (format, found.title) == ("docx", "Guide")
    assert "Start\n\nIt begins.\n\n- an item\n\na, Size: 3" in found.text
    written = odt('<text:h text:outline-level="1">Start</text:h><text:p>It<text:s/>begins.</text:p>')
    assert extract(written, "guide")[0] == "odt"
    assert extract(written, "guide.odt")[1].text == "Start\n\nIt begins."
    assert extract(written, "guide.odt")[1].sections[0].path == ("Start",)


@pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.odt"])
def test_damaged_files_are_one_error(name: str) -> None:
    for data in (b"", b"%PDF-1.4 nothing", b"PK\x03\x04nothing", docx_bytes()[:-200]):
        with pytest.raises(InvalidInput):
            extract(data, name)


def test_a_zip_bomb_is_refused_before_it_unpacks() -> None:
    kept = io.BytesIO()
    with (
        zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("content.xml", "w", force_zip64=True) as entry,
    ):
        for _ in range(300):
            entry.write(bytes(1 << 20))
    for name in ("a.odt", "a.docx"):
        with pytest.raises(InputTooLong, match="unpacks to"):
            extract(kept.getvalue(), name)


@pytest.fixture
def extractor() -> Iterator[Extractor]:
    with Extractor() as opened:
        yield opened


def test_one_process_reads_file_after_file(extractor: Extractor) -> None:
    assert extractor.extract(b"Cats\n====\n\nThey  purr.", "cats.rst")[1].text == "Cats\n\nThey purr."
    first = extractor._process
    with pytest.raises(InvalidInput, match="not text"):
        extractor.extract(b"\x00\x01", "b.txt")
    format, found = extractor.extract(b".TH A 1\n.SH NAME\na \\- b\n", "a.1")
    assert (format, found.title, found.sections[0].path) == ("roff", "a(1) - b", ("NAME",))
    assert extractor._process is first
    assert extractor.counts == {"rst": 1, "roff": 1}


def test_a_process_that_dies_costs_one_file(extractor: Extractor) -> None:
    extractor.extract(b"words", "a.txt")
    assert extractor._process is not None
    os.kill(extractor._process.pid, signal.SIGKILL)
    with pytest.raises(InvalidInput, match="killed"):
        extractor.extract(b"words", "b.txt")
    assert extractor.extract(b"words", "c.txt")[1].text == "words"


def test_waiting_is_limited(extractor: Extractor) -> None:
    extractor.extract(b"words", "a.txt")
    assert extractor._process is not None
    os.kill(extractor._process.pid, signal.SIGSTOP)
    extractor._budget = Budget(wall_seconds=0.01)
    with pytest.raises(InvalidInput, match="did not end within"):
        extractor.extract(b"words", "a.rst")


def test_memory_is_limited() -> None:
    large = gzip.compress(b"word and word\n" * 4_000_000)
    with Extractor(budget=Budget(mib=300, most_mib=300)) as extractor:
        with pytest.raises(InvalidInput, match="300 MiB"):
            extractor.extract(large, "a.txt.gz")
        assert extractor.extract(b"words", "c.txt")[1].text == "words"


def test_the_format_can_be_forced() -> None:
    with Extractor(forced="text") as extractor:
        assert extractor.extract(b"# *x*", "a.md")[0] == "text"
    with Extractor(forced="word") as extractor, pytest.raises(InvalidInput, match="'word', must be one of"):
        extractor.extract(b"x", "a")


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["orjson.py", "qa_cluster.py"])
def test_modules_among_the_files_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    with Extractor() as extractor:
        assert extractor.extract(b"words", "a.txt")[1].text == "words"
    assert not (tmp_path / "ran").exists()


@pytest.mark.hostile
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_the_process_that_reads_files_has_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QA_CLUSTER_PASSWORD", "QA_CLUSTER_URL"):
        monkeypatch.setenv(name, "redis://:hunter2@host:7000")
    before = descendants(os.getpid())
    with Extractor() as extractor:
        extractor.extract(b"words", "a.txt")
        (pid,) = descendants(os.getpid()).keys() - before.keys()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"hunter2" not in environment
