"""`documents delete` and `collections delete` ask on a terminal before they delete."""

from __future__ import annotations

import pytest
import typer

from qa_cluster.cluster.commands.shared_options import confirm_deletion
from qa_cluster.cluster.terminal import console


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
