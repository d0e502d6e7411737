"""The addresses of pages, the metadata that all documents get, and names without `.gz`."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from qa_cluster.documents.addresses import PageAddresses
from qa_cluster.documents.corpus import read_from
from qa_cluster.documents.folder_reading import FolderReading
from qa_cluster.documents.source_map import url_of
from qa_cluster.errors import InvalidInput
from qa_cluster.ranking.filters import metadata_of
from qa_cluster.sources.process.extractor import Extractor
from qa_cluster.types import Document

BASE = "https://docs.example.org/"


@pytest.mark.parametrize(
    ("path", "format", "html", "dirhtml", "file"),
    [
        ("a.rst", "rst", "a.html", "a/", "a.rst"),
        ("a/b.md", "markdown", "a/b.html", "a/b/", "a/b.md"),
        ("a/index.rst", "rst", "a/", "a/", "a/index.rst"),
        ("index.md", "markdown", "", "", "index.md"),
        ("index.html", "html", "", "", "index.html"),
        ("a/index.html", "html", "a/", "a/", "a/index.html"),
        ("a/b.html", "html", "a/b.html", "a/b.html", "a/b.html"),
        ("a.txt", "text", "a.txt", "a.txt", "a.txt"),
        ("a.txt", "rst", "a.html", "a/", "a.txt"),
        ("tool.1.gz", "roff", "tool.1", "tool.1", "tool.1"),
        ("a b/ü?.md", "markdown", "a%20b/%C3%BC%3F.html", "a%20b/%C3%BC%3F/", "a%20b/%C3%BC%3F.md"),
        (os.fsdecode(b"\xe9.pdf"), "pdf", "%E9.pdf", "%E9.pdf", "%E9.pdf"),
        ("README", "markdown", "README", "README", "README"),
    ],
)
def test_the_address_of_a_page(path: str, format: str, html: str, dirhtml: str, file: str) -> None:
    for style, expected in (("html", html), ("dirhtml", dirhtml), ("file", file)):
        assert PageAddresses.below(BASE, style).of(path, format) == BASE + expected


def test_a_base_without_a_slash_is_a_folder() -> None:
    assert PageAddresses.below("http://a.example/x").of("b.md", "markdown") == "http://a.example/x/b.html"


@pytest.mark.parametrize(
    "base",
    ["docs.example.org", "/docs", "ftp://a.example/", "https://", "https://a/?q=1", "https://a/#x", "https://[/"],
)
def test_an_invalid_base_address_is_refused(base: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not the address of a folder"):
        PageAddresses.below(base)


def read(folder: Path, reading: FolderReading) -> dict[str, Document]:
    with Extractor() as extractor:
        found = read_from([folder], extractor=extractor, reading=reading)
        return {document.id: document for _, document in found}


def test_documents_get_the_address_of_their_page_and_metadata(tmp_path: Path) -> None:
    for name, text in {
        "a.md": "# A\n\nWords.",
        "own.md": "---\nurl: https://other.example/own\nlang: de\n---\n\n# Own\n\nWords.",
        "root.md": "---\nurl: /x/y/\n---\n\n# Root\n\nWords.",
        "number.md": "---\nurl: 5\n---\n\n# Number\n\nWords.",
        "guide/index.rst": "Guide\n=====\n\nWords.",
        "d.jsonl": json.dumps({"id": "j", "text": "Words.", "metadata": {"lang": "fr"}}),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tool.1.gz").write_bytes(gzip.compress(b".TH TOOL 1\n.SH NAME\ntool\n"))
    defaults = {"lang": "en", "year": 2024}
    found = read(tmp_path, FolderReading(addresses=PageAddresses.below(f"{BASE}x/"), metadata=defaults))
    assert {id: document.metadata.get("url") for id, document in found.items()} == {
        "a.md": f"{BASE}x/a.html",
        "own.md": "https://other.example/own",
        "root.md": f"{BASE}x/y/",
        "number.md": 5,
        "guide/index.rst": f"{BASE}x/guide/",
        "tool.1": f"{BASE}x/tool.1",
        "j": None,
    }
    assert url_of(found["number.md"].metadata) == ""
    assert {id: document.metadata["lang"] for id, document in found.items() if document.metadata["lang"] != "en"} == {
        "own.md": "de",
        "j": "fr",
    }
    assert all(document.metadata["year"] == 2024 for document in found.values())
    assert found["tool.1"].metadata["_source"]["file"] == "tool.1.gz"


def test_metadata_have_the_types_of_filters() -> None:
    given = ["year=2024", "public=true", "rate=0.5", 'version="10"', "tags=a, b", "lang=en", 'text="a, b=c"', "empty="]
    assert metadata_of(given) == {
        "year": 2024,
        "public": True,
        "rate": 0.5,
        "version": "10",
        "tags": ["a", "b"],
        "lang": "en",
        "text": "a, b=c",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["year"], "must look like year=2020"),
        (["=x"], "must look like"),
        (["_source=x"], "reserved"),
        (["a=1", "a=2"], "given twice"),
        (['a="x'], "unclosed quote"),
        (["x" * 256 + "=1"], "must look like"),
    ],
)
def test_invalid_metadata_are_refused(given: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        metadata_of(given)
