"""Loading in `qa_cluster.pipeline`: task, runtime and device; folders with a reader, with damaged files, or empty."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qa_cluster import pipeline
from qa_cluster.errors import ModelError
from qa_cluster.huggingface.pipeline import QuestionAnsweringPipeline
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.runtimes import RUNTIMES
from tests.unit.huggingface.pairs import ADA, PAIR, WHO


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes loading fast and reading impossible."""
    monkeypatch.setattr("qa_cluster.reading.local_reader.open_runner", lambda *_args, **_named: None)


@pytest.mark.usefixtures("unread")
def test_defaults_of_calls_can_be_given_at_the_start(
    qa: QuestionAnsweringPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = pipeline("question-answering", top_k=2)
    monkeypatch.setattr(both, "reader", qa.reader)
    assert len(both(**PAIR)) == 2
    assert both(**PAIR, top_k=1)["answer"] == "Ada Lovelace"
    with pytest.raises(ValueError, match="top_k"):
        pipeline("question-answering", top_k=0)


@pytest.mark.usefixtures("unread")
def test_an_unknown_task_and_arguments_without_effect() -> None:
    with pytest.raises(KeyError) as error:
        pipeline("summarization")
    assert str(error.value).startswith("unknown task 'summarization': the pipeline of qa-cluster has only")
    with pytest.warns(UserWarning, match="torch_dtype has no effect"):
        pipeline("question-answering", torch_dtype="auto", framework=None)
    with pytest.raises(ValueError, match="unknown parameter 'max_length'"):
        pipeline("question-answering", max_length=5)


@pytest.mark.parametrize(
    ("device", "kind", "said"),
    [(0, ModelError, "onnxruntime-gpu"), ("cuda:1", ModelError, "cuda:1"), ("mps", ValueError, "unknown device 'mps'")],
)
def test_a_missing_device(device: object, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        pipeline(device=device)


class TorchDevice:
    """An object that prints like a device of torch."""

    def __str__(self) -> str:
        return "cpu"


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("device", [-1, "cpu", None, TorchDevice()])
def test_names_of_the_processor(device: object) -> None:
    assert pipeline(device=device).reader.device == "cpu"


def test_a_folder_without_a_reader_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="qa-cluster model export deepset/roberta-base-squad2 FOLDER"):
        pipeline("question-answering", model="deepset/roberta-base-squad2")
    with pytest.raises(ModelError, match=r"has no manifest\.json"):
        pipeline("question-answering", model=tmp_path)
    with pytest.raises(ValueError, match="folder of an exported reader, got dict"):
        pipeline("question-answering", model={})  # type: ignore[arg-type]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundled_reader(), tmp_path / "reader"))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("reader.onnx", flip_a_bit, "damaged or from another export"),
        ("reader.onnx", Path.unlink, "cannot read model"),
        ("tokenizer.json", lambda file: file.write_text("{}"), "is not the tokenizer of"),
        ("tokenizer.json", Path.unlink, "tokenizer"),
    ],
)
def test_a_file_that_is_damaged_or_missing_is_refused(
    copy: Path, name: str, damage: Callable[[Path], object], said: str
) -> None:
    damage(copy / name)
    with pytest.raises(ModelError, match=said):
        pipeline(model=copy)


@pytest.mark.usefixtures("unread")
def test_the_readers_own_tokenizer_may_be_named(copy: Path, tmp_path: Path) -> None:
    for place in (copy, str(copy), copy / "tokenizer.json", bundled_reader()):
        assert pipeline(model=copy, tokenizer=place).task == "question-answering"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not the tokenizer of"):
        pipeline(model=copy, tokenizer=tmp_path)
    with pytest.raises(ValueError, match="leave it out"):
        pipeline(model=copy, tokenizer=object())  # type: ignore[arg-type]


def test_both_runtimes_answer(qa: QuestionAnsweringPipeline) -> None:
    (other,) = set(RUNTIMES) - {qa.reader.runtime}
    assert pipeline(runtime=other, threads=1)(**PAIR)["answer"] == qa(**PAIR)["answer"] == "Ada Lovelace"
    with pytest.raises(ValueError, match="unknown runtime 'tensorrt'"):
        pipeline(runtime="tensorrt")
    with pytest.raises(ValueError, match="needs the runtime onnxruntime"):
        pipeline(runtime="openvino", device="cuda")


def test_importing_the_package_is_light_and_the_pipeline_needs_no_torch() -> None:
    code = (
        "import sys, qa_cluster; heavy = {'numpy', 'tokenizers', 'openvino', 'torch', 'transformers'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "qa = qa_cluster.pipeline('question-answering', threads=1);"
        f"assert qa(question={WHO!r}, context={ADA!r})['answer'] == 'Ada Lovelace';"
        "assert not {'torch', 'transformers', 'openvino.tools.ovc'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=180)
