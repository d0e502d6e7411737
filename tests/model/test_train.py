"""Small networks of every family learn. The command rejects bases and settings that it cannot train."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.evaluation.feedback_export import examples_of, lines_of
from qa_cluster.models.__main__ import main
from qa_cluster.models.checkpoints.checkpoint import load_checkpoint
from qa_cluster.models.checkpoints.record import RECORD_FILE
from qa_cluster.models.examples.data import load_dataset
from qa_cluster.models.examples.labelled import Labelled
from qa_cluster.models.training.base import Machine, load_base
from qa_cluster.models.training.encoding import WindowEncoder
from qa_cluster.models.training.loop import StageLoop
from qa_cluster.models.training.objectives.objective import Objective
from qa_cluster.models.training.state import Position
from qa_cluster.models.training.train import HELD_OUT_FILE
from qa_cluster.types import Feedback
from tests.model.toy_training import Silent, run, save_base, settings, toy, weights

transformers = pytest.importorskip("transformers", reason="the train extra is not installed")
torch = pytest.importorskip("torch", reason="the train extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def test_a_trained_network_can_be_exported(
    base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["train", str(base), str(out), "--data", f"{data}:6:5e-3", "--hold-out", "60", "--seed", "3"]
    sizes = ["--max-tokens", "48", "--doc-stride", "8", "--max-question-tokens", "8", "--batch-size", "16"]
    assert main([*arguments, *sizes, "--threads", "1", "--precision", "float32"]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record == json.loads((out / RECORD_FILE).read_text(encoding="utf-8"))
    scores = record["held_out"]["scores"]
    assert scores["f1"] > 0.9
    assert scores["separation"] > 0.9
    assert record["losses"][-1]["loss"] < 0.5
    assert record["data"][0]["sha256"] == load_dataset(data).sha256
    assert record["new_head"] is True
    assert not any(str(place) in printed.out for place in (base, data.parent, out))
    assert len(load_dataset(out / HELD_OUT_FILE).examples) == record["held_out"]["examples"] == scores["questions"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["config.json", HELD_OUT_FILE, "model.safetensors", "tokenizer.json", "tokenizer_config.json", RECORD_FILE]
    )
    assert "step 204 of 204" in printed.err  # without a terminal, progress is lines with steps
    assert load_checkpoint(str(out)).family == "bert"
    assert json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["truncation"] is None


def test_a_network_learns_from_an_export_of_feedback(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the feedback says that an answer is right or wrong, and half names a better place."""
    given = []
    for number, example in enumerate(toy(200)):
        asked = {"question": example.question, "answer": example.answer, "context": example.context}
        if not example.answer:
            given.append(Feedback(**{**asked, "answer": example.context.split(" ")[0]}, verdict="wrong"))
        elif number % 2:
            given.append(Feedback(**asked, verdict="right"))
        else:
            better = {"better_answer": example.answer, "better_context": example.context}
            given.append(Feedback(example.question, "better", answer="a", context=f"a book {number}", **better))
    export = tmp_path / "feedback.jsonl"
    lines = list(lines_of(examples_of(given)))
    export.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    arguments = ["train", str(base), str(tmp_path / "out"), "--data", f"{export}:12:5e-3", "--hold-out", "20"]
    sizes = ["--max-tokens", "48", "--doc-stride", "8", "--max-question-tokens", "8", "--batch-size", "16"]
    assert main([*arguments, *sizes, "--threads", "1", "--precision", "float32"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["held_out"]["scores"]["f1"] > 0.8
    assert len(load_dataset(export).examples) == len(lines) > 250


def test_the_seed_decides_the_result(base: Path, data: Path, tmp_path: Path) -> None:
    runs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        runs.append(Silent())
        run(base, tmp_path / name, settings(data, "0.2:1e-3", seed=seed), runs[-1])
    assert runs[0].losses == runs[1].losses != runs[2].losses
    assert np.float32(1e-40) * np.float32(1), "after a training, subnormal numbers are no longer flushed to zero"


@pytest.mark.parametrize("family", ["bert", "electra", "albert", "roberta", "mpnet", "deberta-v2", "distilbert"])
def test_every_family_trains(family: str, tmp_path: Path) -> None:
    source = save_base(tmp_path / "base", family)
    path = tmp_path / "toy.jsonl"
    path.write_text("\n".join(example.to_json() for example in toy(64)), encoding="utf-8")
    chosen = settings(path, "10:2e-3", max_tokens=96, max_question_tokens=20)
    seen = Silent()
    record = run(source, tmp_path / "out", chosen, seen)
    assert record["new_head"] is True
    assert np.mean(seen.losses[-5:]) < 0.8 * seen.losses[0]
    again = load_base(str(tmp_path / "out"), chosen, "cpu")
    assert not again.new_head
    assert ("token_type_ids" in again.inputs) == (family in ("bert", "electra", "albert"))


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_answers_are_found_in_the_tokens(family: str, tmp_path: Path) -> None:
    loaded = load_base(str(save_base(tmp_path, family)), settings(Path("none.json")), "cpu")
    encoder = WindowEncoder(loaded.tokenizer, max_tokens=40, doc_stride=10, max_question_tokens=8)
    context = (
        "the caf\u00e9 in \u6771\u4eac sold a crimson map, " + "the old key was found by the blue box, " * 4 + "amber."
    )
    for answer in ("caf\u00e9", "\u6771\u4eac", "crimson map", "a crimson map, the old key", "amber"):
        start = context.index(answer)
        windows = encoder.windows([Labelled("which " * 30, context, answer, start)])
        assert len(windows) > 2
        assert windows.lengths.max() <= 40
        held = np.flatnonzero(windows.ends)
        assert 1 <= len(held) < len(windows)
        for row in held:
            spans = windows.spans[windows.bounds[row] : windows.bounds[row + 1]]
            assert context[spans[windows.starts[row], 0] : spans[windows.ends[row], 1]] == answer
    cut = encoder.windows([Labelled("which?", context, context, 0), Labelled("which?", context, "", -1)])
    assert cut.unanswered == len(cut)  # no window contains the complete answer
    padded = " the old map was red. "
    blanks = encoder.windows([Labelled("which?", padded, " the", 0), Labelled("which?", padded, "red. ", 17)])
    held = [blanks.spans[blanks.bounds[row] :][[blanks.starts[row], blanks.ends[row]]] for row in (0, 1)]
    assert [padded[spans[0, 0] : spans[1, 1]] for spans in held] == ["the", "red."]


def cut_weights(base: Path) -> None:
    file = base / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def lose_weights(base: Path) -> None:
    from safetensors.torch import save_file

    save_file(dict(list(weights(base).items())[5:]), base / "model.safetensors", {"format": "pt"})


def join_nothing(base: Path) -> None:
    stated = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    stated["tokenizer_class"] = "PreTrainedTokenizerFast"  # the tokenizer class of BERT joins pairs itself
    (base / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    tokenizer = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    (base / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}), encoding="utf-8")


def rewrite(name: str, text: str) -> Callable[[Path], object]:
    return lambda base: (base / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (shutil.rmtree, "no model folder"),
        (cut_weights, "cannot load weights"),
        (lose_weights, "lack 5 tensors of the encoder"),
        (rewrite("config.json", "{"), "cannot load config"),
        (rewrite("tokenizer_config.json", '{"tokenizer_class": "CanineTokenizer"}'), "Canine.*: only fast tokenizers"),
        (lambda base: (base / "tokenizer.json").unlink(), "has no tokenizer"),
        (join_nothing, "starts a pair with 'a', which is no special token"),
    ],
)
def test_a_base_that_cannot_be_trained_is_refused(
    base: Path, data: Path, tmp_path: Path, damage: Callable[[Path], object], match: str
) -> None:
    source = Path(shutil.copytree(base, tmp_path / "base"))
    damage(source)
    with pytest.raises(ModelError, match=match):
        run(source, tmp_path / "out", settings(data))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changed", "match"), [({"max_tokens": 128}, "reads at most 98 tokens"), ({"device": "cuda"}, "no GPU")]
)
def test_wrong_settings_are_refused(
    base: Path, data: Path, tmp_path: Path, changed: dict[str, Any], match: str
) -> None:
    if "device" in changed and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InvalidInput, match=match):
        run(base, tmp_path / "out", settings(data, **changed))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", ["loss", "length of the gradient"])
def test_nan_ends_the_run(base: Path, data: Path, what: str) -> None:
    chosen = settings(data)
    loaded = load_base(str(base), chosen, "cpu")
    first = next(loaded.network.parameters())
    if what == "loss":
        with torch.no_grad():
            first.fill_(float("nan"))
    else:
        first.register_hook(lambda gradient: gradient * float("nan"))
    encoder = WindowEncoder(loaded.tokenizer, max_tokens=48, doc_stride=8, max_question_tokens=8)
    loop = StageLoop(loaded, Machine("cpu", None), chosen, 0, Objective(encoder.windows(toy(40)), chosen, False))
    before = {name: weight.clone() for name, weight in loaded.network.state_dict().items()}
    with pytest.raises(ModelError, match=f"the {what} is nan at step 1 of stage 1: use a lower learning rate"):
        loop.run(Position(), report=lambda *_: None, save=lambda: None, stopping=lambda: False)
    after = loaded.network.state_dict()
    assert all(torch.allclose(weight, after[name], equal_nan=True) for name, weight in before.items())


def test_the_error_for_too_little_memory_has_advice(base: Path, data: Path) -> None:
    chosen = settings(data)
    loaded = load_base(str(base), chosen, "cpu")

    def forward(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    loaded.network.forward = forward
    windows = WindowEncoder(loaded.tokenizer, max_tokens=48, doc_stride=8, max_question_tokens=8).windows(toy(40))
    loop = StageLoop(loaded, Machine("cpu", None), chosen, 0, Objective(windows, chosen, False))
    with pytest.raises(
        ModelError, match=r"cpu has not enough memory for \d+ windows of up to \d+ tokens: .* --batch-tokens"
    ):
        loop.run(Position(), report=lambda *_: None, save=lambda: None, stopping=lambda: False)


def test_a_classifier_with_other_labels_can_be_the_base(base: Path, data: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(base, tmp_path / "classifier"))
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"id2label": {"0": "yes", "1": "no", "2": "maybe"}, "label2id": {"yes": 0, "no": 1, "maybe": 2}}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    run(source, tmp_path / "out", settings(data, "0.1:1e-3"))
    assert weights(tmp_path / "out")["qa_outputs.weight"].shape[0] == 2
    assert not load_base(str(tmp_path / "out"), settings(data), "cpu").new_head
