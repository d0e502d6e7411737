"""Random documents in each format: every word is extracted once, in order, under its heading."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from email.message import EmailMessage

import openpyxl
import pptx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.sources.extract import extract
from tests.unit.sources.pdf_writer import PdfWriter
from tests.unit.sources.test_composite import epub, notebook
from tests.unit.sources.test_lossless import cells, docx, grid, odt, odt_par, odt_row, odt_table, par, path_of, run


@dataclass(frozen=True)
class Block:
    """A heading with its level, a paragraph, a list of items, or a table: a row of headers and a row of values."""

    kind: str
    texts: tuple[str, ...]
    level: int = 0


@st.composite
def documents(draw: st.DrawFn) -> list[Block]:
    """The blocks of a document that starts with a heading of level 1. No word occurs twice."""
    count = itertools.count()

    def words() -> str:
        return " ".join(f"Word{next(count)}x" for _ in range(draw(st.integers(1, 3))))

    blocks, level = [Block("heading", (words(),), 1)], 1
    for kind in draw(st.lists(st.sampled_from(["heading", "paragraph", "list", "table"]), max_size=12)):
        if kind == "heading":
            level = draw(st.integers(2, min(level + 1, 5)))
            blocks.append(Block(kind, (words(),), level))
        elif kind == "paragraph":
            blocks.append(Block(kind, (words(),)))
        elif kind == "list" and blocks[-1].kind != "list":
            blocks.append(Block(kind, tuple(words() for _ in range(draw(st.integers(1, 4))))))
        elif kind == "table":
            blocks.append(Block(kind, tuple(words() for _ in range(2 * draw(st.integers(2, 4))))))
    blocks.append(Block("paragraph", (words(),)))
    return blocks


def halves(texts: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    return texts[: len(texts) // 2], texts[len(texts) // 2 :]


def html_of(block: Block) -> str:
    if block.kind == "heading":
        return f"<h{block.level}>{block.texts[0]}</h{block.level}>"
    if block.kind == "paragraph":
        return f"<p>{block.texts[0]}</p>"
    if block.kind == "list":
        return f"<ul>{''.join(f'<li>{text}</li>' for text in block.texts)}</ul>"
    head, row = halves(block.texts)
    made = "".join(f"<th>{text}</th>" for text in head), "".join(f"<td>{text}</td>" for text in row)
    return f"<table><tr>{made[0]}</tr><tr>{made[1]}</tr></table>"


def markdown_of(block: Block) -> str:
    if block.kind == "heading":
        return f"{'#' * block.level} {block.texts[0]}"
    if block.kind == "list":
        return "\n".join(f"- {text}" for text in block.texts)
    if block.kind == "table":
        head, row = halves(block.texts)
        lines = (head, ["---"] * len(head), row)
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return block.texts[0]


def rst_of(block: Block) -> str:
    if block.kind == "heading":
        return f"{block.texts[0]}\n{'=-~^+'[block.level - 1] * len(block.texts[0])}"
    if block.kind == "table":
        head, row = ("".join(f"\n{' -' if number else '* -'} {text}".replace("\n -", "\n  -")
                             for number, text in enumerate(texts)) for texts in halves(block.texts))  # fmt: skip
        return ".. list-table::\n   :header-rows: 1\n" + f"{head}{row}".replace("\n", "\n   ")
    return markdown_of(block)


def docx_of(block: Block) -> str:
    if block.kind == "table":
        return grid(*(cells(*texts) for texts in halves(block.texts)))
    style = f'<w:pPr><w:pStyle w:val="Heading{block.level}"/></w:pPr>' if block.level else ""
    return "".join(par(style, run(text)) for text in block.texts)


def odt_of(block: Block) -> str:
    if block.kind == "heading":
        return f'<text:h text:outline-level="{block.level}">{block.texts[0]}</text:h>'
    if block.kind == "list":
        items = "".join(f"<text:list-item>{odt_par(text)}</text:list-item>" for text in block.texts)
        return f"<text:list>{items}</text:list>"
    if block.kind == "table":
        return odt_table(*(odt_row(*texts) for texts in halves(block.texts)))
    return odt_par(block.texts[0])


def pdf_of(blocks: list[Block], *, bookmarks: bool) -> bytes:
    """A PDF file of the blocks. Only positions and fonts show the kinds of the blocks.

    Long paragraphs at the end make the body font the most frequent font, as in usual files.
    """
    pdf = PdfWriter()
    for block in blocks:
        if block.kind == "heading":
            pdf.heading(block.texts[0], 22 - 2 * block.level, block.level if bookmarks else 0)
        elif block.kind == "paragraph":
            pdf.paragraph(block.texts[0], gap=10)
        elif block.kind == "list":
            for number, text in enumerate(block.texts):
                pdf.line(f"\u2022 {text}", x=80, gap=2 if number else 10)
        else:
            if pdf.y < 150:
                pdf.page()
            for number, texts in enumerate(halves(block.texts)):
                pdf.y -= 16
                for place, text in enumerate(texts):
                    pdf.text(72 + 135 * place, pdf.y, text, "F1" if number else "F2", 6)
    for _ in range(4):
        pdf.paragraph("the boats of the harbour lie at the quay until the evening and leave it in the morning. " * 4)
    return pdf.written()


def joined(made: Callable[[Block], str]) -> Callable[[list[Block]], bytes]:
    return lambda blocks: "\n\n".join(map(made, blocks)).encode() + b"\n"


def sections(blocks: list[Block]) -> list[list[Block]]:
    """Each heading with the blocks below it."""
    found: list[list[Block]] = []
    for block in blocks:
        if block.kind == "heading":
            found.append([])
        found[-1].append(block)
    return found


def epub_of(blocks: list[Block]) -> bytes:
    return epub({f"{number}.xhtml": "".join(map(html_of, part)) for number, part in enumerate(sections(blocks))})


def eml_of(blocks: list[Block]) -> bytes:
    message = EmailMessage()
    message["Subject"] = "Letter"
    message.set_content("".join(map(html_of, blocks)), subtype="html")
    return bytes(message)


def pptx_of(blocks: list[Block]) -> bytes:
    deck = pptx.Presentation()
    for heading, *below in sections(blocks):
        slide = deck.slides.add_slide(deck.slide_layouts[5])
        slide.shapes.title.text = heading.texts[0]
        for block in below:
            if block.kind == "table":
                head, row = halves(block.texts)
                table = slide.shapes.add_table(2, len(head), 0, 0, 9, 9).table
                for column, texts in enumerate(zip(head, row, strict=True)):
                    table.cell(0, column).text, table.cell(1, column).text = texts
            else:
                slide.shapes.add_textbox(0, 0, 9, 9).text_frame.text = "\n".join(block.texts)
    deck.save(written := io.BytesIO())
    return written.getvalue()


def xlsx_of(blocks: list[Block]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for heading, *below in sections(blocks):
        sheet = book.create_sheet(heading.texts[0])
        for block in below:
            for texts in halves(block.texts) if block.kind == "table" else [[text] for text in block.texts]:
                sheet.append(texts)
            sheet.append([])
    book.save(written := io.BytesIO())
    return written.getvalue()


FORMATS: dict[str, Callable[[list[Block]], bytes]] = {
    "a.html": joined(html_of),
    "a.md": joined(markdown_of),
    "a.rst": joined(rst_of),
    "a.docx": lambda blocks: docx("".join(map(docx_of, blocks))),
    "a.pdf": lambda blocks: pdf_of(blocks, bookmarks=False),
    "bookmarks.pdf": lambda blocks: pdf_of(blocks, bookmarks=True),
    "a.odt": lambda blocks: odt("".join(map(odt_of, blocks))),
    "a.epub": epub_of,
    "a.ipynb": lambda blocks: notebook(*({"cell_type": "markdown", "source": markdown_of(block)} for block in blocks)),
    "a.eml": eml_of,
    "a.pptx": pptx_of,
    "a.xlsx": xlsx_of,
}
# Formats without levels of headings. An empty sheet is left out.
FLAT = ("a.pptx", "a.xlsx")
# The first heading of a page is its title and heads no section.
PAGES = ("a.html", "a.md", "a.rst", "a.ipynb")


def expected(blocks: list[Block]) -> list[str]:
    """The texts in extracted order. In tables, each cell except the first follows the name of its column."""
    found: list[str] = []
    for block in blocks:
        if block.kind == "table":
            head, row = halves(block.texts)
            found.append(row[0])
            found += itertools.chain.from_iterable(zip(head[1:], row[1:], strict=True))
        else:
            found += block.texts
    return found


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(blocks=documents())
def test_every_word_once_in_order_under_its_heading(name: str, blocks: list[Block]) -> None:
    if name in FLAT:
        blocks = [
            replace(block, level=1) if block.level else block for part in sections(blocks) if part[1:] for block in part
        ]
    found = extract(FORMATS[name](blocks), name)[1]
    assert re.findall(r"Word\d+x", found.text) == " ".join(expected(blocks)).split()
    is_page = name in PAGES
    if name.endswith(".pdf"):  # the largest heading is the title only if no other heading has its size
        is_page = [block.level for block in blocks].count(1) == 1 and path_of(found, blocks[0].texts[0]) == ()
    path: list[tuple[int, str]] = []
    for number, block in enumerate(blocks):
        if block.kind == "heading":
            path = [above for above in path if above[0] < block.level]
            path += [(block.level, block.texts[0])] if number or not is_page else []
        last = block.texts[-1]
        section = path_of(found, last)
        assert section == tuple(text for _, text in path), last
