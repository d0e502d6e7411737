"""PDF: positions and fonts show sections, contents, running heads, columns, hyphens, lists, tables and code."""

from __future__ import annotations

import re
import time

import pytest

from qa_cluster.sources.extract import extract
from qa_cluster.sources.extracted import Extracted
from qa_cluster.sources.pdf import content
from qa_cluster.sources.pdf.writing import joined
from tests.unit.sources.pdf_writer import PdfWriter
from tests.unit.sources.test_lossless import path_of

PROSE = (
    "The harbour opens at six in the morning and closes at ten in the evening, and every boat that arrives later "
    "waits at the outer buoy until the next day. The keeper writes each arrival into the book."
)


def read(written: PdfWriter) -> Extracted:
    return extract(written.written(), "a.pdf")[1]


@pytest.mark.parametrize("bookmarks", [True, False])
def test_headings_by_bookmarks_or_by_fonts(bookmarks: bool) -> None:
    pdf = PdfWriter()
    pdf.heading("Harbour rules", 22)
    for chapter in ("Boats", "Fees"):
        pdf.heading(chapter, 16, 1 if bookmarks else 0)
        pdf.paragraph(f"About {chapter.lower()}. {PROSE}")
        pdf.heading(
            f"Small {chapter.lower()} and what their owners have to know before they arrive", 12, 2 if bookmarks else 0
        )
        pdf.paragraph(f"More of {chapter.lower()}. {PROSE}")
    found = read(pdf)
    assert found.title == "Harbour rules"
    assert path_of(found, "About fees") == ("Fees",)
    assert path_of(found, "More of boats")[0] == "Boats"
    assert path_of(found, "More of boats")[1].startswith("Small boats and what their owners")
    assert f"More of fees. {PROSE}" in found.text


def test_numbered_headings_in_the_font_of_the_text() -> None:
    pdf = PdfWriter()
    for number, name in (("2.3", "Ropes"), ("2.3.1", "Thin Ropes")):
        pdf.line(f"{number} {name}", gap=14)
        pdf.paragraph(f"Of {name.lower()}. {PROSE}")
    found = read(pdf)
    assert path_of(found, "Of thin ropes") == ("2.3 Ropes", "2.3.1 Thin Ropes")
    pdf = PdfWriter()
    pdf.paragraph(f"It weighs as much as 40 boats do and 2.5 Tons more than it did. {PROSE}")
    assert read(pdf).sections == ()


@pytest.mark.parametrize("leader", [" . . . . . . . . ", " ........ ", "   "])
def test_only_the_entries_of_contents_are_left_out(leader: str) -> None:
    chapters = ["Arrival", "Mooring and what it costs", "Leaving"]
    pdf = PdfWriter()
    pdf.heading("Contents", 16)
    for number, chapter in enumerate(chapters, 2):
        pdf.line(f"{chapter}{leader}{number}", gap=2)
    pdf.paragraph(f"This follows the contents. {PROSE}", gap=20)
    for chapter in chapters:
        pdf.page()
        pdf.heading(chapter, 14)
        pdf.paragraph(f"It is about {chapter.lower()}. {PROSE}")
    found = read(pdf)
    assert "This follows the contents." in found.text
    assert "Arrival 2" not in found.text and ". . ." not in found.text and "...." not in found.text
    assert [found.text.count(chapter) for chapter in chapters] == [1, 1, 1]
    assert found.remarks == ("lines of a table of contents were left out: 4, the first is 'Contents'",)
    assert path_of(found, "It is about leaving") == ("Leaving",)


def test_contents_whose_pages_have_the_number_of_the_chapter() -> None:
    pdf = PdfWriter()
    pdf.heading("Table of Contents", 16)
    for number, name in enumerate(("Ropes", "Knots", "Fees"), 1):
        pdf.line(f"{name} ........ {number}-1", gap=2)
    for name in ("Ropes", "Knots", "Fees"):
        pdf.heading(name, 14)
        pdf.paragraph(PROSE)
    found = read(pdf)
    assert "...." not in found.text and found.text.count("Knots") == 1
    assert found.text.count(PROSE) == 3


def test_prices_with_dots_are_no_contents() -> None:
    pdf = PdfWriter()
    pdf.heading("Menu", 16)
    for name, price in (("Coffee", 3), ("Tea", 2), ("Soup", 7), ("Bread", 1)):
        pdf.line(f"{name} ............ {price}", gap=2)
    for name in ("Coffee", "Tea", "Soup", "Bread"):
        pdf.heading(name, 12)
        pdf.paragraph(PROSE)
    found = read(pdf)
    assert re.search(r"Soup \.+ 7", found.text)
    assert found.remarks == ()


def test_running_heads_are_left_out_and_reported() -> None:
    pdf = PdfWriter()
    for number in range(1, 9):
        if number > 1:
            pdf.page()
        pdf.text(72, 760, "Handbook of the harbour" if number % 2 else f"Chapter {(number + 3) // 4}")
        pdf.text(300, 40, f"{number}")
        pdf.heading(f"{number} Rule", 14)
        for _ in range(9):
            pdf.paragraph(f"It is rule {number}. {PROSE}")
    found = read(pdf)
    assert "Handbook" not in found.text and "Chapter" not in found.text
    assert not re.search(r"^\d+$", found.text, re.MULTILINE)
    assert [f"{number} Rule" in found.text for number in range(1, 9)] == [True] * 8
    assert found.remarks[0].startswith("running heads, running feet and page numbers were left out: 16, ")


def test_a_paragraph_continues_on_the_next_page() -> None:
    head = PROSE[:60].rsplit(" ", 1)[0]
    pdf = PdfWriter()
    pdf.y = 115
    pdf.paragraph(f"{PROSE} {head}", gap=0)
    pdf.text(72, 60, "1 The book lies in the hall.", size=7)
    pdf.page()
    pdf.paragraph(PROSE[len(head) + 1 :], gap=0)
    found = read(pdf)
    assert f"{PROSE} {PROSE}" in found.text
    assert "1 The book lies in the hall." in found.text.split("\n\n")


@pytest.mark.parametrize("by_rows", [True, False])
def test_columns_are_read_one_after_the_other(by_rows: bool) -> None:
    left = [f"left column of the page, line {number} of it" for number in range(12)]
    right = [f"right column of the page, line {number} of it" for number in range(12)]
    pdf = PdfWriter()
    places = [(72, 700 - 12 * n, left[n]) for n in range(12)] + [(330, 700 - 12 * n, right[n]) for n in range(12)]
    for x, y, text in sorted(places, key=lambda place: -place[1]) if by_rows else places:
        pdf.text(x, y, text)
    assert " ".join(read(pdf).text.split()) == " ".join([*left, *right])


def test_hyphens_at_the_ends_of_lines() -> None:
    words = {"mentation", "state-of-the-art", "well", "known", "understanding", "under", "standing"}
    for texts, text in (
        (["a state-of-the-", "art thing"], "a state-of-the-art thing"),
        (["the imple-", "mentation"], "the implementation"),
        (["of under-", "standing"], "of understanding"),
        (["a well-", "known one"], "a well-known one"),
        (["in UTF-", "8 and Franco-", "Prussian"], "in UTF-8 and Franco-Prussian"),
        (["soft\u00ad", "ware"], "software"),
        (["end -", "of it"], "end - of it"),
    ):
        assert joined(texts, words) == text


def test_lists_tables_and_code() -> None:
    pdf = PdfWriter()
    pdf.paragraph(PROSE)
    for text in ("the first thing", "the second thing"):
        pdf.y -= 14
        pdf.text(80, pdf.y, "\u2022")
        pdf.text(92, pdf.y, text)
    pdf.y -= 12
    pdf.text(92, pdf.y, "that goes on")
    pdf.paragraph("After the list.", gap=16)
    for number, row in enumerate((("Plan", "Price", "Help"), ("Lite", "4", "by mail"), ("Gold", "19", "by phone"))):
        pdf.y -= 16
        for x, cell in zip((80, 200, 320), row, strict=True):
            pdf.text(x, pdf.y, cell, "F1" if number else "F2")
    pdf.paragraph("After the table.", gap=20)
    for indent, text in ((0, "if light:"), (4, "moor(boat)")):
        pdf.line(text, "F3", x=80 + indent * 6, gap=0 if indent else 12)
    found = read(pdf)
    assert "- the first thing\n- the second thing that goes on\n" in found.text
    assert "Lite, Price: 4, Help: by mail\n\nGold, Price: 19, Help: by phone\n\nAfter the table." in found.text
    assert "    if light:\n        moor(boat)" in found.text


def test_a_table_that_is_drawn_column_by_column() -> None:
    pdf = PdfWriter()
    pdf.text(72, 710, "Prices of the year")
    for x, cells in ((80, ("Lite", "Gold", "Steel")), (200, ("4", "19", "30")), (320, ("mail", "phone", "visit"))):
        for row, cell in enumerate(cells):
            pdf.text(x, 680 - 16 * row, cell)
    assert "Gold, 19, phone" in read(pdf).text


def test_text_of_every_direction_and_of_forms_is_kept() -> None:
    pdf = PdfWriter()
    pdf.paragraph(PROSE)
    pdf.pages[-1].append(b"BT /F1 10 Tf 0 1 -1 0 560 300 Tm (turned words) Tj ET")
    pdf.pages[-1].append(b"/Artifact <</Type /Pagination>> BDC BT /F1 10 Tf 72 30 Td (a marked foot) Tj ET EMC")
    found = read(pdf)
    assert "turned words" in found.text
    assert "a marked foot" not in found.text
    assert found.remarks == ("characters that the file marks as running heads or ornaments were left out: 13",)


def test_a_damaged_page_is_reported() -> None:
    pdf = PdfWriter()
    pdf.paragraph(PROSE)
    pdf.page()
    pdf.paragraph("The second page.")
    data = pdf.written().replace(b"/Parent 2 0 R", b"/Parent 9 9 R", 1)
    assert "The second page." in extract(data, "a.pdf")[1].text
    broken = pdf.written().replace(b"/Contents 6 0 R", b"/Contents (xx) ")
    assert "The second page." in extract(broken, "a.pdf")[1].text


@pytest.mark.hostile
@pytest.mark.parametrize(
    "data",
    [
        b"(" * 300_000,
        b"(" + b"\\" * 300_000,
        b"<" * 300_000,
        b"[" * 300_000,
        b"q " * 300_000,
        b"BI ID " * 60_000,
        b"/Artifact BMC " * 60_000,
        b"BT /F1 9 Tf " + b"(x) Tj 1 0 Td " * 60_000,
        b"BT /F1 9 Tf " + b"(word) Tj 0 -9 Td " * 30_000,
        b"BT /F1 9 Tf " + b"(word) Tj 0 9 Td 30 0 Td " * 30_000,
        b"BT /F1 9 Tf " + b"(Title ........ 7) Tj 0 -9 Td " * 30_000,
        b"BT /F1 9 Tf (" + b". " * 300_000 + b") Tj",
        b"BT /F1 9 Tf " + b"(a) Tj 30 0 Td (b) Tj -30 -9 Td " * 20_000,
    ],
    ids=lambda data: data[:24].decode(),
)
def test_the_time_of_a_page_is_linear(data: bytes) -> None:
    pdf = PdfWriter([[b"BT /F1 9 Tf (word) Tj ET", data]])
    begun = time.process_time()
    read(pdf)
    assert time.process_time() - begun < 8


def test_tokens() -> None:
    found = list(
        content.tokens_of(rb"(a\(b(c)\)\101\n) <41 4> [1 -.5 (x)] /Na-me % note" + b"\nTj BI /W 1 ID \x00( EI Q")
    )
    values = [value for _, value in found]
    assert values[:2] == [b"a(b(c))A\n", b"A@"]
    assert values[2:8] == [b"[", 1.0, -0.5, b"x", b"]", b"Na-me"]
    assert [value for kind, value in found if kind == "operator"] == [b"Tj", b"BI", b"ID", b"Q"]
