"""Reads Jupyter notebooks (.ipynb): Markdown, code, and the text of outputs, as one HTML tree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from qa_cluster.errors import InvalidInput

from ..extracted import Extracted, clean
from ..front_matter import split_front_matter
from ..html import parsed, write
from ..html_content import content_of
from ..markdown import to_html
from .tree import add, new_body, place

MAX_CELLS = 20_000
# The limit of characters of one output. The rest of a longer output is left out.
MAX_OUTPUT = 4000


def read(source: str) -> Extracted:
    """Return the text of a notebook.

    The place of a paragraph (`Extracted.places`) is the number of its cell. The title comes from the front matter in
    the first cell; without a title there, from the first heading.
    """
    try:
        notebook = json.loads(source)
    except ValueError as error:
        raise InvalidInput(f"the notebook is not JSON: {error}"[:300]) from error
    cells = [*_cells(notebook)]
    if len(cells) > MAX_CELLS:
        raise InvalidInput(f"has {len(cells)} cells, the limit is {MAX_CELLS}: split it")
    metadata: dict[str, Any] = {}
    if cells and cells[0].get("cell_type") in ("raw", "markdown"):
        metadata, rest = split_front_matter(_joined(cells[0].get("source")) + "\n")
        cells[0] = {**cells[0], "source": rest}
    title = clean(str(metadata.pop("title", "")))
    body, left_out = new_body(), _LeftOut()
    for number, cell in enumerate(cells, 1):
        part = add(body, "section")
        _add_cell(part, cell, left_out)
        place(part, number)
    return write(body, "", unit="page").named(title, metadata).remarked(*left_out.remarks())


class _LeftOut:
    """Counts the parts of outputs that are left out."""

    def __init__(self) -> None:
        self.cut = 0
        self.errors = 0
        self.other = 0

    def remarks(self) -> list[str]:
        """Return texts that say what was left out."""
        found = {
            f"outputs were cut after {MAX_OUTPUT} characters": self.cut,
            "outputs without text, such as pictures, were left out": self.other,
            "outputs with errors were left out": self.errors,
        }
        return [f"{what}: {count}" for what, count in found.items() if count]


def _cells(notebook: Any) -> Iterator[dict[str, Any]]:
    """Yield the cells of a notebook of format 4, or of format 3, in which worksheets contain the cells."""
    if not isinstance(notebook, dict):
        raise InvalidInput("is not a notebook: it is not a JSON object")
    sheets = [notebook] if isinstance(notebook.get("cells"), list) else notebook.get("worksheets")
    if not isinstance(sheets, list):
        raise InvalidInput("is not a notebook: it has no list of cells")
    for sheet in sheets:
        for cell in sheet.get("cells") or () if isinstance(sheet, dict) else ():
            if isinstance(cell, dict):
                yield cell


def _joined(value: Any) -> str:
    """Return a text of a notebook, which is a string or a list of strings, as one string."""
    if isinstance(value, list):
        return "".join(part for part in value if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _add_cell(target: Any, cell: dict[str, Any], left_out: _LeftOut) -> None:
    kind, text = cell.get("cell_type"), _joined(cell.get("source", cell.get("input")))
    if kind == "code":
        add(target, "pre", text)
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else ():
            if isinstance(output, dict):
                _add_output(target, output, left_out)
    elif kind == "heading":  # of format 3
        level = cell.get("level")
        add(target, f"h{min(6, max(1, level)) if isinstance(level, int) else 1}", text)
    elif kind == "raw":
        for paragraph in text.split("\n\n"):
            add(target, "p", paragraph)
    else:
        _add_page(target, to_html(text))


def _add_page(target: Any, page: str) -> None:
    if page.strip():
        content = content_of(parsed(f"<html><body>{page}</body></html>")).element
        content.tag, content.tail = "div", None
        target.append(content)


def _add_output(target: Any, output: dict[str, Any], left_out: _LeftOut) -> None:
    """Add the text of an output.

    HTML with a table, and Markdown, keep their structure if they have at most `MAX_OUTPUT` characters. For any other
    output, its plain text is added as code, cut after `MAX_OUTPUT` characters. An output without plain text, and an
    error, are left out. `left_out` counts what is cut or left out.
    """
    if output.get("output_type") in ("error", "pyerr"):
        left_out.errors += 1
        return
    data = output.get("data")
    values = data if isinstance(data, dict) else {"text/plain": output.get("text")}
    for kind in ("text/html", "text/markdown", "text/plain"):
        text = _joined(values.get(kind)).strip()
        if not text or (kind == "text/html" and "<table" not in text):
            continue
        if kind != "text/plain" and len(text) <= MAX_OUTPUT:
            _add_page(target, text if kind == "text/html" else to_html(text))
            return
        if kind == "text/plain":
            left_out.cut += len(text) > MAX_OUTPUT
            add(target, "pre", text[:MAX_OUTPUT])
            return
    left_out.other += 1
