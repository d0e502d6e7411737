"""The evaluation finds an answer anywhere in a long context, and refuses files that it cannot read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.evaluation.examples import Example
from qa_cluster.models.__main__ import main
from qa_cluster.models.evaluation.evaluate import Prediction, evaluate, score
from qa_cluster.reading.manifest import MODEL_FILE, Score

FILLER = "The weather was mild and the harbour was quiet that week. "


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    lines = [
        {
            "question": "Who wrote the first program?",
            "context": FILLER * before + "Ada Lovelace wrote the first program in 1843. " + FILLER * after,
            "answer": "Ada Lovelace",
            "answer_start": len(FILLER) * before,
        }
        for before, after in ((0, 0), (0, 90), (45, 45), (90, 0))
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_answers_are_found_in_any_window(reader: Path, questions: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    report = evaluate(reader, questions, threads=1, progress=lambda *step: seen.append(step))
    assert (report.exact_match, report.f1, report.questions) == (1.0, 1.0, 4)
    assert report.windows > 10
    assert seen[-1] == ("reading questions.jsonl", report.windows, report.windows)


def test_no_answer_is_scored_if_some_questions_have_no_answer(reader: Path, questions: Path) -> None:
    row = {"question": "How tall is the tower?", "context": FILLER, "answer": "", "answer_start": -1}
    mixed = questions.with_name("mixed.jsonl")
    mixed.write_text(f"{questions.read_text()}\n{json.dumps(row)}\n", encoding="utf-8")
    report = evaluate(reader, mixed, threads=1)
    assert (report.questions, report.f1, report.no_answer_accuracy) == (5, 1.0, 1.0)
    assert (report.figures.f1.value, report.figures.refused) == (1.0, 0.0)
    assert (report.by_type["who"].questions, report.by_type["how"].questions) == (4, 1)
    assert [answer["refused"] for answer in report.answers] == [False] * 4 + [True]
    assert report.trust is not None
    assert report.trust.bins[0].answers == 5


def test_scores_follow_the_rules_of_the_question_set() -> None:
    answered = [Example("Who?", "Ada did.", ("Ada",))]
    without = Example("When?", "Ada did.", ())
    low, lower = Prediction("Ada", 0, 3, 1.0), Prediction("did", 4, 7, -1.0)
    assert score([low], answered, 2.0) == Score(1.0, 1.0, None)
    assert score([low, lower], [*answered, without], 0.5) == Score(1.0, 1.0, 1.0)
    assert score([low, lower], [*answered, without], 2.0) == Score(0.5, 0.5, 1.0)
    assert score([low, lower], [*answered, without], -2.0) == Score(0.5, 0.5, 0.0)


def test_unusable_files_are_refused(reader: Path, questions: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="unknown runtime 'tpu'"):
        evaluate(reader, questions, runtime="tpu")
    with pytest.raises(InvalidInput, match="threads is 0"):
        evaluate(reader, questions, threads=0)
    with pytest.raises(InvalidInput, match="the window size is 600"):
        evaluate(reader, questions, window_tokens=600)
    with pytest.raises(ModelError, match="cannot read manifest"):
        evaluate(tmp_path, questions)
    shutil.copytree(reader, tmp_path / "changed")
    (tmp_path / "changed" / MODEL_FILE).write_bytes(b"other")
    with pytest.raises(ModelError, match="does not belong to manifest"):
        evaluate(tmp_path / "changed", questions)


def test_command_prints_the_report_or_the_error(
    reader: Path, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["evaluate", str(reader), str(questions), "--limit", "1", "--runtime", "onnxruntime", "--threads", "1"])
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["f1"] == printed["figures"]["f1"]["value"] == 1.0
    assert "answers" not in printed
    assert main(["evaluate", str(reader), str(questions), "--limit", "2", "--answers", "--threads", "1"]) == 0
    assert [row["answer"] for row in json.loads(capsys.readouterr().out)["answers"]] == ["Ada Lovelace"] * 2
    assert main(["evaluate", str(questions.with_name("none.json"))]) == 1
    assert "none.json" in capsys.readouterr().err
