"""The README is short, has its sections in order, and agrees with other files of the checkout."""

from __future__ import annotations

import re

import pytest

from tests.docs.badges import FOLDER, facts, picture
from tests.docs.blocks import ROOT
from tests.docs.picture import MOST_BYTES, PICTURE

README = (ROOT / "README.md").read_text()
MOST_LINES, WIDEST = 150, 120
ORDER = [
    "Who it is for",
    "60 seconds",
    "How it works",
    "Five things to do",
    "Measured",
    "Six limits that matter most",
    "Where everything else is",
]


def part(heading: str) -> str:
    return README.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_the_readme_is_short_and_in_order() -> None:
    lines = README.splitlines()
    assert len(lines) <= MOST_LINES
    assert [line for line in lines if len(line) > WIDEST] == []
    assert re.findall(r"^## (.+)$", README, re.MULTILINE) == ORDER


def test_the_tests_are_run_directly_after_the_demo() -> None:
    commands = re.findall(r"^\$ (.+)$", part("60 seconds"), re.MULTILINE)
    assert commands == ["make demo ARGS=--once", "make test"]


def test_the_headings_with_numbers_count_their_items() -> None:
    things = re.findall(r"^\*\*(\d)\. .*?```console\n(.*?)```", part("Five things to do"), re.MULTILINE | re.DOTALL)
    assert [number for number, _ in things] == ["1", "2", "3", "4", "5"]
    assert all(block.count("\n") <= 5 for _, block in things)
    assert len(re.findall(r"^- ", part("Six limits that matter most"), re.MULTILINE)) == 6


def test_figures_are_those_of_the_measurements() -> None:
    figures = re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*", "".join(re.findall(r"^\|.*", part("Measured"), re.MULTILINE)))
    measured = (ROOT / "docs" / "measurements.md").read_text()
    known = set(re.findall(r"(?<![\w.])\d+(?:[.,]\d+)*", measured))
    assert len(figures) > 8
    assert set(figures) - known == set()


def test_badges_are_true() -> None:
    shown = re.findall(r"!\[([^\]]+)\]\(docs/badges/([a-z.]+)\)", README)
    assert {file for _, file in shown} == set(facts()) == {path.name for path in FOLDER.iterdir()}
    for text, file in shown:
        name, fact = facts()[file]
        assert fact in text
        assert (FOLDER / file).read_text() == picture(name, fact), "run `make picture`"


def test_the_picture_is_small() -> None:
    assert f"({PICTURE.relative_to(ROOT)})" in README
    content = PICTURE.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) <= MOST_BYTES


def test_the_contents_page_names_every_document_once() -> None:
    contents = (ROOT / "docs" / "README.md").read_text()
    linked = re.findall(r"\]\(((?:(?:design|integrations)/)?[a-z_-]+\.md)\)", contents)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert sorted(linked) == sorted(pages)
    assert "](docs/README.md)" in README


@pytest.mark.parametrize("elsewhere", ["img.shields.io", "badge.fury", "github.com/", "pypi.org"])
def test_the_readme_loads_nothing_from_other_hosts(elsewhere: str) -> None:
    assert elsewhere not in README
