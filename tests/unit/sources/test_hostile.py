"""Files whose reading takes far more time or memory than their size suggests."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from qa_cluster.errors import InvalidInput, RequestError
from qa_cluster.sources.extract import extract
from qa_cluster.sources.process.budget import MAX_HITS, MIB, Budget
from qa_cluster.sources.process.extractor import Extractor
from tests.harness.figures import Figures
from tests.unit.documents.test_corpus import read_skipping
from tests.unit.sources.pdf_writer import file_of
from tests.unit.sources.test_lossless import odt_of

pytestmark = pytest.mark.hostile

# For each unmatched mark, docutils searches the rest of the paragraph, which takes quadratic time.
UNMATCHED = b"*a " * 30_000


def links_in_deep_elements() -> bytes:
    return b"<div>" * 240 + b"<a href=x>y</a> " * 60_000 + b"</div>" * 240


def removed_elements() -> bytes:
    return b"<p>" + b"<script></script> words" * 60_000


def deep_boilerplate() -> bytes:
    return b"<div class=menu><h1>x</h1>" * 120 + b"<p>words</p>" * 20_000


def layout_tables() -> bytes:
    return b"<table><tr><td>words<td>" * 60 + b"<p>words</p>" * 20_000


def tables_in_a_cell() -> bytes:
    return b"<table><tr><th>A<th>B</tr><tr><td>x<td>" + b"<table><tr><td>y</table>z " * 60_000 + b"</table>"


def cells_in_a_row() -> bytes:
    return b"<table><tr><th>A<th>B</tr><tr>" + b"<td>y" * 60_000 + b"</table>"


def rows_of_headers() -> bytes:
    return b"<table>" + b"<tr><th>y<th>z</tr>" * 60_000 + b"</table>"


def substitutions(*, levels: int = 14) -> bytes:
    doubled = [f".. |a{level}| replace:: |a{level + 1}| |a{level + 1}|" for level in range(levels)]
    return "\n".join([*doubled, f".. |a{levels}| replace:: x", "", "|a0|", ""]).encode()


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        (links_in_deep_elements, "a.html"),
        (removed_elements, "a.html"),
        (deep_boilerplate, "a.html"),
        (layout_tables, "a.html"),
        (tables_in_a_cell, "a.html"),
        (cells_in_a_row, "a.html"),
        (rows_of_headers, "a.html"),
        (substitutions, "a.rst"),
    ],
)
def test_time_is_linear(figures: Figures, attack: Callable[[], bytes], name: str) -> None:
    data = attack()
    with figures.measured(f"{attack.__name__} ({len(data):,} bytes, {name})".replace("_", " "), limit_seconds=4.0):
        try:
            extract(data, name)
        except RequestError as error:
            assert "contains no text" in str(error) or "expand to more than" in str(error)


def nested_quotes() -> bytes:
    return "\n\n".join(" " * level + "a" for level in range(2000)).encode()


def nested_lists() -> bytes:
    return b"- " * 1_000_000 + b"words\n"


def wide_grid() -> bytes:
    line, row = "+" + "---+" * 2000, "|" + "a  |" * 2000
    return "\n".join([*[line, row] * 30, line, ""]).encode()


def wide_simple_table() -> bytes:
    line = " ".join(["=="] * 20_000)
    return "\n".join([line, " ".join(["a "] * 20_000), line, ""]).encode()


@pytest.mark.parametrize("attack", [nested_quotes, nested_lists, wide_grid, wide_simple_table])
def test_deep_and_wide_rst_is_refused_before_docutils_reads_it(figures: Figures, attack: Callable[[], bytes]) -> None:
    data = attack()
    name = f"{attack.__name__} ({len(data):,} bytes, a.rst)".replace("_", " ")
    with (
        figures.measured(name, limit_seconds=2.0),
        pytest.raises(RequestError, match=r"nested in more than 100 levels|columns, the limit is 500"),
    ):
        extract(data, "a.rst")


def test_usual_nesting_and_tables_stay() -> None:
    levels = "\n\n".join("  " * level + f"- item {level}" for level in range(12))
    table = "+---+---+\n| a | b |\n+===+===+\n| c | d |\n+---+---+\n"
    text = extract(f"Title\n=====\n\n{levels}\n\n{table}".encode(), "a.rst")[1].text
    assert "item 11" in text and "d" in text


def test_the_start_of_the_process_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need more time to start the process than the limit for a file."""
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 1\nexec {sys.executable} "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    with Extractor(budget=Budget(wall_seconds=0.9)) as extractor:
        assert extractor.extract(b"Cats purr.", "a.txt")[1].text == "Cats purr."


def test_a_process_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Extractor() as extractor, pytest.raises(InvalidInput, match="did not start"):
        extractor.extract(b"Cats purr.", "a.txt")


def test_a_slow_format_gets_less_elapsed_time() -> None:
    """A limit of elapsed time ends a process that waits. After three slow files, the limit is a tenth."""
    data = b"*a " * 300_000
    with Extractor(forced="rst", budget=Budget(seconds=100.0, wall_seconds=1.0)) as extractor:
        messages: list[str] = []
        # the short limit counts once the process has named the format, which takes longer than 0.1 s on a busy machine
        while len(messages) < MAX_HITS + 20 and "within 0.1 s" not in str(messages[MAX_HITS:]):
            with pytest.raises(InvalidInput, match="did not end within") as caught:
                extractor.extract(data, "a.rst")
            messages.append(str(caught.value))
    assert all("did not end within 1 s" in message for message in messages[:MAX_HITS])
    assert "did not end within 0.1 s" in messages[-1]


def test_few_substitutions_stay() -> None:
    assert extract(substitutions(levels=3), "a.rst")[1].text == " ".join("x" * 8)
    circle = b".. |a| replace:: |b|\n.. |b| replace:: |a|\n\nSome text, |a|.\n"
    assert "Some text" in extract(circle, "a.rst")[1].text


def laughs(element: str) -> str:
    entities = "".join(f'<!ENTITY a{level} "{f"&a{level + 1};" * 10}">' for level in range(9))
    return f'<?xml version="1.0"?><!DOCTYPE {element} [{entities}<!ENTITY a9 "ha">]>'


def laughing_odt() -> bytes:
    office = "urn:oasis:names:tc:opendocument:xmlns"
    return odt_of(
        f'{laughs("c")}<c xmlns:o="{office}:office:1.0" xmlns:text="{office}:text:1.0">'
        "<o:body><o:text><text:p>&a0;</text:p></o:text></o:body></c>"
    )


def laughing_html() -> bytes:
    return f"{laughs('html')}<html><body><p>&a0;</p></body></html>".encode()


def unpacked_odt() -> bytes:
    return odt_of(b"<c>" + b" " * (255 << 20) + b"</c>")


def pdf_with_a_large_stream() -> bytes:
    body = zlib.compress(b"BT /F1 12 Tf " + b"(words) Tj " * 4_000_000, 1)
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        b" /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(body), body),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    return file_of(objects)


@pytest.mark.parametrize(
    ("attack", "name"),
    [
        (laughing_odt, "a.odt"),
        (laughing_html, "a.html"),
        (unpacked_odt, "a.odt"),
        (pdf_with_a_large_stream, "a.pdf"),
    ],
)
def test_only_the_file_that_unpacks_to_too_much_fails(figures: Figures, attack: Callable[[], bytes], name: str) -> None:
    data = attack()
    budget = Budget(mib=200, mib_per_mib=0)
    with (
        figures.measured(f"{attack.__name__} ({len(data):,} bytes)".replace("_", " "), limit_seconds=10.0),
        Extractor(budget=budget) as extractor,
    ):
        try:
            assert "hahaha" not in extractor.extract(data, name)[1].text
        except RequestError as error:
            assert str(error)
        assert extractor.extract(b"words", "b.txt")[1].text == "words"


def test_a_limit_is_named_with_what_to_do() -> None:
    budget = Budget(seconds=0.5, most_seconds=0.5)
    with Extractor(budget=budget) as extractor, pytest.raises(InvalidInput) as caught:
        extractor.extract(UNMATCHED, "a.rst")
    assert str(caught.value) == (
        "reading it as rst took too much processor time; the limits for its 90000 bytes are 0.5 s of processor time and"
        " 522 MiB: split it or convert it to plain text"
    )


def test_after_three_files_a_format_has_a_tenth_of_the_time() -> None:
    with Extractor(budget=Budget(seconds=0.5, most_seconds=0.5)) as extractor:
        messages = []
        for _ in range(MAX_HITS + 1):
            with pytest.raises(InvalidInput) as caught:
                extractor.extract(UNMATCHED, "a.rst")
            messages.append(str(caught.value))
        assert all("split it" in message for message in messages[:MAX_HITS])
        assert "the limits are 0.05 s of processor time and 522 MiB, 10% of the usual time" in messages[MAX_HITS]
        assert "in a run of its own" in messages[MAX_HITS]
        # a tenth of the time is enough for this file, and other formats still have all of it
        assert extractor.extract(b"Some words.", "b.rst")[1].text == "Some words."
        assert extractor.extract(b"<p>" + b"words " * 200_000, "b.html")[1].text.startswith("words words")


def test_a_folder_of_bad_files_cannot_multiply_the_limits(tmp_path: Path, figures: Figures) -> None:
    slow = 10
    for number in range(20 * slow):
        kind = number % 20
        name, data = [
            ("rst", UNMATCHED),
            ("html", b"<div>\0"),
            ("odt", b"PK\x03\x04"),
            ("pdf", b"%PDF-"),
            ("txt", b"\0" * 100),
        ][0 if kind == 0 else 1 + kind % 4]
        (tmp_path / f"{number}.{name}").write_bytes(data)
    (tmp_path / "z.txt").write_text("A good one.")
    budget = Budget(seconds=1.0, seconds_per_mib=0.0, most_seconds=1.0)
    errors: list[RequestError] = []
    with figures.measured("folder of 200 bad files", limit_seconds=10.0), Extractor(budget=budget) as extractor:
        found = list(read_skipping([tmp_path], errors, extractor=extractor))
    assert [document.text for document in found] == ["A good one."]
    assert len(errors) == 20 * slow
    too_slow = [str(error) for error in errors if "too much processor time" in str(error)]
    assert len(too_slow) == slow
    assert sum("10% of the usual time" in error for error in too_slow) == slow - MAX_HITS


def test_a_process_whose_memory_has_grown_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with Extractor() as extractor:
        extractor.extract(b"words", "a.txt")
        first = extractor._process
        monkeypatch.setattr("qa_cluster.sources.process.extractor.MAX_ADDRESS_SPACE", MIB)
        extractor.extract(b"words", "b.txt")
        assert first is not None and not Path(f"/proc/{first.pid}").exists()
        assert extractor.extract(b"words", "c.txt")[1].text == "words"
