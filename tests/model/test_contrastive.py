"""The training of an encoder: what it learns from, that it learns, that it resumes, that shards get its vectors."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the train extra is not installed")

import torch

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.models.checkpoints.encoder_checkpoint import load_encoder
from qa_cluster.models.checkpoints.record import RECORD_FILE
from qa_cluster.models.examples.data import group_line, write_examples
from qa_cluster.models.examples.labelled import NO_ANSWER, Labelled
from qa_cluster.models.exporting.encoder import EncoderOptions, export_encoder
from qa_cluster.models.recipe import encoder as recipe
from qa_cluster.models.recipe import tiny
from qa_cluster.models.training.base import Machine
from qa_cluster.models.training.contrastive import train as training
from qa_cluster.models.training.contrastive.embedder import Embedder
from qa_cluster.models.training.contrastive.examples import RankingExample, ranking_examples
from qa_cluster.models.training.contrastive.train import ContrastiveSettings, train_encoder
from qa_cluster.models.training.loop import change_weights, make_optimizer
from qa_cluster.models.training.state import STATE_FILE
from qa_cluster.models.training.stopping import Interrupted
from qa_cluster.reading.runtimes import open_vectors
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE
from tests.model.toy_training import Silent, weights

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
WORDS = ("lake", "river", "printer", "cable", "bread", "salt", "moon", "train", "window", "garden", "engine", "letter")
SETTINGS = ContrastiveSettings(batch_size=12, learning_rate=5e-3, threads=1)


def passage(question: str, context: str, answer: str = "", title: str = "") -> Labelled:
    start = context.index(answer) if answer else NO_ANSWER
    return Labelled(question, context, answer, start, title=title)


def groups(path: Path, count: int = 96) -> Path:
    """Questions that share a rare word with their passage, and a longer negative that has common words only."""
    lines = []
    for number in range(count):
        word = f"{WORDS[number % len(WORDS)]} {WORDS[number // len(WORDS)]}"
        question = f"which {word} is meant?"
        positive = passage(question, f"The {word} has the number n{number}x.", f"n{number}x", "List")
        negative = passage(question, "Nothing is said here about the number that was asked for.")
        lines.append(group_line(question, "toy", [positive, negative]))
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contrastive") / "tiny"
    tiny.save(folder, "bert", 1)
    return folder


def train(checkpoint: Path, out: Path, data: Path, seen: Silent, **changed: Any) -> dict[str, Any]:
    stopping = changed.pop("stopping", lambda: False)
    return train_encoder(checkpoint, out, [data], SETTINGS, seen, stopping=stopping, **changed)


def test_questions_need_a_passage_with_an_early_answer() -> None:
    with_answer = passage("Q?", "The answer is 42.", "42")
    late = passage("late?", "word " * 100 + "42", "42")
    without = passage("none?", "Nothing.")
    found = ranking_examples([with_answer, late, without])
    assert found == [RankingExample("Q?", with_answer)], "examples without a group have no negatives"
    group = [Labelled("Q?", "The answer is 42.", "42", 14, group=3), Labelled("Q?", "Nothing.", "", NO_ANSWER, group=3)]
    (one,) = ranking_examples(group)
    assert (one.passage, one.negatives) == (group[0], (group[1],))


def test_a_passage_with_the_answer_is_not_a_wrong_passage() -> None:
    question = RankingExample("Q?", passage("Q?", "It was built by Ada Lovelace.", "Ada Lovelace"))
    assert question.may_be_answered_by(passage("other", "ADA LOVELACE was born in 1815."))
    assert question.may_be_answered_by(question.passage)
    assert not question.may_be_answered_by(passage("other", "It was built by Babbage."))
    short = RankingExample("Q?", passage("Q?", "It has 10 doors.", "10"))
    assert not short.may_be_answered_by(passage("other", "In 1810, it had more.")), "10 occurs by chance"


def test_an_encoder_learns_which_passage_belongs_to_a_question(checkpoint: Path, tmp_path: Path) -> None:
    data, seen = groups(tmp_path / "groups.jsonl.gz", 144), Silent()
    for _ in range(3):  # a run reads each question once
        record = train(checkpoint, tmp_path / "out", data, seen)
        checkpoint = (tmp_path / "out").rename(tmp_path / f"trained-{len(seen.losses)}")
    assert record["questions"] == 144 and record["with_negatives"] == 144
    assert np.mean(seen.losses[-6:]) < 0.5 * np.mean(seen.losses[:6])
    assert json.loads((checkpoint / RECORD_FILE).read_text())["losses"] == record["losses"]
    assert not (checkpoint / STATE_FILE).exists()


def test_a_resumed_run_ends_with_the_same_bits(checkpoint: Path, tmp_path: Path) -> None:
    data, seen = groups(tmp_path / "groups.jsonl.gz"), Silent()
    record = train(checkpoint, tmp_path / "straight", data, seen)
    again = Silent()
    for steps in (2, 5):
        with pytest.raises(Interrupted, match=f"stopped at step {steps} of 8"):
            train(checkpoint, tmp_path / "stopped", data, again, stopping=again.after(steps))
    resumed = train(checkpoint, tmp_path / "stopped", data, again)
    assert again.losses == seen.losses
    assert resumed["losses"] == record["losses"]
    straight, found = weights(tmp_path / "straight"), weights(tmp_path / "stopped")
    assert all(torch.equal(weight, found[name]) for name, weight in straight.items())


def test_only_the_same_run_is_resumed(checkpoint: Path, tmp_path: Path) -> None:
    seen = Silent()
    with pytest.raises(Interrupted):
        train(checkpoint, tmp_path / "out", groups(tmp_path / "groups.jsonl.gz"), seen, stopping=lambda: True)
    with pytest.raises(InvalidInput, match="data was"):
        train(checkpoint, tmp_path / "out", groups(tmp_path / "others.jsonl.gz", 84), seen)


def test_an_encoder_that_cannot_be_written_is_not_lost(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = groups(tmp_path / "groups.jsonl.gz"), Silent()

    def full(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(training._Run, "write", full)
        with pytest.raises(ModelError, match=r"no space left; .* free disk space, and repeat the command$"):
            train(checkpoint, tmp_path / "out", data, seen)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [STATE_FILE]
    steps = len(seen.losses)
    train(checkpoint, tmp_path / "out", data, seen)
    assert len(seen.losses) == steps and (tmp_path / "out" / "model.safetensors").is_file()


def test_a_wrong_gradient_does_not_change_the_weights() -> None:
    network = torch.nn.Linear(2, 1)
    before = network.weight.detach().clone()
    optimizer = make_optimizer(network, 0.0)
    network.weight.grad = torch.full_like(network.weight, float("nan"))

    def check(norm: float) -> None:
        if math.isnan(norm):
            raise ModelError("the length is nan")

    with pytest.raises(ModelError, match="the length is nan"):
        change_weights(network, optimizer, rate=0.1, max_norm=1.0, check=check)
    assert torch.equal(network.weight, before)


def test_too_few_questions_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has 11 questions with an answer, but a step needs 12"):
        train(checkpoint, tmp_path / "out", groups(tmp_path / "groups.jsonl.gz", 11), Silent())
    assert not (tmp_path / "out").exists()


def test_training_and_shards_make_the_same_vectors(checkpoint: Path, tmp_path: Path) -> None:
    texts = ["A lake.", "A river that is longer than the lake of the other text " * 12]
    export_encoder(
        checkpoint, tmp_path, EncoderOptions("tiny", "CC0", "random weights", texts, texts, "float32", threads=1)
    )
    network, tokenizer = load_encoder(checkpoint)
    embedder = Embedder(network, tokenizer, Machine("cpu", None))
    with torch.inference_mode():
        found = embedder.passages([passage("", text) for text in texts]).numpy()
        questions = embedder.questions(texts[:1]).numpy()
    ids = np.zeros((2, 128), np.int64)
    for row, text in enumerate(texts):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"][:126]
        ids[row, : len(tokens) + 2] = [101, *tokens, 102]
    vectors = open_vectors(tmp_path / ENCODER_FILE, "onnxruntime", threads=1)(
        {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)}
    )
    assert (found * vectors).sum(1) == pytest.approx(1, abs=1e-4)
    assert (questions * vectors[:1]).sum(1) == pytest.approx(1, abs=1e-4)


def test_the_recipe_trains_and_exports_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "checkout" / "models" / "training" / "written"
    written.mkdir(parents=True)
    write_examples(
        written / "few.jsonl.gz",
        [
            passage(
                f"Where is the {word} of number {number}?",
                f"The {word} {number} is in hall {number}.",
                f"hall {number}",
            )
            for number, word in enumerate(WORDS * 20)
        ],
    )
    fetched: list[Path] = []

    def fetch(_encoder: Any, folder: Path, *_: Any) -> None:
        fetched.append(folder)
        tiny.save(folder, "bert", 1)

    monkeypatch.setattr(recipe, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setattr(recipe, "fetch", fetch)
    command = ["--folder", str(tmp_path / "work"), "--out", str(tmp_path / "out"), "--data", str(tmp_path)]
    assert recipe.main([*command, "--threads", "1"]) == 0
    shown = capsys.readouterr()
    assert "only the project's own questions are used" in " ".join(shown.err.split())
    first = (tmp_path / "out" / ENCODER_FILE).read_bytes()
    assert "trained to rank passages" in json.loads(shown.out)["provenance"]
    assert recipe.main([*command, "--threads", "1", "--precision", "float32"]) == 0
    assert "encoder-training: already done" in " ".join(capsys.readouterr().err.split())
    assert len(fetched) == 1
    assert (tmp_path / "out" / ENCODER_FILE).read_bytes() != first
    write_examples(written / "more.jsonl.gz", [passage("Where is it?", "It is here.", "here")])
    assert recipe.main([*command, "--threads", "1"]) == 1
    assert "encoder-mining was done with other settings or data" in " ".join(capsys.readouterr().err.split())
