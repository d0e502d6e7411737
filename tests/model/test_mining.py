"""Mining finds high-ranking passages without the answer. Its result is reproducible."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.scoring import normalise
from qa_cluster.models.__main__ import main
from qa_cluster.models.examples.data import load_dataset
from qa_cluster.models.mining import mine as mining
from qa_cluster.models.mining.mine import KnownAnswers, MiningSettings, mine
from tests.harness.programs import ROOT

WRITTEN = ROOT / "models" / "training" / "written" / "law.jsonl.gz"
PORT = "Which port does the relay daemon of Harbour listen on by default?"
FILLER = [
    f"The daemon number {number} listens on a port. Its relay has a default of {number} seconds."
    for number in range(30)
]
CONTEXT = "The relay daemon of Harbour is small. By default it listens on port 7411. Nobody knows why."


def row(question: str = PORT, context: str = CONTEXT, answer: str | None = "7411", **place: Any) -> dict[str, Any]:
    start = -1 if answer is None else context.index(answer)
    return {"question": question, "context": context, "answer": answer or "", "answer_start": start, **place}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows), encoding="utf-8")
    return path


def filler(asked: str = "Who?") -> list[dict[str, Any]]:
    return [row(f"{asked} {number}", text, None) for number, text in enumerate(FILLER)]


def mined(folder: Path, *rows: dict[str, Any], name: str = "out", **options: Any) -> list[dict[str, Any]]:
    corpus, unlabelled = options.pop("corpus", ()), options.pop("file", None)
    data = write(folder / "data.jsonl", *rows)
    out = folder / f"{name}.jsonl.gz"
    mine([data], out, MiningSettings(**options), corpus=corpus, unlabelled=unlabelled)
    return [json.loads(line) for line in gzip.decompress(out.read_bytes()).decode().splitlines()]


def group_of(groups: list[dict[str, Any]], question: str = PORT) -> dict[str, Any]:
    (found,) = [group for group in groups if group["question"] == question]
    return found


def test_negatives_rank_high_and_do_not_contain_the_answer(tmp_path: Path) -> None:
    groups = mined(tmp_path, row(), *filler(), negatives=6)
    group = group_of(groups)
    (positive,) = group["positives"]
    assert positive["context"][positive["answer_start"] :].startswith("7411")
    assert len(group["negatives"]) == 6
    for negative in group["negatives"]:
        assert "daemon" in negative["context"]
        assert "7411" not in negative["context"]
    assert (tmp_path / "out.jsonl.gz").exists() and not list(tmp_path.glob("*.partial"))
    loaded = load_dataset(tmp_path / "out.jsonl.gz")
    assert loaded.grouped and not loaded.dropped


def test_the_written_passages_give_no_negative_with_an_answer(tmp_path: Path) -> None:
    """The written passages keep titles and sections, and no negative contains an answer to its question."""
    out = tmp_path / "law.jsonl.gz"
    made = mine([WRITTEN], out, MiningSettings(min_words=1))
    groups = [json.loads(line) for line in gzip.decompress(out.read_bytes()).decode().splitlines()]
    assert made["questions"] == made["groups"] == len(groups) == 2114
    assert made["without_answer"] == 444
    assert made["negatives"] > 6 * made["groups"] / 2
    for group in groups:
        assert all(passage["title"] for passage in (*group["positives"], *group["negatives"]))
        for positive in group["positives"]:
            wanted = normalise(positive["answer"])
            assert positive["context"].startswith(positive["answer"], positive["answer_start"])
            held = [f" {normalise(negative['context'])} " for negative in group["negatives"]]
            assert not any(f" {wanted} " in text for text in held)


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        mined(tmp_path, row(), *filler("What does the daemon do, after all,"), name=name, seed=seed)
    first, same, other = ((tmp_path / f"{name}.jsonl.gz").read_bytes() for name in "abc")
    assert first == same != other


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("It was built in 1990-1995.", True),
        ("The answer is THE  old\nTown hall!", True),
        ("An old, town hall.", True),
        ("It cost 19905 crowns in the old townhall.", False),
        ("", False),
    ],
)
def test_answers_are_found_normalized_and_verbatim(text: str, held: bool) -> None:
    assert KnownAnswers(["1990", "the Old Town Hall", "%"]).occur_in(text) is held


def test_a_question_without_an_answer_has_negatives_of_other_titles_only(tmp_path: Path) -> None:
    asked = row(answer=None, title="Harbour")
    others = [row(f"Who? {number}", text, None, title=f"T{number % 2}") for number, text in enumerate(FILLER)]
    same = [row(f"What? {number}", f"{text} Really.", None, title="Harbour") for number, text in enumerate(FILLER[:5])]
    group = group_of(mined(tmp_path, asked, *others, *same, negatives=4))
    assert group["positives"] == []
    assert group["negatives"][0]["title"] == "Harbour"
    assert {negative["title"] for negative in group["negatives"][1:]} == {"T0", "T1"}
    bare = group_of(mined(tmp_path, row(answer=None), *filler(), name="bare"))
    assert [negative["context"] for negative in bare["negatives"]] == [CONTEXT]


def test_all_contexts_of_a_question_are_one_group(tmp_path: Path) -> None:
    twice = row(context=f"Note. {CONTEXT}")
    elsewhere = row(context="The relay of Harbour was written in 1999.", answer=None)
    group = group_of(mined(tmp_path, row(), twice, elsewhere, *filler(), negatives=3))
    assert len(group["positives"]) == 2
    assert group["negatives"][0]["context"] == elsewhere["context"]
    assert len(group["negatives"]) == 3


def test_short_questions_get_no_negatives(tmp_path: Path) -> None:
    short = row("Which port?")
    assert group_of(mined(tmp_path, short, *filler()), "Which port?")["negatives"] == []
    assert group_of(mined(tmp_path, short, *filler(), name="b", min_words=2), "Which port?")["negatives"]


def test_passages_have_the_context_that_shards_read(tmp_path: Path) -> None:
    long = " ".join([*(f"Sentence number {number} says little." for number in range(40)), CONTEXT])
    group = group_of(mined(tmp_path, row(context=long), *filler(), budget=40))
    (positive,) = group["positives"]
    assert "By default it listens on port 7411." in positive["context"]
    assert len(positive["context"].split()) <= 40
    alone = group_of(mined(tmp_path, row(context=long), *filler(), name="alone", budget=0))
    assert alone["positives"][0]["context"] == "By default it listens on port 7411."


def test_further_documents_are_ranked_and_doubtful_passages_have_no_label(tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "notes.txt").write_text("By default the relay daemon of Harbour listens on some port or other.\n")
    (folder / "changes.txt").write_text("The relay daemon of Harbour listened on port 7411 by default until May.\n")
    file = tmp_path / "pairs.jsonl.gz"
    group = group_of(mined(tmp_path, row(), *filler(), corpus=[folder], unlabelled=2, file=file))
    assert any("some port" in negative["context"] for negative in group["negatives"])
    assert not any("until May" in negative["context"] for negative in group["negatives"])
    (pair,) = load_dataset(file).examples
    assert (pair.question, pair.title) == (PORT, "changes")
    assert load_dataset(file).unlabelled == 1


def test_completed_work_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(), *filler("What does the daemon do, after all,")]
    straight = mined(tmp_path, *rows, name="straight")
    work = mining._Miner.mined
    asked: list[str] = []

    def stopping(self: Any, examples: Any) -> Any:
        asked.append(examples[0].question)
        if len(asked) == 10:
            raise KeyboardInterrupt
        return work(self, examples)

    monkeypatch.setattr(mining._Miner, "mined", stopping)
    with pytest.raises(KeyboardInterrupt):
        mined(tmp_path, *rows)
    partial = tmp_path / "out.jsonl.gz.partial"
    partial.write_text(partial.read_text() + '{"groups": [', encoding="utf-8")  # an incomplete line, as after a kill
    assert mined(tmp_path, *rows) == straight
    assert len(asked) == 10 + len(rows) - 9
    partial.write_text('{"another": "run"}\n{}\n')
    assert mined(tmp_path, *rows, name="other") == straight


def test_unusable_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "data.jsonl", row())
    out = tmp_path / "out.jsonl.gz"

    def fails(fault: str, path: Path = out, source: Path = data, **options: Any) -> None:
        file = options.pop("file", None)
        with pytest.raises(InvalidInput, match=fault):
            mine([source], path, MiningSettings(**options), unlabelled=file)
        assert not out.exists()

    fails("must end in .jsonl.gz", tmp_path / "out.json")
    fails("the folder does not exist", tmp_path / "no" / "out.jsonl.gz")
    fails("negatives is -1, must be from 0 to 100", negatives=-1)
    fails("both a number for each question and a file", unlabelled=2)
    fails("cannot read training data", source=tmp_path / "none.jsonl")
    grouped = write(
        tmp_path / "groups.jsonl", {"question": "Who?", "positives": [], "negatives": [{"context": "Ada."}]}
    )
    fails("has groups already", source=grouped)
    unknown = write(tmp_path / "unknown.jsonl", {**row(), "answer": None, "answer_start": None})
    fails("no labelled question", source=unknown)
    (tmp_path / "there.jsonl.gz").write_bytes(b"")
    fails("exists: choose a different file", tmp_path / "there.jsonl.gz")
    assert main(["mine", str(out), "--data", str(data), "--depth", "0"]) == 1
    assert "depth is 0" in capsys.readouterr().err
    assert main(["mine", str(out), "--data", str(data), "--min-words", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 1
