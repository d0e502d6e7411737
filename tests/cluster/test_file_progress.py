"""Progress through files: a bar on a terminal, otherwise a line every few seconds, and the pages of a large file."""

from __future__ import annotations

import threading
from io import StringIO

import pytest
from rich.console import Console

from qa_cluster.cluster.terminal import console
from qa_cluster.cluster.terminal.file_progress import FileProgress
from qa_cluster.sources.process import pages
from qa_cluster.sources.process.extractor import Extractor
from tests.harness.polling import eventually
from tests.unit.sources.pdf_writer import PdfWriter

MIB = 1024 * 1024


def test_the_counts_grow_with_files_pages_and_documents() -> None:
    progress = FileProgress("storing")
    assert (progress.part, progress.text) == (0.0, "storing: 0 of 0 files, 0.0 of 0.0 MiB, 0 documents")
    progress.expect(2, 4 * MIB)
    progress.begin("a.pdf", 3 * MIB)
    progress.page(1, 3)
    assert (progress.part, progress.current) == (0.25, "a.pdf, page 1 of 3")
    progress.begin("b" * 100, MIB)
    progress.store(1)
    assert progress.part == 0.75 and len(progress.current) == 40
    assert progress.text.startswith("storing: 1 of 2 files, 3.0 of 4.0 MiB, 1 document; ..bbb")
    progress.end()
    progress.end()
    assert (progress.part, progress.done_files) == (1.0, 2)


def test_without_a_terminal_there_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()
    monkeypatch.setattr(console, "err", Console(file=said, width=200, highlight=False))
    monkeypatch.setattr(console, "PLAIN_EVERY_SECONDS", 0.02)
    progress = FileProgress("storing")
    progress.expect(1, MIB)
    with progress.shown() as store:
        progress.begin("a.pdf", MIB)
        progress.page(7, 900)
        store(3)
        eventually(lambda: said.getvalue().count("a.pdf, page 7 of 900") >= 2)
    assert "· storing: 1 of 1 file, 1.0 of 1.0 MiB, 3 documents in " in said.getvalue()
    assert "\x1b" not in said.getvalue()
    assert not [thread for thread in threading.enumerate() if thread.name == "progress"]


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    said = StringIO()
    terminal = Console(file=said, width=200, highlight=False, force_terminal=True, legacy_windows=False)
    monkeypatch.setattr(console, "err", terminal)
    monkeypatch.setattr(console, "BAR_EVERY_SECONDS", 0.02)
    progress = FileProgress("storing")
    progress.expect(2, 2 * MIB)
    with progress.shown():
        progress.begin("a [bold].pdf", MIB)
        progress.page(7, 900)
        eventually(lambda: "page 7/900 a [bold].pdf" in said.getvalue())
    assert "1/2 files 1.0/2.0 MiB" in said.getvalue()


def test_the_process_that_reads_a_large_file_reports_its_pages() -> None:
    seen: list[tuple[int, int]] = []
    pdf = PdfWriter(pages=[[] for _ in range(60)])
    for page, contents in enumerate(pdf.pages):
        contents += [
            b"BT /F1 9 Tf 72 %d Td (Line %d of page %d.) Tj ET" % (700 - line, line, page) for line in range(400)
        ]
    with Extractor() as extractor:
        extractor.on_page = lambda page, pages: seen.append((page, pages))
        assert "Line 200 of page 59." in extractor.extract(pdf.written(), "a.pdf")[1].text
        assert extractor.extract(b"# A\n\nWords.", "a.md")[1].text == "A\n\nWords."
    assert all(0 < page <= total == 60 for page, total in seen)
    assert seen and sorted(seen) == seen


def test_pages_are_reported_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(pages, "_report", lambda page, total: seen.append((page, total)))
    assert list(pages.reported(range(1000), 1000)) == list(range(1000))
    assert len(seen) < 10
    monkeypatch.setattr(pages, "_EVERY_SECONDS", 0.0)
    assert list(pages.reported("abc", 3)) == ["a", "b", "c"]
    assert seen[-3:] == [(1, 3), (2, 3), (3, 3)]
