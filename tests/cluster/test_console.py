"""Tables, lines and questions on terminals of every width. The text of a document cannot break them."""

from __future__ import annotations

import json
from inspect import cleandoc
from io import StringIO

import pytest
import typer
from rich.console import Console
from rich.text import Text

from qa_cluster.cluster.commands import ask
from qa_cluster.cluster.commands.groups.documents import _file
from qa_cluster.cluster.commands.shared_options import confirm_deletion
from qa_cluster.cluster.terminal import console, tables
from qa_cluster.cluster.terminal.help_text import help_of
from qa_cluster.documents.source_map import write_map
from qa_cluster.types import Answer, AskResult, CacheUse, Index, Model, Timings, Usage

ROWS = [
    {"shard": "127.0.0.1:7000", "model": "m" * 30, "sentence": "A sentence of many words " * 4, "documents": 12},
    {"shard": "127.0.0.1:7001", "model": "", "sentence": "Short.", "documents": 3},
]


def printed(monkeypatch: pytest.MonkeyPatch, width: int, **options: tuple[str, ...]) -> list[str]:
    file = StringIO()
    monkeypatch.setattr(console, "out", Console(file=file, width=width, highlight=False))
    tables.table(ROWS, title="shards", **options)  # type: ignore[arg-type]
    return file.getvalue().splitlines()


def test_lines_have_no_trailing_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 200)
    assert not [line for line in lines if line != line.rstrip()]
    assert any(ROWS[0]["model"] in line and line.endswith("12") for line in lines)  # type: ignore[operator]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_narrow_terminals_omit_minor_columns(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width, minor=("model",))
    assert all(len(line) <= width for line in lines)
    assert any("m" * 30 in line for line in lines) == (width > 80)
    assert any("127.0.0.1:7000" in line for line in lines)


def test_rows_become_blocks_on_very_narrow_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 40, right=("documents",))
    assert "shard      127.0.0.1:7001" in lines
    assert "documents  3" in lines
    assert not [line for line in lines if line.startswith("model") and line == "model"]


def test_a_document_cannot_send_control_sequences_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    monkeypatch.setattr(console, "out", Console(file=file, width=120, highlight=False))
    text = "a\x1b[2Jb\x07c\x9bd\u202ee\rf [bold]g[/bold] Zürich 東京"
    console.say(text)
    tables.table([{"sentence": text}], title=text)
    assert file.getvalue().count(r"a\x1b[2Jb\x07c\x9bd\u202ee\rf [bold]g[/bold] Zürich 東京") == 3
    assert not set(file.getvalue()) & set("\x1b\x07\x9b\u202e\r")


def test_further_answers_with_tiny_scores_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(rank: int, score: float) -> Answer:
        place = {"document_id": "d", "document_version": "", "passage_id": "d:0", "title": "", "context": "c."}
        return Answer(
            rank,
            f"answer{rank}",
            score,
            0.0,
            0,
            1,
            **place,
            context_start=0,
            context_end=2,
            shard="",
            confidence="likely",
        )

    def result(*scores: float) -> AskResult:
        return AskResult(
            id="",
            created=0,
            question="q",
            normalized_question="q",
            model=Model("", "", ""),
            answerable=True,
            no_answer_score=0.0,
            answers=tuple(answer(rank, score) for rank, score in enumerate(scores, start=1)),
            cache=CacheUse("miss", "none", 0, 0),
            index=Index("", 1, 1),
            usage=Usage(1, 1, 0, 1, False),
            timings_ms=Timings(),
        )

    ask.show(result(0.9, 0.2, 0.004))
    said = capsys.readouterr().out
    assert "answer1" in said and "answer2" in said and "answer3" not in said
    assert "likely" in said
    ask.show(result(0.001))
    assert "answer1" in capsys.readouterr().out


def test_paragraphs_of_a_help_text_have_no_fixed_line_breaks() -> None:
    def up() -> None:
        """Start it.

        It stays
        until `down`.

            qa-cluster up
        """

    assert help_of(up) == "Start it.\n\nIt stays until `down`.\n\n[b][/b]    qa-cluster up"


def test_examples_right_after_the_first_paragraph_stay_indented() -> None:
    def count() -> None:
        """Count them.

        Examples:

            qa-cluster count

            qa-cluster count --json
        """

    # typer shows the paragraphs after the first one in this form
    rest = cleandoc(help_of(count).partition("\n\n")[2])
    assert Text.from_markup(rest).plain == "Examples:\n\n    qa-cluster count\n\n    qa-cluster count --json"


def test_a_source_map_is_shown_as_a_summary() -> None:
    sections, places = [(0, ["NAME"]), (46, ["OPTIONS"])], [(0, 1), (46, 9), (60, 12)]
    stored = write_map("gzip.1.gz", "roff", 1, sections, unit="line", places=places)
    size = len(json.dumps(stored).encode())
    shown = _file({"_source": stored, "year": 1})
    assert shown == f"gzip.1.gz (roff); 2 sections; 3 line numbers; {size} bytes in metadata._source"
    assert _file({"_source": 5}) == "unreadable source map, 1 bytes in metadata._source"
    assert _file({"_source": {"file": "a.txt"}}) == "a.txt; 17 bytes in metadata._source"
    assert _file({"year": 1}) == ""


def test_brackets_of_a_help_text_are_shown() -> None:
    def export() -> None:
        """Needs `qa-cluster[export]`."""

    assert Text.from_markup(help_of(export)).plain == "Needs `qa-cluster[export]`."


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal whose user answers "no". The value is the list of questions."""
    questions: list[str] = []
    monkeypatch.setattr(console, "is_answered", lambda: True)
    monkeypatch.setattr(console, "confirm", lambda question: bool(questions.append(question)))
    return questions


def test_a_no_deletes_nothing(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        confirm_deletion("3 documents from collection books", False)
    assert ended.value.exit_code == 1 and asked == ["Delete 3 documents from collection books?"]
    assert "nothing was deleted" in capsys.readouterr().err


def test_a_yes_or_the_option_deletes(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    confirm_deletion("'a' from collection default", True)
    assert asked == []
    monkeypatch.setattr(console, "confirm", lambda question: True)
    confirm_deletion("'a' from collection default", False)


def test_without_a_terminal_the_option_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_answered", lambda: False)
    with pytest.raises(typer.BadParameter, match="repeat the command with --yes"):
        confirm_deletion("'a' from collection default", False)
