"""Random documents in each format: every word is extracted once, in order, under its heading."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_cluster.sources.extract import extract
from tests.unit.sources.test_lossless import cells, docx, grid, odt, odt_par, odt_row, odt_table, par, run


@dataclass(frozen=True)
class Block:
    """A heading with its level, a paragraph, a list with its items, or a table: a row of headers and one of values."""

    kind: str
    texts: tuple[str, ...]
    level: int = 0


@st.composite
def documents(draw: st.DrawFn) -> list[Block]:
    """The blocks of a document that starts with a heading of level 1; its words are different."""
    count = itertools.count()

    def words() -> str:
        return " ".join(f"Word{next(count)}x" for _ in range(draw(st.integers(1, 4))))

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


def joined(made: Callable[[Block], str]) -> Callable[[list[Block]], bytes]:
    return lambda blocks: "\n\n".join(map(made, blocks)).encode() + b"\n"


FORMATS: dict[str, Callable[[list[Block]], bytes]] = {
    "a.html": joined(html_of),
    "a.md": joined(markdown_of),
    "a.rst": joined(rst_of),
    "a.docx": lambda blocks: docx("".join(map(docx_of, blocks))),
    "a.odt": lambda blocks: odt("".join(map(odt_of, blocks))),
}


def expected(blocks: list[Block]) -> list[str]:
    """The texts in the order of the extracted document: a table names its cells by their columns, but the first."""
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
    found = extract(FORMATS[name](blocks), name)[1]
    assert re.findall(r"Word\d+x", found.text) == " ".join(expected(blocks)).split()
    # the first heading of a page is its title and heads no section
    is_page = name not in ("a.docx", "a.odt")
    path: list[tuple[int, str]] = []
    for number, block in enumerate(blocks):
        if block.kind == "heading":
            path = [above for above in path if above[0] < block.level]
            path += [(block.level, block.texts[0])] if number or not is_page else []
        last = block.texts[-1]
        at = found.text.index(last)
        section = next((part.path for part in found.sections if part.start <= at < part.end), ())
        assert section == tuple(text for _, text in path), last
