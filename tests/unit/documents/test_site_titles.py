"""The title of a page is the part that the titles of other pages of the site lack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qa_cluster.documents.corpus import read_documents
from qa_cluster.sources.process.extractor import Extractor

NAMES = ["Routers", "Transports", "Retry rules", "Access lists"]


@pytest.mark.parametrize(
    "page",
    [
        lambda name: f"<title>Harbour Mail</title><h1>Harbour Mail</h1><p>Hello.</p><h2>{name}</h2><p>Text.</p>",
        lambda name: f"<title>{name} - Harbour Mail</title><h1>Harbour Mail</h1><p>Text.</p>",
        lambda name: f"<title>Harbour Mail: {name}</title><p>Text.</p>",
        lambda name: f"<title>{name} \u2014 Harbour Mail 4.2 documentation</title><p>Text.</p>",
        lambda name: f"<title>{name} \u2014 Harbour Mail</title><h1>{name}</h1><p>Text.</p>",
    ],
)
def test_the_title_is_the_part_that_other_pages_lack(tmp_path: Path, page: Callable[[str], str]) -> None:
    for number, name in enumerate(NAMES):
        (tmp_path / f"{number}.html").write_text(page(name), encoding="utf-8")
    with Extractor() as extractor:
        assert [document.title for document in read_documents([tmp_path], extractor=extractor)] == NAMES


def test_titles_that_only_two_pages_share_stay(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.html").write_text("<title>Harbour: Mail</title><h2>Ropes</h2>", encoding="utf-8")
    (tmp_path / "a.md").write_text("# Harbour\n", encoding="utf-8")
    with Extractor() as extractor:
        titles = [document.title for document in read_documents([tmp_path], extractor=extractor)]
    assert titles == ["Ropes", "Ropes", "Harbour"]
