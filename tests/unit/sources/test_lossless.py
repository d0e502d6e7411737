"""Text that other programs lose, change or invent. Each case is a fault that was reported for one of them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import pytest

from qa_cluster.sources.extract import extract
from qa_cluster.sources.extracted import Extracted

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TYPES = """<?xml version="1.0"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Default Extension="xml" ContentType="application/xml"/><Override PartName="/word/document.xml"
ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>"""
RELATIONS = """<?xml version="1.0"?><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
Target="word/document.xml"/></Relationships>"""
ODT_SPACES = " ".join(
    f'xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for short, name in {"office": "office", "text": "text", "table": "table", "draw": "drawing"}.items()
)


def archive(files: Mapping[str, str | bytes]) -> bytes:
    with zipfile.ZipFile(written := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in files.items():
            made.writestr(name, data, zipfile.ZIP_STORED if name == "mimetype" else None)
    return written.getvalue()


def docx(body: str, parts: dict[str, str] | None = None) -> bytes:
    files = {"[Content_Types].xml": TYPES, "_rels/.rels": RELATIONS}
    files["word/document.xml"] = f'<w:document xmlns:w="{W}"><w:body>{body}</w:body></w:document>'
    return archive(files | (parts or {}))


def odt(body: str) -> bytes:
    text = f"<office:document-content {ODT_SPACES}><office:body><office:text>{body}</office:text></office:body>"
    return odt_of(text + "</office:document-content>")


def odt_of(content: str | bytes) -> bytes:
    return archive({"mimetype": "application/vnd.oasis.opendocument.text", "content.xml": content})


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def par(*parts: str) -> str:
    return f"<w:p>{''.join(parts)}</w:p>"


def grid(*rows: str) -> str:
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in rows)}</w:tbl>"


def cells(*texts: str) -> str:
    return "".join(f"<w:tc>{par(run(text))}</w:tc>" for text in texts)


def odt_par(text: str) -> str:
    return f"<text:p>{text}</text:p>"


def odt_row(*texts: str, first: str = "", before: str = "") -> str:
    made = [f"<table:table-cell>{odt_par(text)}</table:table-cell>" for text in texts]
    made[0] = made[0].replace("table-cell>", f"table-cell {first}>", 1)
    return f"<table:table-row>{before}{''.join(made)}</table:table-row>"


def odt_table(*rows: str) -> str:
    return f"<table:table>{''.join(rows)}</table:table>"


def page(body: str) -> bytes:
    return f"<html><body><h1>Shop</h1>{body}</body></html>".encode()


def check(name: str, data: bytes | str, wanted: tuple[str, ...], unwanted: tuple[str, ...] = ()) -> Extracted:
    found = extract(data.encode() if isinstance(data, str) else data, name)[1]
    assert [part for part in wanted if part not in found.text] == [], found.text
    assert [part for part in unwanted if part in found.text] == [], found.text
    return found


def path_of(found: Extracted, words: str) -> tuple[str, ...]:
    """The headings above the first occurrence of these words."""
    at = found.text.index(words)
    return next((section.path for section in found.sections if section.start <= at < section.end), ())


def number_of(found: Extracted, words: str) -> int:
    """The line or page of the paragraph with the first occurrence of these words."""
    at = found.text.index(words)
    return [place.number for place in found.places if place.start <= at][-1]


TEXT = "Señora Muñoz pays 3 € — “today” — for a crêpe.\n\nOld: "


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.rst", "a.html"])
def test_a_stray_byte_changes_no_other_letter(name: str) -> None:
    data = TEXT.encode() + b"na\xefve and m\xfcde.\n"
    found = check(name, data, ("Señora Muñoz pays 3 € — “today”", "naïve and müde"))
    assert found.remarks == ("bytes that are not UTF-8 were read as windows-1252: 2",)
    check(name, TEXT.encode() + "é".encode()[:1], ("Señora Muñoz",), ("Ã",))


@pytest.mark.parametrize("label", ["latin-1", "ISO-8859-1", "iso8859-1", "us-ascii", "windows-1252"])
def test_a_label_has_the_meaning_that_browsers_give_it(label: str) -> None:
    words = "It costs 9 € – “dear”."
    meta = (
        f'<html><head><meta http-equiv="Content-Type" content="text/html; charset={label}"></head><p>{words}</p></html>'
    )
    check("a.html", meta.encode("cp1252"), (words,))
    check("a.xhtml", f'<?xml version="1.0" encoding="{label}"?><p>{words}</p>'.encode("cp1252"), (words,))
    check("a.rst", f".. -*- coding: {label} -*-\n\n{words}\n".encode("cp1252"), (words,))


@pytest.mark.parametrize("label", ["utf-16", "utf-7", "koi8-r", "cp500", "no-such"])
def test_prose_about_an_encoding_declares_none(label: str) -> None:
    check("a.txt", f"Servers send charset={label} to old clients. The naïve ones fail.".encode("cp1252"), ("naïve",))


@pytest.mark.parametrize(
    ("body", "wanted", "unwanted"),
    [
        (
            par(run("It costs "), f"<w:ins>{run('12')}</w:ins>", "<w:del><w:r><w:delText>99</w:delText></w:r></w:del>"),
            "12", "99",
        ),
        (
            par(f"<w:moveTo>{run('Here now.')}</w:moveTo>") + par(f"<w:moveFrom>{run('Was here.')}</w:moveFrom>"),
            "Here now.", "Was",
        ),
        (par(run("By "), f"<w:sdt><w:sdtContent>{run('1 May')}</w:sdtContent></w:sdt>"), "By 1 May", ""),
        (f"<w:sdt><w:sdtContent>{par(run('Nine years.'))}</w:sdtContent></w:sdt>", "Nine years.", ""),
        (par(run("Chief: "), f'<w:fldSimple w:instr="X">{run("Eva Ek")}</w:fldSimple>'), "Chief: Eva Ek", ""),
        (par(f'<w:smartTag w:element="place">{run("Bern")}</w:smartTag>'), "Bern", ""),
        (
            grid(
                cells("Day", "Hall", "Fee"),
                f"<w:sdt><w:sdtContent>{cells('Mon')}</w:sdtContent></w:sdt>" + cells("A", "5"),
            ),
            "Mon, Hall: A, Fee: 5", "",
        ),
        (
            grid(cells("Hall", "Open"), cells("Pool") + f"<w:tc>{grid(cells('Mon', '8 to 12'))}{par()}</w:tc>"),
            "8 to 12", "Mon8",
        ),
    ],
)  # fmt: skip
def test_text_that_word_shows_is_extracted(body: str, wanted: str, unwanted: str) -> None:
    check("a.docx", docx(body), (wanted,), (unwanted,) if unwanted else ())


def test_a_merged_cell_of_word_is_written_once() -> None:
    wide = f'<w:tc><w:tcPr><w:gridSpan w:val="2"/></w:tcPr>{par(run("on request"))}</w:tc>'
    found = check(
        "a.docx", docx(grid(cells("Plan", "Price", "Help"), cells("Gold") + wide)), ("Gold, Price: on request",)
    )
    assert found.text.count("on request") == 1


def test_the_title_of_an_office_file() -> None:
    core = '<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>Yearbook</dc:title></c>'
    heading = '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Fish</w:t></w:r></w:p>'
    assert check("pond.docx", docx(par(run("Deep.")))[:], ("Deep.",)).title == "pond"
    assert check("pond.docx", docx(heading + par(run("Deep."))), ("Fish\n\nDeep.",)).title == "Fish"
    assert check("pond.docx", docx(heading, {"docProps/core.xml": core}), ("Fish",)).title == "Yearbook"


@pytest.mark.parametrize(
    ("body", "wanted", "unwanted"),
    [
        (
            odt_table(
                odt_row("Plan", "Price", "Help"),
                odt_row("Lite", "4", "mail", first='table:number-rows-spanned="2"'),
                odt_row("7", "call", before="<table:covered-table-cell/>"),
            ),
            ("Lite, Price: 4, Help: mail", "Lite, Price: 7, Help: call"), (),
        ),
        (
            odt_table(
                odt_row("Day", "am", "pm", "late"), odt_row("Sat"),
                odt_row("no", "no", first='table:number-columns-repeated="3"'),
            ),
            ("no, am: no, pm: no, late: no",), (),
        ),
        ("<text:table-of-content><text:p>Fees 7</text:p></text:table-of-content><text:p>Ten.</text:p>",
         ("Ten.",), ("Fees 7",)),
        (f"<text:p><draw:frame><draw:text-box>{odt_par('One.')}{odt_par('Two.')}</draw:text-box></draw:frame></text:p>",
         ("One.", "Two."), ("One.Two",)),
        ("<text:p>Ask<text:note><text:note-citation>1</text:note-citation><text:note-body>"
         f"{odt_par('At the desk.')}</text:note-body></text:note> us.</text:p>",
         ("Ask us.", "At the desk."), ("Ask1", "1At")),
    ],
)  # fmt: skip
def test_text_that_writer_shows_is_extracted(body: str, wanted: tuple[str, ...], unwanted: tuple[str, ...]) -> None:
    check("a.odt", odt(body), wanted, unwanted)


GRID = """
+-------+---------------+
| Plan  | Price         |
|       +-------+-------+
|       | week  | month |
+=======+=======+=======+
| Lite  | 4     | 11    |
|       +-------+-------+
|       | 5     | 13    |
+-------+-------+-------+
"""


def test_cells_stay_under_their_headers() -> None:
    check("a.rst", GRID, ("Lite, Price week: 4, Price month: 11", "Lite, Price week: 5, Price month: 13"))
    head = "<tr><th>Plan</th><th colspan=2>Price</th></tr>"
    check("a.html", page(f"<table>{head}<tr><td rowspan=2>Lite<td>4<td>a week</tr><tr><td>11<td>a month</tr></table>"),
          ("Lite, Price: 4, a week", "Lite, Price: 11, a month"))  # fmt: skip
    check("a.html", page("<table><tr><th>A<th>B<th>C</tr><tr><td>x<td colspan=2>y</tr></table>"), ("x, B: y",))
    inner = "<table><tr><th>Hall<th>Open</tr><tr><td>Pool<td>daily<table><tr><td>Mon<td>8</tr></table></tr></table>"
    found = check("a.html", page(inner), ("Pool, Open: daily", "Mon, 8"))
    assert found.text.count("Mon") == 1


@pytest.mark.parametrize("name", ["a.html", "a.md", "a.rst"])
def test_powers_and_indices(name: str) -> None:
    body = (
        "It has 10<sup>9</sup> H<sub>2</sub>O per m<sup>-3</sup>, the 3<sup>rd</sup> kind.<sup><a href='#f'>1</a></sup>"
    )
    if name == "a.rst":
        body = "It has 10\\ :sup:`9` H\\ :sub:`2`\\ O per m\\ :sup:`-3`, the 3\\ :sup:`rd` kind. [#]_\n\n.. [#] Note."
    check(
        name,
        page(f"<p>{body}</p>") if name == "a.html" else body,
        ("10⁹ H2O per m⁻³, the 3rd kind.",),
        ("109", "kind.1"),
    )


@pytest.mark.parametrize(
    "mark",
    ['class="share-price"', 'class="menu-of-the-day"', 'id="related"', 'class="parking lot"', 'class="footer-text"'],
)
def test_a_name_that_only_contains_a_word_of_menus_is_content(mark: str) -> None:
    words = "The soup is free for everyone who arrives before noon on a Sunday."
    check("a.html", page(f"<div {mark}><p>{words}</p></div><p>End.</p>"), (words, "End."))
    links = "".join(f'<a href="/{n}">Part {n}</a> ' for n in range(3))
    check("a.html", page(f"<div {mark}>{links}</div><p>End.</p>"), ("End.",), ("Part 1",))


def test_a_page_is_reported_if_most_of_it_is_left_out() -> None:
    nav = "<nav>" + "".join(f'<a href="/{n}">Chapter {n} of it</a>' for n in range(50)) + "</nav>"
    assert "left out as navigation" in check("a.html", page(f"{nav}<p>Short.</p>"), ("Short.",)).remarks[0]


@pytest.mark.parametrize(
    ("head", "title", "metadata"),
    [
        ("title: >\n  House\n  rules\ntags: [a, b]\n", "House rules", {"tags": ["a", "b"]}),
        ("title: May\ndate: 2024-05-01\n", "May", {"date": "2024-05-01"}),
        ('title: "Quay" # old\nurl: /quay\n_source: {}\n', "Quay", {"url": "/quay"}),
        ('title: "The \\"Crow\\" inn"\n', 'The "Crow" inn', {}),
        ("title: 2024\ndraft: false\n", "2024", {"draft": False}),
    ],
)  # fmt: skip
def test_front_matter_is_metadata(head: str, title: str, metadata: dict[str, object]) -> None:
    found = check("a.md", f"---\n{head}---\n\n# Other\n\nWords.\n", ("Other\n\nWords.",), ("---", "title"))
    assert (found.title, found.metadata) == (title, metadata)


def test_other_fences_of_front_matter() -> None:
    found = check("a.md", '+++\ntitle = "Docks"\nweight = 3\n+++\n\nLong.\n', ("Long.",), ("+++",))
    assert (found.title, found.metadata) == ("Docks", {"weight": 3})
    check("a.md", "---\n\nIt leaves at six. Note: be early.\n\n---\n\nClosed.\n", ("It leaves at six.", "Closed."))
    check("a.md", "---\nIt leaves at six.\n---\n\nClosed.\n", ("It leaves at six.", "Closed."))
    bomb = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]\n" for n in range(9))
    assert len(str(check("a.md", f"---\n{bomb}---\n\nSafe.\n", ("Safe.",)).metadata)) < 20_000


def test_the_marks_of_github_are_words() -> None:
    text = "# T\n\n## One\n\nFee.[^a]\n\n[^a]: Half for children.\n\n> [!WARNING]\n> Bring it.\n\n## Two\n\nEnd.\n"
    found = check("a.md", text, ("Fee.", "Half for children.", "Warning: Bring it."), ("[^a]", "[!WARNING]"))
    assert path_of(found, "Half") == ("One",)


def test_conditions_and_options_of_sphinx() -> None:
    check("a.rst", ".. only:: html or man\n\n   Seen.\n", ("Seen.",), ("html or man",))
    check(
        "a.rst",
        ".. confval:: ttl\n   :type: ``int``\n   :default: ``45``\n\n   Age.\n",
        ("ttl: Type: int", "Default: 45", "Age."),
    )
    check("a.rst", ".. py:data:: TOP\n   :value: 512\n", ("TOP: Value: 512",))


def test_macros_of_manual_pages() -> None:
    head = ".TH CROW 7\n.SH NAME\ncrow \\- caws\n.SH SEE\nSee\n.MR caw 3 ,\nor\n.MR crowd 8 .\n"
    check("crow.7", head, ("See caw(3), or crowd(8).",))
    body = ".Dd 1\n.Dt PULL 3\n.Sh NAME\n.Nm pull\n.Nd draw\n.Sh SYNOPSIS\n.Fo pull\n.Fa int n\n.Fa char *s\n.Fc\n"
    body += ".Sh R\n.Rv -std pull\n.Sh S\nAs in\n.St -p1003.1-2004 .\n.St -isoC-99\n"
    check("pull.3", body, ("pull(int n, char *s)", "The pull() function returns the value 0 if successful;",
                           'IEEE Std 1003.1-2004 ("POSIX.1").', '("ISO C99")'), ("-std", "-p1003", "Fc"))  # fmt: skip


def test_text_for_a_terminal() -> None:
    check("a.txt", "Read t\bth\bhe\be _\bl_\bo_\bg now.\n", ("Read the log now.",))
    check("a.txt", "A \x1b[1;31mred\x1b[0m \x1b]8;;http://e.example\x07link\x1b]8;;\x07 here.\n", ("A red link here.",))
    check("a.txt", "The \u2068name\u2069 of it.\n", ("The name of it.",))


def test_hyphens_at_the_ends_of_lines() -> None:
    text = (
        "It was written by a long line of people in ISO-\n8859 and by a Franco-\nPrussian club, state-of-the-\nart.\n"
    )
    check("a.txt", text, ("ISO-8859", "Franco-Prussian", "state-of-the-art"))
