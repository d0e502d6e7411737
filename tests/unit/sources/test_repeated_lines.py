"""Contents, navigation, page heads and page feet are left out. Similar lines of the author are not."""

from __future__ import annotations

import time

import pytest

from qa_cluster.sources.extract import extract
from qa_cluster.sources.tables import MAX_REPEATED
from tests.unit.sources.test_lossless import check, page, path_of

LINE = "The keeper of the harbour writes each boat that arrives before noon into the large book"


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_contents_end_where_their_entries_end(gap: str) -> None:
    entries = gap.join(["  1. Boats ........ 2", "  2. Ropes and knots . . . . 3", "  3. Fees          12"])
    chapters = "\n\n".join(f"{title}\n\n{LINE}.\n" for title in ("1. Boats", "2. Ropes and knots", "3. Fees"))
    text = f"Handbook\n========\n\nContents\n\n{entries}\n\n{LINE}, as this says.\n\n{chapters}"
    found = check("a.txt", text, (f"{LINE}, as this says.", "1. Boats\n\n", "3. Fees\n\n"), ("....", "Contents", "12"))
    assert found.text.count("Ropes and knots") == 1
    assert found.remarks == ("lines of a table of contents were left out: 4",)
    assert [section.path for section in found.sections] == [("1. Boats",), ("2. Ropes and knots",), ("3. Fees",)]


def test_what_only_looks_like_contents_stays() -> None:
    text = f"Parcel\n======\n\nContents:\n\n  1. an anchor\n  2. a rope ..... 3\n\n{LINE}.\n"
    found = check("a.txt", text, ("Contents:", "an anchor", "a rope", LINE))
    assert found.remarks == ()


@pytest.mark.parametrize(
    "line",
    [
        "Next: Ropes,  Previous: Boats,  Up: Top   [Contents][Index]",
        "File: harbour.info,  Node: Ropes,  Next: Fees,  Prev: Boats,  Up: Top",
        "[Previous] [Next] [Contents]",
        "<< Prev | Up | Next >>",
        "Previous page \u00b7 Next page",
    ],
)
def test_lines_that_only_lead_to_other_pages(line: str) -> None:
    note = ("lines that only lead to other pages were left out: 1",)
    assert check("a.txt", f"Ropes\n=====\n\n{line}\n\n{LINE}.\n", (LINE,), (line[:12],)).remarks == note
    markup = line.replace("<", "&lt;").replace(">", "&gt;")
    assert check("a.html", page(f"<p>{markup}</p><p>{LINE}.</p>"), (LINE,), (line[:12],)).remarks == note
    for words in ("Up next", "Next: we swim.", "The next page is the first page.", "Previous: Olaf Berg"):
        check("a.md", f"# T\n\n{words}\n\n{LINE}.\n", (words,))


@pytest.mark.parametrize("feed", ["\f\n", "\f", "\n"])
def test_heads_and_feet_of_pages_of_text(feed: str) -> None:
    head = "RFC 4711                 Rules of the Harbour                May 1998"
    pages = [
        f"   {LINE}\n   until",
        f"   the end of the {{}} day. It costs nine euros.\n\n   {LINE}\n   until",
        "   it closes.",
    ]
    written = [
        f"{text.format('first')}\n\n\nBerg                 Informational                 [Page {number}]\n{feed}"
        for number, text in enumerate((pages[0], pages[1], pages[1], pages[2]), 1)
    ]
    found = check(
        "a.txt",
        f"\n{head}\n\n\n".join([f"Rules\n=====\n\n{written[0]}", *written[1:]]),
        ("It costs nine",),
        ("[Page", "RFC", "Berg"),
    )
    assert f"{LINE} until the end of the first day." in found.text
    assert found.remarks[0].startswith("running heads and feet of pages were left out: ")
    at = next(place.number for place in found.places if found.text.startswith(LINE, place.start))
    assert "until" not in LINE and at > 1


def test_a_manual_page_as_text() -> None:
    text = (
        "CROW(1)                 User Commands                 CROW(1)\n\nNAME\n       crow - caws\n\nSEE ALSO\n"
        f"       {LINE}\n       until noon.\n\nCrow 2.1                  May 1998                  CROW(1)\n"
    )
    found = check(
        "crow.txt", text, ("CROW(1) User Commands\n", "NAME\n\ncrow - caws", f"{LINE} until noon."), ("Crow 2.1",)
    )
    assert path_of(found, LINE) == ("SEE ALSO",)


def test_senses_of_a_word_are_no_headings() -> None:
    bow = "bow\n\n1 Front part of a boat that is on the water\n\n2 Weapon of wood"
    text = f"Words\n=====\n\n{bow}\n\nbuoy\n\n1 Mark on the sea of the town\n\n{LINE}.\n"
    assert check("a.txt", text, ("1 Front part", "2 Weapon")).sections == ()
    chapters = f"Words\n=====\n\n1 Boats\n\n{LINE}.\n\n2 Ropes\n\n{LINE}, too.\n"
    assert path_of(check("a.txt", chapters, ()), f"{LINE}, too") == ("2 Ropes",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "FAQ\n===\n\nQ1. May I swim?\n\nA1. In summer.\n\nQ: And in May?\n\nA: No.\n"),
        ("a.md", "# FAQ\n\n**Q1. May I swim?**\n\nA1. In summer.\n\nQ: And in May?\n\nA: No.\n"),
        ("a.rst", "FAQ\n===\n\n**Q1. May I swim?**\n\nA1. In summer.\n\nQ. And in May?\n\nA. No.\n"),
        ("a.html", page("<p>Q1. May I swim?</p><p>A1. In summer.</p><dl><dt>Q<dd>And in May?<dt>A<dd>No.</dl>")),
        ("b.html", page("<h2>Question 1: May I swim?</h2><p>In summer.</p><ul><li>Q: And in May?<li>A: No.</ul>")),
    ],
)
def test_a_question_is_the_heading_of_its_answer(name: str, text: str) -> None:
    found = check(name, text, ("May I swim?\n\n", "And in May?\n\nNo."))
    assert path_of(found, "In summer.")[-1].endswith("May I swim?")
    assert path_of(found, "No.")[-1] == "And in May?"


def test_initials_are_no_questions() -> None:
    for text in ("Q. Berg and A. Lund own it.", "A. Lund owns it."):
        assert check("a.md", f"# T\n\n{text}\n", ("Berg" if "Berg" in text else "Lund",)).sections == ()


def test_lists_keep_the_kind_of_their_numbers() -> None:
    check("a.rst", "T\n=\n\nB. rope\nC. knot\n\niv. fee\n", ("B. rope\nC. knot", "iv. fee"))
    check(
        "a.html",
        page("<ol type=a><li>rope<li>knot</ol><ol type=I start=9><li>fee</ol>"),
        ("a. rope\nb. knot", "IX. fee"),
    )


@pytest.mark.hostile
@pytest.mark.parametrize(
    "text",
    [
        "Contents\n\n" * 30_000,
        "Contents\n\n1. " + "." * 300_000 + "x\n\n1. x\n",
        "Contents\n\n1. " + ". " * 150_000 + "x\n\n1. x\n",
        "a\f" * 150_000,
        "a\n\f\nb\n" * 40_000,
        "x [Page 1]\n" * 30_000,
        "1 A\n\n1 B\n\n" * 20_000,
        "CROW(1)   x   CROW(1)\n" * 20_000,
        "CROW(1)" + " x   CROW(1)" * 20_000,
        "Next: " * 60_000,
        "[" * 300_000,
        "Q: a?\n\nA: b\n\n" * 20_000,
    ],
    ids=lambda text: text[:14].encode("unicode_escape").decode(),
)
def test_time_is_linear(text: str) -> None:
    begun = time.process_time()
    extract(text.encode(), "a.txt")
    assert time.process_time() - begun < 6


def test_a_page_of_links_is_text() -> None:
    links = "".join(f"<li><a href='{n}'>Chapter about {word}</a></li>" for n, word in enumerate(LINE.split()))
    check("a.html", f"<title>Harbour</title><h1>Harbour</h1><ul>{links}</ul>", ("- Chapter about keeper",))
    check("a.html", f"<h1>Harbour</h1><ul>{links}</ul><p>{LINE}.</p>", (LINE,), ("Chapter about",))


def test_headers_of_rows_and_of_columns() -> None:
    rows = "<tr><th>Length<td>9 m</tr><tr><th>Load<td>2 t<td>3 t</tr>"
    check("a.html", page(f"<table>{rows}</table>"), ("Length: 9 m", "Load: 2 t, 3 t"))
    check(
        "a.html",
        page("<table><tr><td><th>Lite<th>Gold</tr><tr><th>Fee<td>4<td>9</tr></table>"),
        ("Fee, Lite: 4, Gold: 9",),
    )
    head = "<thead><tr><td>Plan<td>Fee</tr></thead>"
    check("a.html", page(f"<table>{head}<tbody><tr><td>Lite<td>4</tr></table>"), ("Lite, Fee: 4",))
    check("a.rst", "T\n=\n\n.. list-table::\n   :stub-columns: 1\n\n   * - Length\n     - 9 m\n", ("Length: 9 m",))


def test_a_long_header_is_written_once() -> None:
    long = "x" * (MAX_REPEATED + 1)
    head = "".join(f"<tr><th>A{n}<th>{long[:-2]}</tr>" for n in range(5))
    found = check("a.html", page(f"<table>{head}{'<tr><td>y<td>z</tr>' * 50}</table>"), ("y, z",))
    assert found.text.count(long[:-2]) == 5
