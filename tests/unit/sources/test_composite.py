"""Files that consist of parts: e-books, notebooks, e-mail, presentations and spreadsheets."""

from __future__ import annotations

import datetime
import io
import json
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from typing import Any

import openpyxl
import pptx
import pytest
from openpyxl.cell import Cell
from pptx.util import Inches

from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.sources.composite import archive as archives
from qa_cluster.sources.composite import sheets
from qa_cluster.sources.composite.cell_values import shown
from qa_cluster.sources.extract import extract
from tests.harness.figures import Figures
from tests.unit.sources.test_lossless import archive, number_of, path_of

CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
DC = 'xmlns:dc="http://purl.org/dc/elements/1.1/"'
PAGE = "application/xhtml+xml"


def epub(
    chapters: dict[str, str], about: str = "", items: str = "", more: dict[str, str | bytes] | None = None
) -> bytes:
    """An e-book with a file for each chapter; `items` are further items of the manifest."""
    listed = "".join(f'<item id="i{n}" href="{name}" media-type="{PAGE}"/>' for n, name in enumerate(chapters))
    spine = "".join(f'<itemref idref="i{n}"/>' for n, _ in enumerate(chapters))
    package = f"<package {DC}><metadata>{about}</metadata><manifest>{listed}{items}</manifest>"
    package += f"<spine>{spine}</spine></package>"
    pages: dict[str, str | bytes] = {
        f"OEBPS/{name}": f'<?xml version="1.0"?><html><head><title>Book</title></head><body>{body}</body></html>'
        for name, body in chapters.items()
    }
    start: dict[str, str | bytes] = {"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": package}
    return archive({"mimetype": "application/epub+zip", **start, **pages, **(more or {})})


def notebook(*cells: dict[str, Any]) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}).encode()


# ---- e-books ----


def test_an_e_book_is_its_chapters_in_the_order_of_the_spine() -> None:
    about = "<dc:title>The Quay</dc:title><dc:creator>Ada Berg</dc:creator><dc:creator>Bo Lind</dc:creator>"
    about += "<dc:language>en</dc:language><dc:date>1999-05-01</dc:date>"
    chapters = {
        "z one.xhtml": "<h1>Arrival</h1><p>The boat came<a epub:type='noteref' href='n.xhtml#a'>1</a> at six.</p>",
        "a.xhtml": "<h1>Leaving</h1><h2>By night</h2><p>It left.</p>",
    }
    found = extract(epub(chapters, about), "b.epub")[1]
    assert (found.title, found.metadata) == (
        "The Quay",
        {"author": "Ada Berg, Bo Lind", "language": "en", "date": "1999-05-01"},
    )
    assert found.text == "Arrival\n\nThe boat came at six.\n\nLeaving\n\nBy night\n\nIt left."
    assert path_of(found, "It left") == ("Leaving", "By night")
    assert (found.unit, number_of(found, "The boat"), number_of(found, "It left")) == ("page", 1, 2)


@pytest.mark.parametrize("kind", ["nav", "ncx"])
def test_a_chapter_without_a_heading_has_its_name_in_the_contents(kind: str) -> None:
    if kind == "nav":
        items = f'<item id="n" href="nav.xhtml" properties="nav" media-type="{PAGE}"/>'
        contents = '<html><body><nav epub:type="toc"><a href="a.xhtml#x">The flood</a></nav></body></html>'
    else:
        items = '<item id="n" href="nav.xhtml" media-type="application/x-dtbncx+xml"/>'
        contents = "<ncx><navPoint><navLabel><text>The flood</text></navLabel><content src='a.xhtml'/></navPoint></ncx>"
    data = epub(
        {"a.xhtml": "<p>It rose.</p>", "b.xhtml": "<h2>Ebb</h2>"}, items=items, more={"OEBPS/nav.xhtml": contents}
    )
    found = extract(data, "b.epub")[1]
    assert path_of(found, "It rose.") == ("The flood",)
    assert found.text == "The flood\n\nIt rose.\n\nEbb"


def test_a_protected_e_book_is_refused_and_encrypted_fonts_are_not() -> None:
    def hidden(name: str) -> dict[str, str | bytes]:
        return {"META-INF/encryption.xml": f'<e><CipherData><CipherReference URI="OEBPS/{name}"/></CipherData></e>'}

    with pytest.raises(InvalidInput, match="protected"):
        extract(epub({"a.xhtml": "x"}, more=hidden("a.xhtml")), "b.epub")
    assert extract(epub({"a.xhtml": "<p>Words.</p>"}, more=hidden("font.otf")), "b.epub")[1].text == "Words."


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "cannot be read"),
        ({"META-INF/container.xml": "<c/>"}, "names no package"),
        ({"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": "<package/>"}, "names no chapters"),
        ({"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": "<package"}, "cannot be read"),
    ],
)
def test_damaged_e_books(files: dict[str, str | bytes], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        extract(archive({"mimetype": "application/epub+zip", **files}), "b.epub")


# ---- notebooks ----


def test_a_notebook() -> None:
    table = "<table><thead><tr><th><th>tide</tr></thead><tbody><tr><th>Mon<td>7</tr></tbody></table>"
    outputs = [
        {"output_type": "stream", "text": ["done\n", "in 3 s"]},
        {"output_type": "execute_result", "data": {"text/html": table, "text/plain": "never"}},
        {"output_type": "display_data", "data": {"image/png": "AAAA", "text/plain": ["<Figure>"]}},
        {"output_type": "display_data", "data": {"image/png": "AAAA"}},
        {"output_type": "error", "ename": "E", "traceback": ["boom"]},
        {"output_type": "stream", "text": "y" * 9000},
    ]
    found = extract(
        notebook(
            {"cell_type": "raw", "source": "---\ntitle: Tides\nlang: en\n---\n"},
            {"cell_type": "markdown", "source": ["# Top\n", "\n", "Text with `code`.\n", "```\nopen fence"]},
            {"cell_type": "code", "source": "x = 1\nprint(x)", "outputs": outputs},
            {"cell_type": "markdown", "source": "## Below\n\n- one\n- two"},
        ),
        "n.ipynb",
    )[1]
    assert (found.title, found.metadata) == ("Tides", {"lang": "en"})
    for part in ("Text with code.", "    x = 1\n    print(x)", "    done\n    in 3 s", "Mon, tide: 7", "- one\n- two"):
        assert part in found.text
    assert not any(part in found.text for part in ("never", "AAAA", "boom"))
    assert found.text.count("y" * 100) == 40
    assert (path_of(found, "- one"), number_of(found, "- one"), found.unit) == (("Below",), 4, "page")
    assert set(found.remarks) == {
        "outputs were cut after 4000 characters: 1",
        "outputs without text, such as pictures, were left out: 1",
        "outputs with errors were left out: 1",
    }


def test_a_notebook_of_format_3_and_files_that_are_not_notebooks() -> None:
    cells = [{"cell_type": "heading", "level": 2, "source": "Old"}, {"cell_type": "code", "input": "y = 2"}]
    data = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}).encode()
    assert extract(data, "n.ipynb")[1].text == "Old\n\n    y = 2"
    for bad in (b"[1]", b"{}", b"{", b'{"cells": 3}', b"[" * 100_000):
        with pytest.raises(InvalidInput):
            extract(bad, "n.ipynb")
    with pytest.raises(InvalidInput, match="contains no text"):
        extract(b'{"cells": [3, null, {"cell_type": 4, "source": {"a": 1}}]}', "n.ipynb")


# ---- e-mail ----


def mail(text: str = "Hello.", **header: str) -> EmailMessage:
    message = EmailMessage()
    for name, value in {"Subject": "Harbour fee", "From": "Ada Berg <ada@example.com>", **header}.items():
        message[name] = value
    message.set_content(text)
    return message


def test_an_e_mail() -> None:
    text = "Dear Bo,\n\nThe fee is <45> euros a_b_c.\n\n- by card\n- by cash\n\nOn Monday you wrote:\n"
    text += "> How much\n> is it?\nIt is less now.\n>> Older.\n\n-- \nAda Berg\n"
    message = mail(text, To="Bo <bo@example.com>, Cy <cy@example.com>", Date="Fri, 03 May 2024 10:00:00 +0200")
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="Prices.pdf")
    message.add_attachment("note", filename="b.txt")
    found = extract(bytes(message), "m.eml")[1]
    assert found.title == "Harbour fee"
    assert found.metadata == {
        "from": "Ada Berg <ada@example.com>",
        "to": "Bo <bo@example.com>, Cy <cy@example.com>",
        "date": "2024-05-03T10:00:00+02:00",
    }
    assert found.text == (
        "Dear Bo,\n\nThe fee is <45> euros a_b_c.\n\n- by card\n- by cash\n\nOn Monday you wrote:\n\n"
        "> How much is it?\n\nIt is less now.\n\n> Older.\n\nAda Berg"
    )
    assert found.remarks == ("attachments were left out: Prices.pdf, b.txt",)
    assert found.places == ()


def test_an_e_mail_of_html_only_and_of_both() -> None:
    message = mail()
    page = "<html><h1>Fees</h1><table><tr><th>Day<th>Fee</tr><tr><td>Mon<td>5</tr></table><blockquote>Old.</blockquote>"
    message.set_content(page, subtype="html")
    found = extract(bytes(message), "m.eml")[1]
    assert (found.title, found.text) == ("Harbour fee", "Fees\n\nMon, Fee: 5\n\n> Old.")
    assert path_of(found, "Mon") == ("Fees",)
    both = mail("Plain words.")
    both.add_alternative("<p>Other words.</p>", subtype="html")
    found = extract(bytes(both), "m.eml")[1]
    assert (found.text, found.remarks) == ("Plain words.", ())


def test_encodings_and_faults_of_e_mail() -> None:
    head = b"Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\nContent-Type: text/plain; charset="
    assert extract(head + b"iso-8859-1\n\nF\xfcr 9 \x80.\n", "m.eml")[1].text == "Für 9 €."
    assert extract(head + b"no-such\n\nF\xc3\xbcr.\n", "m.eml")[1].text == "Für."
    found = extract(head + b"punycode\n\nWords.\n", "m.eml")[1]
    assert (found.title, found.text) == ("Grüße", "Words.")
    for bad in (b"", b"\n\nno header", b"Subject: x\n\n"):
        with pytest.raises(InvalidInput):
            extract(bad, "m.eml")
    long = b"To: " + b"a@example.com, " * 100_000 + b"\nSubject: x\n\nWords.\n"
    assert extract(long, "m.eml")[1].metadata == {}


# ---- presentations ----


def test_slides() -> None:
    deck = pptx.Presentation()
    first = deck.slides.add_slide(deck.slide_layouts[1])
    first.shapes.title.text = "Fees of 2024"
    body = first.placeholders[1].text_frame
    body.text = "Boats"
    for level, text in ((1, "small"), (1, "large"), (0, "Cars")):
        added = body.add_paragraph()
        added.text, added.level = text, level
    first.notes_slide.notes_text_frame.text = "Say it slowly."
    second = deck.slides.add_slide(deck.slide_layouts[6])
    group = second.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "In a group."
    table = second.shapes.add_table(3, 3, 0, 0, Inches(3), Inches(3)).table
    for row, texts in enumerate((("Plan", "Price", ""), ("Lite", "4", "mail"), ("", "7", "call"))):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(0, 1).merge(table.cell(0, 2))
    table.cell(1, 0).merge(table.cell(2, 0))
    hidden = deck.slides.add_slide(deck.slide_layouts[5])
    hidden.shapes.title.text = "Secret"
    hidden._element.set("show", "0")
    deck.save(made := io.BytesIO())
    found = extract(made.getvalue(), "d.pptx")[1]
    assert found.title == "Fees of 2024"
    assert found.text == (
        "Fees of 2024\n\n- Boats\n  - small\n  - large\n- Cars\n\nNotes: Say it slowly.\n\nSlide 2\n\nIn a group.\n\n"
        "Lite, Price: 4, mail\n\nLite, Price: 7, call"
    )
    assert (path_of(found, "Lite"), number_of(found, "Lite"), found.unit) == (("Slide 2",), 2, "page")
    assert found.remarks == ("hidden slides were left out: 1",)


# ---- spreadsheets ----


def book(fill: Callable[[Any], None]) -> bytes:
    made = openpyxl.Workbook()
    made.active.title = "Prices"
    fill(made)
    made.save(written := io.BytesIO())
    return written.getvalue()


def test_a_spreadsheet() -> None:
    def fill(made: openpyxl.Workbook) -> None:
        sheet = made.active
        sheet["B1"] = "Price list"
        sheet.append([None, "Plan", "Price", None, "Since"])
        sheet.append([None, None, "week", "month"])
        for row in (
            ["Lite", 4, 11.5, datetime.date(2024, 5, 3)],
            [None, 0.25, 1300, datetime.datetime(2024, 5, 4, 9, 30)],
        ):
            sheet.append([None, *row])
        for cell, shape in (("D4", "0.00"), ("C5", "0%"), ("D5", '#,##0 "kr"')):
            sheet[cell].number_format = shape
        sheet.merge_cells("C2:D2")
        sheet.merge_cells("B4:B5")
        sheet["B8"] = "Note: pay early."
        sheet["B10"], sheet["C10"] = "=1+1", "#N/A"
        sheet["B12"], sheet["C12"] = "hidden row", "x"
        sheet.row_dimensions[12].hidden = True
        other = made.create_sheet("Secret")
        other["A1"] = "hush"
        other.sheet_state = "hidden"
        made.create_sheet("Empty")
        made.create_sheet("Last")["A1"] = True

    found = extract(book(fill), "p.xlsx")[1]
    assert found.text == (
        "Prices\n\nPrice list\n\nLite, Price week: 4, Price month: 11.50, Since: 2024-05-03\n\n"
        "Lite, Price week: 25%, Price month: 1,300 kr, Since: 2024-05-04 09:30\n\nNote: pay early.\n\nLast\n\nTRUE"
    )
    assert (path_of(found, "Lite"), number_of(found, "Lite"), found.unit) == (("Prices",), 4, "line")
    assert found.remarks == (
        "hidden sheets were left out: Secret",
        "hidden rows and columns were left out: 1",
        "formulas without a stored value were left out: 1",
        "cells with an error were left out: 1",
    )


@pytest.mark.parametrize(
    ("value", "number_format", "text"),
    [
        (12, "General", "12"),
        (0.1 + 0.2, "General", "0.3"),
        (0.125, "0.00", "0.13"),
        (1234567.891, "#,##0.0", "1,234,567.9"),
        (0.5, "#,##0", "1"),
        (-5, "#,##0;(#,##0)", "(5)"),
        (-5, "0.0", "-5.0"),
        (0, '0;-0;"none"', "none"),
        (9, "[$€-407] 0.00", "€ 9.00"),
        (9, '_-"£"* 0_-', "£9"),
        (1500000, '0.0,,"M"', "1.5M"),
        (42, "00000", "00042"),
        (1.50, "0.##", "1.5"),
        (5551234, "000-0000", "5551234"),
        (0.5, "# ?/?", "0.5"),
        (1e300, "0.00", "1e+300"),
        (float("inf"), "0.00", "inf"),
        (3, ";;;", ""),
        (3, "0" * 100_000, "3"),
        (datetime.time(9, 5), "h:mm", "09:05"),
        (datetime.timedelta(hours=30, minutes=5), "[h]:mm", "30:05"),
    ],
)
def test_values_of_cells(value: object, number_format: str, text: str) -> None:
    assert shown(value, number_format) == text


# ---- limits ----


def test_no_archive_unpacks_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1000)
    for name in ("a.docx", "a.odt", "a.epub", "a.pptx", "a.xlsx"):
        with pytest.raises(InputTooLong, match="unpacks to"):
            extract(archive({"x": b" " * 2000}), name)
        with pytest.raises(InvalidInput, match="damaged"):
            extract(b"PK\x03\x04" + b"x" * 50, name)
        with pytest.raises(InvalidInput):
            extract(archive({"x": b""}), name)


ROWS = "xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'"


def with_sheet(rows: str) -> bytes:
    """A spreadsheet with these rows in its sheet."""
    parts = zipfile.ZipFile(io.BytesIO(book(lambda made: None)))
    files: dict[str, str | bytes] = {name: parts.read(name) for name in parts.namelist()}
    return archive(files | {"xl/worksheets/sheet1.xml": f"<worksheet {ROWS}><sheetData>{rows}"})


def test_the_size_of_a_spreadsheet_has_a_limit(monkeypatch: pytest.MonkeyPatch, figures: Figures) -> None:
    far = '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c r="XFD1048576"><v>7</v></c></row></sheetData>'
    merged = "<mergeCells>" + '<mergeCell ref="A1:XFD1048576"/>' * 1000 + "</mergeCells></worksheet>"
    with figures.measured("a spreadsheet of two cells far apart", limit_seconds=10.0):
        assert extract(with_sheet(far + merged), "a.xlsx")[1].text == "Prices\n\n1\n\n7"
    wide = "".join(f'<row r="{n}"><c r="XFD{n}"><v>1</v></c></row>' for n in range(1, 200)) + "</sheetData></worksheet>"
    with pytest.raises(InputTooLong, match="more than 500000 cells"):
        extract(with_sheet(wide), "a.xlsx")
    monkeypatch.setattr(sheets, "MAX_CELLS", 10)
    with pytest.raises(InputTooLong, match="more than 10 cells"):
        extract(with_sheet("<row><c><v>1</v></c></row>" * 11 + "</sheetData></worksheet>"), "a.xlsx")


@pytest.mark.parametrize("name", ["a.epub", "a.pptx", "a.xlsx"])
def test_the_format_of_an_archive_by_its_contents(name: str) -> None:
    made = {"a.epub": lambda: epub({"a.xhtml": "<p>Words.</p>"}), "a.xlsx": lambda: book(_one_cell), "a.pptx": _deck}
    assert extract(made[name](), "unnamed")[0] == name[2:]


def _one_cell(made: Any) -> None:
    cell: Cell = made.active["A1"]
    cell.value = "x"


def _deck() -> bytes:
    deck = pptx.Presentation()
    deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = "x"
    deck.save(written := io.BytesIO())
    return written.getvalue()
