"""The preparation of training data. The tests need no torch."""

from __future__ import annotations

import gzip
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.models.examples.data import EMPTY_ANSWER, WRONG_OFFSET, load_dataset, write_examples
from qa_cluster.models.examples.holdout import hold_out, sentence_keys
from qa_cluster.models.examples.joining import join_contexts
from qa_cluster.models.examples.labelled import Labelled
from qa_cluster.models.training.encoding import group_batches
from qa_cluster.models.training.loop import learning_rate
from qa_cluster.models.training.settings import Stage, TrainingSettings

GOOD = {"question": "Who?", "context": "Ada wrote it.", "answer": "Ada", "answer_start": 0}
SENTENCES = [f"The {name} of chapter {number} was kept in a cellar." for number in range(60) for name in ("map", "key")]


def lines(path: Path, *rows: Any) -> Path:
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def chapter(number: int) -> Labelled:
    lead = f"Chapter {number} on maps says "
    context = f"{lead}word{number} was used. It is on the shelf{number % 7} now."
    return Labelled(f"Which word of chapter {number} is it, after all?", context, f"word{number}", len(lead), "s")


@pytest.fixture
def overlapping() -> list[Labelled]:
    """Overlapping windows of two sentences from two sources, like the windows of SQuAD paragraphs."""
    found = []
    for number in range(len(SENTENCES) - 1):
        context = f"{SENTENCES[number]} {SENTENCES[number + 1]}"
        source = "even" if number // 2 % 2 == 0 else "odd"
        question = f"Where was the thing of number {number} kept by them?"
        found.append(Labelled(question, context, "a cellar", context.index("a cellar"), source))
        found.append(Labelled(f"Why {number}?", SENTENCES[number], "", -1, source))
    return found


def test_lines_and_squad_give_the_same_examples(tmp_path: Path) -> None:
    squad = {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": GOOD["context"],
                        "qas": [
                            {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
                            {"question": "When?", "answers": [], "is_impossible": True},
                        ],
                    }
                ]
            }
        ]
    }
    (tmp_path / "it.json").write_text(json.dumps(squad), encoding="utf-8")
    rows = [{**GOOD, "source": "it"}, {**GOOD, "question": "When?", "answer": "", "answer_start": -1, "source": "it"}]
    from_lines = load_dataset(lines(tmp_path / "it.jsonl.gz", *rows))
    assert load_dataset(tmp_path / "it.json").examples == from_lines.examples
    assert [example.answer_start for example in from_lines.examples] == [0, -1]
    write_examples(tmp_path / "again.jsonl.gz", from_lines.examples)
    assert load_dataset(tmp_path / "again.jsonl.gz").examples == from_lines.examples


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not an object"),
        ({**GOOD, "answer_start": "0"}, "line 2 needs .* answer_start as an integer"),
        ({**GOOD, "answer_start": True}, "line 2 needs"),
        ({**GOOD, "context": None}, "line 2 needs question, context and answer as strings"),
        ({**GOOD, "question": " "}, "line 2: question or context is empty"),
        ({**GOOD, "question": "\ud800"}, "line 2 is not valid Unicode"),
        ("[" * 100_000, "line 2 is not JSON"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, row: Any, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        load_dataset(lines(tmp_path / "data.jsonl", GOOD, row))


def test_an_unusable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read training data"):
        load_dataset(tmp_path / "none.jsonl")
    with pytest.raises(InvalidInput, match=r"must end in \.json"):
        load_dataset(lines(tmp_path / "data.csv", GOOD))
    cut = lines(tmp_path / "cut.jsonl.gz", GOOD)
    cut.write_bytes(cut.read_bytes()[:-12])
    with pytest.raises(InvalidInput, match="cannot read training data"):
        load_dataset(cut)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9"}')
    with pytest.raises(InvalidInput, match="not UTF-8"):
        load_dataset(tmp_path / "latin.jsonl")
    with pytest.raises(InvalidInput, match="not SQuAD format"):
        load_dataset(lines(tmp_path / "other.json", {"data": [{"paragraphs": [{"qas": []}]}, 5]}))


def test_a_wrong_label_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = (GOOD, {**GOOD, "answer_start": 1}, {**GOOD, "answer_start": 90}, {**GOOD, "answer": ""})
    dataset = load_dataset(lines(tmp_path / "data.jsonl", *rows))
    assert len(dataset.examples) == 1
    assert dataset.dropped == {WRONG_OFFSET: 2, EMPTY_ANSWER: 1}
    with pytest.raises(InvalidInput, match="no usable example"):
        load_dataset(lines(tmp_path / "data.jsonl", rows[1]))


def test_no_held_out_sentence_is_in_the_training_data(overlapping: list[Labelled]) -> None:
    split = hold_out([overlapping[:50], overlapping], 40, seed=1)
    assert 40 <= len(split.held_out) <= 48
    assert {example.source for example in split.held_out} == {"even", "odd"}
    unseen = {key for example in split.held_out for key in sentence_keys(example.context)}
    for examples in split.training:
        assert examples
        assert not unseen & {key for example in examples for key in sentence_keys(example.context)}
    assert split.lost == 50 + len(overlapping) - sum(map(len, split.training)) - len(split.held_out)
    assert split == hold_out([overlapping[:50], overlapping], 40, seed=1)
    assert split.held_out != hold_out([overlapping[:50], overlapping], 40, seed=2).held_out
    with pytest.raises(InvalidInput, match="cannot hold out 200 of 238"):
        hold_out([overlapping], 200, seed=1)


def test_long_paragraphs_with_several_questions_are_held_out() -> None:
    """Only the held-out examples are lost, although all questions of a paragraph share its sentences."""
    examples = []
    for number in range(20):
        context = " ".join(f"Line {line} of paragraph {number} is about a map." for line in range(15))
        examples += [Labelled(f"Which map is {asked}?", context, "a map", context.index("a map")) for asked in range(5)]
    split = hold_out([examples], 20, seed=0)
    assert len(split.held_out) == 20
    assert split.lost == 0


def test_an_impossible_hold_out_is_an_error() -> None:
    shared = [
        Labelled(f"Who is number {number}?", f"{SENTENCES[0]} {SENTENCES[number]}", "", -1) for number in range(40)
    ]
    with pytest.raises(InvalidInput, match=r"no example can be held out: .* more than 8 other examples"):
        hold_out([shared], 5, seed=0)
    examples = [Labelled("Who?", sentence, "", -1) for sentence in SENTENCES]
    with pytest.raises(InvalidInput, match="holding out 60 examples leaves no example of file 1"):
        hold_out([hold_out([examples], 60, seed=0).held_out[:3], examples], 60, seed=0)


def test_joined_contexts_keep_the_answer(overlapping: list[Labelled]) -> None:
    for example in overlapping:
        assert join_contexts([example], share=0.0, max_tokens=256, seed="s") == [example]
    varied = [chapter(number) for number in range(80)]
    joined = join_contexts(varied, share=1.0, max_tokens=64, seed="s")
    longer = [(old, new) for old, new in zip(varied, joined, strict=True) if old != new]
    assert len(longer) > 40
    for old, new in longer:
        assert new.context[new.answer_start : new.answer_start + len(new.answer)] == old.answer
        assert old.context in new.context
        # the added context does not contain the answer
        assert new.context.count(old.answer) == old.context.count(old.answer)
        assert len(new.context) <= 64 * 4 + 1
    assert any(new.answer_start > old.answer_start for old, new in longer)
    assert joined == join_contexts(varied, share=1.0, max_tokens=64, seed="s")


def test_vague_questions_are_not_joined(overlapping: list[Labelled]) -> None:
    vague = [Labelled("What was kept?", example.context, "", -1, "s") for example in overlapping]
    common = [
        Labelled("Where was the thing kept by them all?", example.context, "", -1, "s") for example in overlapping
    ]
    for examples in (vague, common):
        assert join_contexts(examples, share=1.0, max_tokens=256, seed="s") == examples


@pytest.mark.parametrize(("batch_size", "batch_tokens"), [(8, 10**6), (64, 400), (1, 16)])
def test_every_window_is_read_once_per_epoch_with_windows_of_similar_length(batch_size: int, batch_tokens: int) -> None:
    lengths = np.array([random.Random(number).randint(5, 120) for number in range(700)], np.int64)
    single = list(np.arange(700)[:, None])
    batches = partial(group_batches, single, lengths, batch_size=batch_size, batch_tokens=batch_tokens)
    epoch = batches(seed=[1, 0, 0])
    assert sorted(np.concatenate(epoch)) == list(range(700))
    padded = sum(len(rows) * lengths[rows].max() for rows in epoch)
    assert padded < 1.1 * lengths.sum()
    for rows in epoch:
        assert len(rows) <= batch_size
        assert len(rows) == 1 or len(rows) * lengths[rows].max() <= batch_tokens
    assert all(map(np.array_equal, epoch, batches(seed=[1, 0, 0])))
    assert not all(map(np.array_equal, epoch, batches(seed=[1, 0, 1])))
    means = [lengths[rows].mean() for rows in epoch]
    # the lengths do not decide the order of the batches
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.5


def test_learning_rate_rises_then_falls_to_zero() -> None:
    rates = [learning_rate(step, 100, 2e-4, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(2e-5)
    assert max(rates) == pytest.approx(2e-4) == pytest.approx(rates[9])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 3e-6
    assert learning_rate(0, 1, 2e-4, 0.0) == pytest.approx(2e-4)


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("squad.json", Stage(Path("squad.json"), 2.0, 1e-4)),
        ("squad.json:1.5", Stage(Path("squad.json"), 1.5, 1e-4)),
        ("C:/data/squad.json:1:3e-5", Stage(Path("C:/data/squad.json"), 1.0, 3e-5)),
        ("s.jsonl.gz:.5:1e-4:0.4", Stage(Path("s.jsonl.gz"), 0.5, 1e-4, 0.4)),
    ],
)
def test_data_option(text: str, stage: Stage) -> None:
    assert Stage.parse(text) == stage


@pytest.mark.parametrize(
    ("text", "fault"),
    [("s.json:0", "epochs is 0"), ("s.json:1:0", "learning rate is 0"), ("s.json:1:1e-4:1.5", "share joined is 1.5")],
)
def test_data_option_out_of_its_limits(text: str, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        Stage.parse(text)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"stages": ()}, "there is no training data"),
        ({"seed": -1}, "seed is -1, must be from 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_tokens": 70, "max_question_tokens": 60}, "max_tokens is 70, must be at least 16 more than the 60"),
        ({"doc_stride": 200}, "doc_stride is 200, must be at most 184"),
        ({"precision": "int8"}, "unknown precision 'int8'; known: auto"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"warmup": 1.5}, "warmup is 1.5"),
    ],
)
def test_settings_out_of_their_limits(changed: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        TrainingSettings(**{"stages": (Stage(Path("s.json")),), **changed})
