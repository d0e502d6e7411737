"""Training data with groups, titles and sections. Only the tests with tokenizers need transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.models.examples.data import LOST_GROUP, group_line, load_dataset, write_examples
from qa_cluster.models.examples.labelled import UNLABELLED, Labelled
from qa_cluster.models.training.encoding import PREFIX, WindowEncoder, Windows, group_batches, group_rows
from tests.model.tiny_checkpoints import FAMILIES
from tests.model.toy_training import save_base

HELD = {"context": "Ada wrote it.", "answer": "Ada", "answer_start": 0, "title": "Works"}
GROUP: dict[str, Any] = {
    "question": "Who?",
    "positives": [HELD],
    "negatives": [{"context": "Nobody.", "section": "A > B"}],
}


def dataset(path: Path, *rows: Any) -> Any:
    file = path / "groups.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return load_dataset(file)


def test_the_examples_of_a_group_have_the_same_number(tmp_path: Path) -> None:
    unanswerable = {**GROUP, "question": "When?", "positives": []}
    single = {"question": "What?", **HELD}
    found = dataset(tmp_path, GROUP, unanswerable, single)
    assert [example.group for example in found.examples] == [1, 1, 2, -1]
    assert [example.answer_start for example in found.examples] == [0, -1, -1, 0]
    assert [example.title for example in found.examples] == ["Works", "", "", "Works"]
    assert found.examples[1].section == "A > B"
    assert found.grouped
    again = [json.loads(group_line("Who?", "", found.examples[:2]))]
    assert again == [{**GROUP, "source": ""}]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"positives": None}, "needs positives and negatives as arrays"),
        ({"negatives": [5]}, "needs positives and negatives as arrays"),
        ({"negatives": [{}]}, "needs question, context and answer"),
        ({"positives": [{**HELD, "answer_start": -1}]}, "a positive needs an answer"),
        ({"positives": [], "negatives": []}, "a group without a passage"),
        ({"negatives": [{"context": "x", "title": 5}]}, "title and section must be strings"),
    ],
)
def test_a_bad_group_is_named(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidInput, match=f"line 2.*{fault}"):
        dataset(tmp_path, GROUP, {**GROUP, **change})


def test_a_group_with_a_wrong_answer_is_dropped_completely(tmp_path: Path) -> None:
    found = dataset(tmp_path, {**GROUP, "positives": [{**HELD, "answer_start": 1}]}, GROUP)
    assert len(found.examples) == 2
    assert found.dropped[LOST_GROUP] == 1


def test_unlabelled_examples_are_distinguished_from_unanswerable_ones(tmp_path: Path) -> None:
    found = dataset(tmp_path, {"question": "Who?", "context": "Ada.", "answer": None, "answer_start": None})
    assert found.examples == [Labelled("Who?", "Ada.", "", UNLABELLED)]
    assert found.unlabelled == 1
    write_examples(tmp_path / "again.jsonl.gz", found.examples)
    assert load_dataset(tmp_path / "again.jsonl.gz").examples == found.examples
    with pytest.raises(InvalidInput, match="both null: unknown"):
        dataset(tmp_path, {"question": "Who?", "context": "Ada.", "answer": None, "answer_start": 0})


def test_titles_of_squad_and_of_written_passages_are_read(tmp_path: Path) -> None:
    paragraph = {"context": "Ada wrote it.", "qas": [{"question": "Who?", "answers": []}]}
    (tmp_path / "it.json").write_text(json.dumps({"data": [{"title": "Ada", "paragraphs": [paragraph]}]}))
    assert load_dataset(tmp_path / "it.json").examples[0].title == "Ada"
    asked = {"question": "Who?", "answer": "Ada", "kind": "who", "style": "full"}
    row = {"domain": "news", "title": "T", "section": "S", "text": "Ada wrote it.", "questions": [asked]}
    (example,) = dataset(tmp_path, row).examples
    assert (example.title, example.section) == ("T", "S")


def made(sizes: list[int], seed: int = 0) -> Windows:
    """Windows of random lengths in groups of the given sizes. The last window of each group has the answer."""
    random = np.random.default_rng(seed)
    count = sum(sizes)
    lengths = random.integers(8, 60, count)
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    groups = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    last = np.diff(groups, append=groups[-1] + 1) > 0
    ends = np.where(last, 5, 0).astype(np.int32)
    empty = np.zeros(bounds[-1], np.int32)
    spans = np.zeros((bounds[-1], 2), np.int32)
    known = np.ones(count, np.bool_)
    return Windows(empty, empty.astype(np.uint8), bounds, ends, ends, groups, spans, groups, known)


def test_a_step_has_complete_groups_within_its_limits() -> None:
    windows = made([1, 4, 2, 3, 9, 1, 5, 40, 2] * 20)
    groups = group_rows(windows, batch_size=16, batch_tokens=500)
    whole = [rows.tolist() for rows in groups]
    batches = group_batches(groups, windows.lengths, batch_size=16, batch_tokens=500, seed=[1])
    assert sorted(np.concatenate(batches)) == sorted(row for rows in whole for row in rows)
    for batch in batches:
        assert len(batch) <= 16
        assert len(batch) * windows.lengths[batch].max() <= 500
        numbers = windows.groups[batch]
        for number in set(numbers.tolist()):
            rows = batch[numbers == number].tolist()
            assert rows == whole[number]
            assert np.flatnonzero(numbers == number).tolist() == list(
                range(list(numbers).index(number), list(numbers).index(number) + len(rows))
            )
    same = group_batches(groups, windows.lengths, batch_size=16, batch_tokens=500, seed=[1])
    assert all((a == b).all() for a, b in zip(batches, same, strict=True))
    other = group_batches(groups, windows.lengths, batch_size=16, batch_tokens=500, seed=[2])
    assert [batch.tolist() for batch in other] != [batch.tolist() for batch in batches]


def test_a_group_that_is_too_large_keeps_its_answer() -> None:
    windows = made([40])
    (rows,) = group_rows(windows, batch_size=16, batch_tokens=10_000)
    assert rows.tolist() == [*range(15), 39]
    (rows,) = group_rows(windows, batch_size=16, batch_tokens=1)
    assert rows.tolist() == [39]


@pytest.fixture(scope="module", params=["bert", "mpnet", "roberta"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers", reason="the train extra is not installed")
    assert request.param in FAMILIES
    folder = save_base(tmp_path_factory.mktemp("base"), request.param)
    return transformers.AutoTokenizer.from_pretrained(folder)


def encoder(tokenizer: Any, **changed: Any) -> WindowEncoder:
    return WindowEncoder(tokenizer, max_tokens=48, doc_stride=8, max_question_tokens=8, **changed)


def test_every_window_has_the_prefix_and_the_answer_keeps_its_offsets(tokenizer: Any) -> None:
    text = " ".join(["the old map was kept in the small box by the red key"] * 5) + " crimson"
    place = Labelled("which colour?", text, "crimson", text.index("crimson"), "s", "old book", "red > blue")
    bare = replace(place, title="", section="")
    plain = encoder(tokenizer).windows([place, bare])
    found = encoder(tokenizer, title_share=1.0).windows([bare, place, bare])
    assert np.array_equal(
        found.ids[: found.bounds[np.count_nonzero(found.owners == 0)]], plain.ids[: len(plain.ids) // 2]
    )
    assert found.lengths.max() <= 48
    prefix = tokenizer("old book > red > blue", add_special_tokens=False)["input_ids"]
    prefix += tokenizer("|", add_special_tokens=False)["input_ids"]
    held = 0
    for row in np.flatnonzero(found.owners == 1):
        part = slice(found.bounds[row], found.bounds[row + 1])
        spans, ids = found.spans[part], found.ids[part]
        mine = np.flatnonzero(spans[:, 0] == PREFIX)
        assert ids[mine].tolist() == prefix
        assert spans[mine[-1] + 1, 0] >= 0  # the context follows the prefix
        assert len(set(found.types[part][mine[0] : mine[-1] + 2].tolist())) == 1
        if found.ends[row]:
            held += 1
            assert text[spans[found.starts[row], 0] : spans[found.ends[row], 1]].strip() == "crimson"
    assert held >= 1


def test_some_questions_get_prefixes_for_all_their_contexts(tokenizer: Any) -> None:
    examples = [
        Labelled(f"which colour {number}?", f"the {word} box", "", -1, title="old book")
        for number in range(40)
        for word in ("red", "blue", "green")
    ]
    found = encoder(tokenizer, title_share=0.5, seed="3").windows(examples)
    has = [
        bool((found.spans[found.bounds[row] : found.bounds[row + 1], 0] == PREFIX).any()) for row in range(len(found))
    ]
    assert all(len(set(has[first : first + 3])) == 1 for first in range(0, 120, 3))
    assert 20 < sum(has) < 100
    again = encoder(tokenizer, title_share=0.5, seed="3").windows(examples)
    assert np.array_equal(found.ids, again.ids)
