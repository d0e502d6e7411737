"""The baseline ranks with bm25s and reads with plain PyTorch. The tests need the `bench` extra."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.models.__main__ import main
from qa_cluster.models.evaluation.reference import PlainReader, rank, run_reference
from qa_cluster.reading.manifest import TOKENIZER_FILE

pytest.importorskip("bm25s", reason="the bench extra is not installed")
transformers = pytest.importorskip("transformers", reason="the bench extra is not installed")
torch = pytest.importorskip("torch", reason="the bench extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

SENTENCES = ["Ada wrote the first program.", "The Nile flows north.", "Rome is the capital of Italy."]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, reader: Path) -> Path:
    """The checkpoint in QA_TEST_CHECKPOINT, or a small network with random weights."""
    if given := os.environ.get("QA_TEST_CHECKPOINT"):
        return Path(given)
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    transformers.BertForQuestionAnswering(transformers.BertConfig(**shape)).save_pretrained(folder)
    shutil.copy(reader / TOKENIZER_FILE, folder)
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **names}))
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    rows = [
        {"question": "What flows north?", "context": SENTENCES[1], "answer": "The Nile", "answer_start": 0},
        {"question": "What is the capital of Italy?", "context": SENTENCES[2], "answer": "Rome", "answer_start": 0},
        {"question": "Who wrote the program?", "context": SENTENCES[0], "answer": "Ada", "answer_start": 0},
        {"question": "Why?", "context": SENTENCES[0], "answer": "", "answer_start": -1},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_sentences_are_ranked_by_bm25() -> None:
    found = rank(SENTENCES, ["Which capital has Italy?", "program", "?"], 20)
    assert [row[0][0] for row in found[:2]] == [2, 0]
    assert found[1][0][1] > 0
    assert [len(row) for row in found] == [3, 3, 3]


def test_the_best_span_of_a_sentence_is_the_same_alone_and_in_a_batch(checkpoint: Path) -> None:
    reader = PlainReader(checkpoint, 1)
    pairs = [("Who wrote the program?", sentence) for sentence in SENTENCES]
    together = reader.read(pairs, lambda *_: None)
    for pair, (text, score) in zip(pairs, together, strict=True):
        [(alone, alone_score)] = reader.read([pair], lambda *_: None)
        assert (alone, alone_score) == (text, pytest.approx(score, abs=1e-4))
        assert text
        assert text in pair[1]


def test_the_score_is_relative_to_the_null_score_and_the_highest_of_all_spans(checkpoint: Path) -> None:
    reader = PlainReader(checkpoint, 1)
    [(text, score)] = reader.read([("Who wrote the program?", SENTENCES[0])], lambda *_: None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    encoded = tokenizer("Who wrote the program?", SENTENCES[0], return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        output = transformers.AutoModelForQuestionAnswering.from_pretrained(checkpoint)(**encoded)
    start, end = output.start_logits[0].numpy(), output.end_logits[0].numpy()
    inside = [i for i, part in enumerate(encoded.sequence_ids(0)) if part == 1]
    best = max((start[i] + end[j], i, j) for i in inside for j in inside if i <= j < i + 30)
    assert score == pytest.approx(float(best[0] - start[0] - end[0]), abs=1e-4)
    assert text == SENTENCES[0][offsets[best[1]][0] : offsets[best[2]][1]]
    assert np.isfinite(score)


def test_program_answers_every_question(checkpoint: Path, questions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reference", str(checkpoint), str(questions), "--k", "2", "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["k"], found["sentences"], found["places"]) == (2, 3, [0, 0, 0, None])
    assert len(found["plain"]) == len(found["ranked"]) == 4
    assert main(["reference", str(checkpoint), str(questions), "--limit", "1", "--threads", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["plain"]) == 1


def test_unusable_input_is_refused(tmp_path: Path, checkpoint: Path, questions: Path) -> None:
    with pytest.raises(InvalidInput, match="k is 0"):
        run_reference(checkpoint, questions, k=0)
    with pytest.raises(ModelError, match="no checkpoint folder"):
        run_reference(tmp_path / "none", questions)
    with pytest.raises(ModelError, match="cannot load checkpoint"):
        run_reference(tmp_path, questions)
