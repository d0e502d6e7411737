"""The output of `qa-cluster search`."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from qa_cluster.cluster.commands.search import pieces, show
from qa_cluster.cluster.terminal import console
from qa_cluster.types import Hit, Index, Passage, SearchResult, SearchTimings, Span

HIT = Hit(1, 12.3456, "a[b]", "v", "a[b]:1", "Ti\x1btle", "Ada\nwrote [bold]\\", 10, 27, (Span(10, 13), Span(14, 19)))
ROUND = Passage("Hm. Ada\nwrote [bold]\\ End.", 6, 32)


def result(*hits: Hit) -> SearchResult:
    return SearchResult("id", 0, "q", ("q",), hits, 7, Index("v", 3, 3), SearchTimings(0.5, 0.25, 1.0))


def printed(
    monkeypatch: pytest.MonkeyPatch, what: SearchResult, *, terminal: bool = False, filtered: bool = False
) -> str:
    out = Console(
        file=io.StringIO(),
        highlight=False,
        width=40,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
    )
    monkeypatch.setattr(console, "out", out)
    show(what, filtered=filtered)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_output_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, result(HIT), terminal=False) == (
        "1. a[b], Ti\\x1btle (10-27, score 12.35)\n   Ada wrote [bold]\\\n1 of 7 sentences, 1.0 ms\n"
    )


def test_on_a_terminal_matched_words_are_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = printed(monkeypatch, result(HIT), terminal=True)
    assert "   \x1b[1mAda\x1b[0m \x1b[1mwrote\x1b[0m [bold]\\" in shown


def test_a_search_without_hits_prints_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no sentence in the documents" in printed(monkeypatch, result())
    assert "no sentence in the chosen documents" in printed(monkeypatch, result(), filtered=True)
    assert "too common or too short" in printed(monkeypatch, replace(result(), terms=()))


@pytest.mark.parametrize("passage", [None, ROUND])
def test_the_matching_words_are_taken_from_the_sentence(passage: Passage | None) -> None:
    hit = Hit(1, 1.0, "a", "v", "a:1", "", HIT.text, 10, 27, HIT.highlights, passage)
    cut = list(pieces(hit))
    assert "".join(text for text, _ in cut) == (passage.text if passage else hit.text).replace("\n", " ")
    assert [text for text, marked in cut if marked] == ["Ada", "wrote"]
