"""Reading question sets in both formats; errors name every fault."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.evaluation.examples import Example, load_examples, spread

ROWS = [
    {"question": "Who?", "context": "Ada did.", "answer": "Ada", "answer_start": 0},
    {"question": "When?", "context": "Ada did.", "answer": "", "answer_start": -1},
]
EXAMPLES = [Example("Who?", "Ada did.", ("Ada",), (0,)), Example("When?", "Ada did.", ())]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "Ada did.",
                    "qas": [
                        {"question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
                        {"question": "When?", "answers": []},
                    ],
                }
            ]
        }
    ]
}


def test_all_formats_read_the_same(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row) for row in ROWS) + "\n\n"
    (tmp_path / "set.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "set.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (tmp_path / "set.json").write_text(json.dumps(SQUAD), encoding="utf-8")
    for name in ("set.jsonl", "set.jsonl.gz", "set.json"):
        assert load_examples(tmp_path / name) == EXAMPLES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.csv", b"", "must end in"),
        ("set.jsonl", b"", "contains no question"),
        ("set.jsonl", b'{"question": "Who?"}', "line 1 is not an example"),
        ("set.jsonl", b"[1]", "line 1 is not an example"),
        ("set.jsonl", json.dumps(ROWS[0]).encode() + b"\nnot json", "line 2 is not an example"),
        ("set.jsonl", json.dumps({**ROWS[0], "question": " "}).encode(), "is empty"),
        ("set.jsonl", json.dumps({**ROWS[0], "context": 5}).encode(), "must be strings"),
        ("set.jsonl", b"\xff\xfe", "is not UTF-8"),
        ("set.jsonl.gz", b"not gzip", "cannot read"),
        ("set.jsonl.gz", gzip.compress(b"{" * 9000, mtime=0)[:40], "cannot read"),
        ("set.json", b"{}", "is not SQuAD format"),
        ("set.json", b"[]", "is not SQuAD format"),
        ("set.json", b'{"data": []}', "contains no question"),
        ("set.json", b"\xff", "is not UTF-8"),
        ("set.json", b"[" * 100_000, "is not SQuAD format: RecursionError"),
        ("set.jsonl", b"[" * 100_000, "line 1 is not an example"),
        ("set.jsonl", json.dumps({**ROWS[0], "question": "Wh\ud800?"}).encode(), "line 1: contains a lone surrogate"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as refused:
        load_examples(tmp_path / name)
    assert name in str(refused.value)


def squad(paragraph: object) -> bytes:
    return json.dumps({"data": [{"paragraphs": [SQUAD["data"][0]["paragraphs"][0], paragraph]}]}).encode()


@pytest.mark.parametrize(
    ("paragraph", "message"),
    [
        ([], r"data\[0\].paragraphs\[1\] must be an object with 'context'"),
        ({"context": "c"}, r"paragraphs\[1\] must be an object with 'qas'"),
        ({"context": "c", "qas": {}}, r"paragraphs\[1\].qas must be a list"),
        ({"context": "c", "qas": [{"answers": []}]}, r"qas\[0\] \(question 3\) must be an object with 'question'"),
        ({"context": "c", "qas": [{"question": "q"}]}, r"question 3\) must be an object with 'answers'"),
        ({"context": "c", "qas": [{"question": "q", "answers": [{}]}]}, r"question 3\).answers must be .* 'text'"),
        ({"context": 5, "qas": [{"question": "q", "answers": []}]}, r"question 3\): question, context, answers"),
        ({"context": "c", "qas": [{"question": " ", "answers": []}]}, r"question 3\): question or context is empty"),
    ],
)
def test_an_error_in_squad_format_names_the_place(tmp_path: Path, paragraph: object, message: str) -> None:
    (tmp_path / "set.json").write_bytes(squad(paragraph))
    with pytest.raises(InvalidInput, match=message):
        load_examples(tmp_path / "set.json")


def test_places_are_optional_and_impossible_questions_have_no_answer(tmp_path: Path) -> None:
    paragraph = {
        "context": "Ada did.",
        "qas": [
            {"question": "Who?", "answers": [{"text": "Ada"}]},
            {"question": "Why?", "is_impossible": True, "answers": [{"text": "Ada", "answer_start": 0}]},
        ],
    }
    (tmp_path / "set.json").write_bytes(squad(paragraph))
    found = load_examples(tmp_path / "set.json")[2:]
    assert found == [Example("Who?", "Ada did.", ("Ada",)), Example("Why?", "Ada did.", ())]


def test_an_answer_without_text_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(json.dumps({**ROWS[0], "answer": " "}), encoding="utf-8")
    assert load_examples(tmp_path / "set.jsonl") == [Example("Who?", "Ada did.", ())]
    answers = [{"text": "", "answer_start": 0}, {"text": "did", "answer_start": 4}]
    qas = [{"question": "What?", "answers": answers}, {"question": "Why?", "answers": answers[:1]}]
    (tmp_path / "set.json").write_bytes(squad({"context": "Ada did.", "qas": qas}))
    found = load_examples(tmp_path / "set.json")[2:]
    assert found == [Example("What?", "Ada did.", ("did",), (4,)), Example("Why?", "Ada did.", ())]


@pytest.mark.parametrize("name", ["set.json", "set.jsonl"])
def test_a_byte_order_mark_is_ignored(tmp_path: Path, name: str) -> None:
    text = json.dumps(SQUAD) if name == "set.json" else "\n".join(map(json.dumps, ROWS))
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert load_examples(tmp_path / name) == EXAMPLES


@pytest.mark.parametrize("name", ["none.json", "none.jsonl"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        load_examples(tmp_path / name)


def test_spread_chooses_from_the_whole_set() -> None:
    examples = [Example(str(i), "c", ()) for i in range(1000)]
    chosen = [int(example.question) for example in spread(examples, 10)]
    assert chosen == list(range(0, 1000, 100))
    assert spread(examples[:3], 10) == examples[:3]
    with pytest.raises(InvalidInput, match="limit is 0"):
        spread(examples, 0)
