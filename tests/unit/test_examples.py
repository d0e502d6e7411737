"""Question sets are read in both formats; what is wrong in one is named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from qa_cluster.errors import InvalidInput
from qa_cluster.examples import Example, load_examples, spread

ROWS = [
    {"question": "Who?", "context": "Ada did.", "answer": "Ada", "answer_start": 0},
    {"question": "When?", "context": "Ada did.", "answer": "", "answer_start": -1},
]
EXAMPLES = [Example("Who?", "Ada did.", ("Ada",)), Example("When?", "Ada did.", ())]
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
        assert load_examples(tmp_path / name, limit=1) == EXAMPLES[:1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.csv", b"", "must end in"),
        ("set.jsonl", b"", "holds no question"),
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
        ("set.json", b'{"data": []}', "holds no question"),
        ("set.json", b"\xff", "is not UTF-8"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message) as refused:
        load_examples(tmp_path / name)
    assert name in str(refused.value)


def test_missing_file_and_bad_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        load_examples(tmp_path / "none.json")
    with pytest.raises(InvalidInput, match="limit is 0"):
        load_examples(tmp_path / "none.json", limit=0)


def test_spread_takes_from_everywhere() -> None:
    examples = [Example(str(i), "c", ()) for i in range(1000)]
    chosen = [int(example.question) for example in spread(examples, 10)]
    assert chosen == list(range(0, 1000, 100))
    assert spread(examples[:3], 10) == examples[:3]
