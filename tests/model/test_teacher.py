"""Outputs of a teacher are computed once, stored by text offsets, and mapped to the tokens of students."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.models.__main__ import main
from qa_cluster.models.examples.data import group_line
from qa_cluster.models.examples.labelled import UNLABELLED, Labelled
from qa_cluster.models.training.encoding import WindowEncoder, Windows
from qa_cluster.models.training.objectives import teacher as teaching
from qa_cluster.models.training.objectives.outputs import TOP, TeacherOutputs, compressed, key_of
from qa_cluster.models.training.objectives.targets import TeacherTargets, softened
from qa_cluster.models.training.train import Distillation, Interrupted
from tests.model.toy_training import Silent, run, save_base, settings, toy, weights

transformers = pytest.importorskip("transformers", reason="the train extra is not installed")
torch = pytest.importorskip("torch", reason="the train extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

CONTEXT = "the naïve violet book was sold"
EXAMPLE = Labelled("which colour?", CONTEXT, "violet", CONTEXT.index("violet"))


def tokenizer(folder: Path, family: str) -> Any:
    return transformers.AutoTokenizer.from_pretrained(save_base(folder, family))


def windows(tokenizer: Any, *examples: Labelled, max_tokens: int = 48, **changed: Any) -> Windows:
    sizes = {"max_tokens": max_tokens, "doc_stride": 4, "max_question_tokens": 8, **changed}
    return WindowEncoder(tokenizer, **sizes).windows(examples)


def outputs(*scored: dict[int, float], rest: float = -20.0, others: int = 0, end: int = len(CONTEXT)) -> TeacherOutputs:
    """One window of `EXAMPLE` with these scores by text offset, for starts and for ends."""
    places, scores = np.zeros((1, 2, TOP), np.int32), np.full((1, 2, TOP), -np.inf, np.float16)
    for side, named in enumerate(scored):
        for number, (place, score) in enumerate(named.items()):
            places[0, side, number], scores[0, side, number] = place, score
    counts = np.array([len(scored[0]) + others], np.int32)
    return TeacherOutputs(
        np.array([key_of(EXAMPLE)], np.uint64),
        np.array([1], np.int32),
        np.array([0], np.int32),
        np.array([end], np.int32),
        counts,
        places,
        scores,
        np.full((1, 2), rest, np.float16),
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_offsets_become_the_tokens_that_start_or_end_there(tmp_path: Path, family: str) -> None:
    mine = windows(tokenizer(tmp_path, family), EXAMPLE)
    begin, end = EXAMPLE.answer_start, EXAMPLE.answer_start + len("violet")
    targets = TeacherTargets(outputs({begin: 5.0, 0: 1.0}, {end: 5.0, 3: 1.0}), mine, [EXAMPLE], temperature=1.0)
    start, stop = targets.rows(np.array([0]), int(mine.lengths[0]))
    assert start.sum() == stop.sum() == pytest.approx(1)
    assert int(start[0].argmax()) == mine.starts[0]
    assert int(stop[0].argmax()) == mine.ends[0]
    total = np.exp(5) + np.exp(1) + 1
    assert start[0, mine.starts[0]] == pytest.approx(np.exp(5) / total, rel=1e-3)
    assert start[0, 0] == pytest.approx(1 / total, rel=1e-2)


def test_an_offset_inside_a_students_token_becomes_the_nearest_token(tmp_path: Path) -> None:
    mine = windows(tokenizer(tmp_path, "bert"), EXAMPLE)
    begin = EXAMPLE.answer_start
    targets = TeacherTargets(outputs({begin + 1: 9.0}, {begin + 5: 9.0}), mine, [EXAMPLE], temperature=1.0)
    start, stop = targets.rows(np.array([0]), 48)
    assert (int(start[0].argmax()), int(stop[0].argmax())) == (mine.starts[0], mine.ends[0])


def test_scores_outside_of_a_students_window_count_as_no_answer(tmp_path: Path) -> None:
    long = Labelled("which colour?", " ".join(["the old map"] * 20) + " violet", "violet", 12 * 20)
    mine = windows(tokenizer(tmp_path, "bert"), long, max_tokens=24)
    assert len(mine) > 2
    made = outputs({long.answer_start: 9.0}, {len(long.context): 9.0}, end=len(long.context))
    made.keys[0] = key_of(long)
    start, stop = TeacherTargets(made, mine, [long], temperature=1.0).rows(np.arange(len(mine)), 24)
    assert start.argmax(axis=1).tolist() == mine.starts.tolist()
    assert stop.argmax(axis=1).tolist() == mine.ends.tolist()
    assert mine.ends[-1] > 0 and not mine.ends[0]


def test_the_remaining_probability_is_spread_over_the_other_tokens(tmp_path: Path) -> None:
    mine = windows(tokenizer(tmp_path, "bert"), EXAMPLE)
    context = np.flatnonzero(mine.spans[:, 0] >= 0)
    made = outputs({0: 0.0}, {3: 0.0}, rest=-1.0, others=len(context) - 1)
    start, _ = TeacherTargets(made, mine, [EXAMPLE], temperature=2.0).rows(np.array([0]), len(mine.ids))
    assert start[0, context[1:]].min() == pytest.approx(start[0, context[1:]].max())
    assert start[0, context[1]] / start[0, context[0]] == pytest.approx(np.exp(-0.5), rel=1e-3)
    outside = np.setdiff1d(np.arange(1, len(mine.ids)), context)
    assert not start[0, outside].any()


def test_the_best_scores_and_the_mean_of_the_rest_are_stored() -> None:
    logits = np.random.default_rng(0).normal(0, 3, 50).astype(np.float32)
    places, scores, rest = compressed(logits, np.arange(50, dtype=np.int32))
    assert places.tolist() == np.argsort(-logits)[:TOP].tolist()
    shares, others, null = softened(scores.astype(np.float64), float(rest), 50 - TOP, 1.0)
    every = np.exp(np.append(logits, 0.0))
    np.testing.assert_allclose(shares, every[places] / every.sum(), rtol=1e-2)
    assert null == pytest.approx(1 / every.sum(), rel=1e-2)
    assert others == pytest.approx(1 - shares.sum() - null)
    _, scores, rest = compressed(logits[:3], np.arange(3, dtype=np.int32))
    assert np.isneginf(scores[3:]).all() and np.isneginf(rest)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A teacher of another family that has learned the toy questions, and its data."""
    folder = tmp_path_factory.mktemp("teacher")
    data = folder / "toy.jsonl"
    data.write_text("".join(f"{example.to_json()}\n" for example in toy(300)), encoding="utf-8")
    base = save_base(folder / "base", "mpnet")
    run(base, folder / "teacher", settings(data, "5:5e-3"))
    return folder / "teacher", data


def groups_of(data: list[Labelled], path: Path) -> Path:
    """Write each answered question with two passages without the answer. Some lines have no label."""
    without = [example for example in data if example.answer_start < 0]
    lines = []
    for number, example in enumerate(data):
        if number % 7 == 0:
            unknown = Labelled(example.question, example.context, "", UNLABELLED)
            lines.append(unknown.to_json())
        elif example.answer_start >= 0:
            others = [without[number % len(without)], without[(number + 1) % len(without)]]
            lines.append(group_line(example.question, "s", [example, *others]))
        else:
            lines.append(group_line(example.question, "s", [example]))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return groups_of(toy(120, seed=4), tmp_path_factory.mktemp("groups") / "groups.jsonl")


def test_a_student_learns_from_a_teacher_with_other_tokens(
    base: Path, taught: tuple[Path, Path], tmp_path: Path
) -> None:
    """The student learns without labels."""
    teacher, _ = taught
    rows = [Labelled(each.question, each.context, "", UNLABELLED).to_json() for each in toy(300)]
    unlabelled = tmp_path / "unlabelled.jsonl"
    unlabelled.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    distillation = Distillation(tmp_path / "outputs.npz", str(teacher))
    chosen = settings(unlabelled, "6:5e-3", teacher_weight=1.0)
    record = run(base, tmp_path / "student", chosen, distillation=distillation)
    assert record["teacher"]["titles"] is False
    assert record["data"][0]["unlabelled"] == 300
    assert record["losses"][-1]["loss"] < record["losses"][0]["loss"] / 2
    with pytest.raises(InvalidInput, match="300 examples without a label, which only a teacher"):
        run(base, tmp_path / "other", chosen)


def test_outputs_are_computed_once_and_a_stopped_teacher_resumes(
    base: Path, taught: tuple[Path, Path], groups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, _ = taught
    monkeypatch.setattr(teaching, "PART", 50)
    file, out, seen = tmp_path / "outputs.npz", tmp_path / "student", Silent()
    chosen, distillation = settings(groups, "0.3:5e-3"), Distillation(file, str(teacher))
    calls = iter([False, False, True])
    with pytest.raises(Interrupted, match="the teacher had read 100 of"):
        run(base, out, chosen, seen, distillation=distillation, stopping=lambda: next(calls))
    assert not out.exists()
    assert [path.name for path in sorted((tmp_path / "outputs.npz.parts").iterdir())] == ["00000.npz", "00001.npz"]
    run(base, out, chosen, seen, distillation=distillation)
    assert not (tmp_path / "outputs.npz.parts").exists()
    whole = TeacherOutputs.load(file)[0]
    monkeypatch.setattr(teaching, "_read", None)  # all outputs are complete, so the teacher must not read
    again = tmp_path / "again"
    run(base, again, chosen, seen, distillation=distillation)
    run(base, tmp_path / "third", chosen, seen, distillation=Distillation(file))
    assert all(torch.equal(weight, weights(again)[name]) for name, weight in weights(out).items())
    assert all(torch.equal(weight, weights(again)[name]) for name, weight in weights(tmp_path / "third").items())
    monkeypatch.undo()
    straight = tmp_path / "straight.npz"
    run(base, tmp_path / "fourth", chosen, seen, distillation=Distillation(straight, str(teacher)))
    order, other = np.argsort(whole.keys), np.argsort(TeacherOutputs.load(straight)[0].keys)
    assert np.array_equal(whole.keys[order], TeacherOutputs.load(straight)[0].keys[other])


def test_two_runs_cannot_write_to_the_same_outputs(
    base: Path, taught: tuple[Path, Path], groups: Path, tmp_path: Path
) -> None:
    teacher, _ = taught
    chosen, distillation = settings(groups, "0.3:5e-3"), Distillation(tmp_path / "outputs.npz", str(teacher))
    refused = []

    def stopping() -> bool:
        with pytest.raises(InvalidInput, match="another run is writing"):
            run(base, tmp_path / "other", chosen, distillation=distillation)
        refused.append(True)
        return True

    with pytest.raises(Interrupted, match="the teacher had read 0 of"):
        run(base, tmp_path / "student", chosen, distillation=distillation, stopping=stopping)
    assert refused == [True]
    assert not list(tmp_path.glob("*.lock"))
    run(base, tmp_path / "student", chosen, distillation=distillation)


def test_a_resumed_run_on_groups_with_a_teacher_ends_with_the_same_bits(
    base: Path, taught: tuple[Path, Path], groups: Path, tmp_path: Path
) -> None:
    teacher, _ = taught
    distillation = Distillation(tmp_path / "outputs.npz", str(teacher))
    chosen = settings(groups, "1:5e-3", title_share=0.5, max_tokens=88)
    seen = Silent()
    straight = run(base, tmp_path / "a", chosen, seen, distillation=distillation)
    assert straight["data"][0]["loss"] == "shared + teacher"
    resumed = Silent()
    with pytest.raises(Interrupted, match="stopped at step 3"):
        run(base, tmp_path / "b", chosen, resumed, distillation=distillation, stopping=resumed.after(3))
    with pytest.raises(InvalidInput, match=r"cannot resume .*: teacher was"):
        labelled = data_only_labelled(groups, tmp_path)
        run(base, tmp_path / "b", settings(labelled, "1:5e-3"), Silent(), resume=True)
    record = run(base, tmp_path / "b", chosen, resumed, resume=True, distillation=distillation)
    assert resumed.losses == seen.losses
    assert record["losses"] == straight["losses"]
    assert all(torch.equal(weight, weights(tmp_path / "b")[name]) for name, weight in weights(tmp_path / "a").items())


def data_only_labelled(groups: Path, folder: Path) -> Path:
    lines = [line for line in groups.read_text(encoding="utf-8").splitlines() if "null" not in line]
    path = folder / "labelled.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_unusable_outputs_are_refused(
    base: Path, taught: tuple[Path, Path], groups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, data = taught
    file = tmp_path / "outputs.npz"

    def fails(distillation: Distillation | None, fault: str, *stages: str, path: Path = groups, **changed: Any) -> None:
        chosen = settings(path, *(stages or ("0.1:1e-3",)), **changed)
        with pytest.raises(InvalidInput, match=fault):
            run(base, tmp_path / "out", chosen, distillation=distillation)
        assert not (tmp_path / "out").exists()

    fails(Distillation(file), "the file of teacher's outputs .*is missing: name the teacher")
    fails(Distillation(tmp_path / "none" / "x.npz", str(teacher)), "the folder does not exist")
    fails(Distillation(file, "nowhere"), "'nowhere' has no weights of a teacher")
    fails(Distillation(file, str(base)), "without a span head")
    fails(Distillation(file, str(teacher)), "groups, whose contexts cannot be joined", "1:1e-3:0.5")
    fails(Distillation(file, str(teacher)), "hold out examples before you mine", hold_out=5)
    file.write_bytes(b"no archive")
    fails(Distillation(file), "cannot read the teacher's outputs")
    file.unlink()
    few = tmp_path / "few.jsonl"
    few.write_text("".join(f"{example.to_json()}\n" for example in toy(20)), encoding="utf-8")
    run(base, tmp_path / "few", settings(few), Silent(), distillation=Distillation(file, str(teacher)))
    fails(Distillation(file), r"lack \d+ of \d+ examples: name the teacher")
    fails(
        Distillation(file, str(teacher)), "belong to another run: max_tokens was 48, is now 40", path=few, max_tokens=40
    )
    arguments = ["train", str(base), str(tmp_path / "out"), "--data", str(data), "--teacher", str(teacher)]
    assert main(arguments) == 1
    assert "--teacher needs --teacher-outputs" in capsys.readouterr().err
