"""The export of small checkpoints, and errors for unusable checkpoints. The tests need the `export` extra."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from qa_cluster.errors import InvalidInput, ModelError
from qa_cluster.models.__main__ import main
from qa_cluster.models.checkpoints.checkpoint import load_checkpoint, torch_runner
from qa_cluster.models.checkpoints.pair_layout import learn_pair_layout
from qa_cluster.models.exporting import tracing
from qa_cluster.models.exporting.export import ExportOptions, export
from qa_cluster.reading.manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from tests.model.tiny_checkpoints import FAMILIES

transformers = pytest.importorskip("transformers", reason="the export extra is not installed")
torch = pytest.importorskip("torch", reason="the export extra is not installed")
pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

FAST = ExportOptions(runtimes=("openvino",), threads=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES["bert"].save(tmp_path_factory.mktemp("tiny"))


def with_config(folder: Path, **changes: Any) -> Path:
    """Change some fields of a checkpoint's config."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_the_folder_has_all_files_of_the_reader(checkpoint: Path, tmp_path: Path) -> None:
    stages: list[str] = []
    options = ExportOptions(
        model_id="tiny",
        provenance="made here",
        licence="none",
        runtimes=("openvino",),
        threads=1,
        progress=lambda stage, done, total: stages.append(stage),
    )
    manifest = export(str(checkpoint), tmp_path / "out", options)
    assert Manifest.load(tmp_path / "out" / MANIFEST_FILE) == manifest
    manifest.verify((tmp_path / "out" / MODEL_FILE).read_bytes(), (tmp_path / "out" / TOKENIZER_FILE).read_bytes())
    assert manifest.model_bytes == (tmp_path / "out" / MODEL_FILE).stat().st_size
    assert (manifest.model_id, manifest.provenance, manifest.licence) == ("tiny", "made here", "none")
    assert (manifest.precision, manifest.family, manifest.max_tokens, manifest.lowercase) == (
        "float32",
        "bert",
        128,
        True,
    )
    assert (manifest.calibration_error, manifest.waves, manifest.metrics) == (None, None, ())
    assert list(dict.fromkeys(stages)) == ["loading checkpoint", "writing ONNX", "converting", "measuring latency"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_earlier_reader_in_the_folder_is_replaced_only_by_a_complete_one(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = export(str(checkpoint), tmp_path / "out", FAST)
    with pytest.raises(ModelError, match="no question-answering head"):
        headless = with_config(shutil.copytree(checkpoint, tmp_path / "c"), architectures=["BertModel"])
        export(str(headless), tmp_path / "out", FAST)
    assert Manifest.load(tmp_path / "out" / MANIFEST_FILE) == before
    after = export(str(checkpoint), tmp_path / "out", replace(FAST, precision="float16"))
    assert Manifest.load(tmp_path / "out" / MANIFEST_FILE) == after != before


def test_a_checkpoint_without_the_head_is_refused(tmp_path: Path) -> None:
    folder = FAMILIES["bert"].save(tmp_path / "masked", head="ForMaskedLM")
    with pytest.raises(ModelError, match="no question-answering head: its config names BertForMaskedLM"):
        export(str(folder), tmp_path / "out")
    with pytest.raises(ModelError, match=r"lack .* 'qa_outputs"):
        export(str(with_config(folder, architectures=["BertForQuestionAnswering"])), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "cannot load config"),
        ("config.json", b"[]", "has the architecture None"),
        ("config.json", b'{"model_type": "no-such-thing"}', "'no-such-thing', which transformers .* does not support$"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0garbage", "cannot load weights"),
        ("model.safetensors", None, "cannot load weights"),
        ("model.safetensors", -1000, "cannot load weights"),
        ("tokenizer.json", b"{", "cannot load tokenizer"),
        ("tokenizer.json", None, "has no tokenizer.json"),
    ],
)
def test_corrupt_and_missing_files_are_refused(
    checkpoint: Path, tmp_path: Path, name: str, content: bytes | int | None, message: str
) -> None:
    """`content` replaces the file; an integer is the end of what is left of it."""
    path = shutil.copytree(checkpoint, tmp_path / "broken") / name
    before = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(before[:content] if isinstance(content, int) else content)
    with pytest.raises(ModelError, match=message):
        export(str(tmp_path / "broken"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_code_of_a_checkpoint_is_never_run(checkpoint: Path, tmp_path: Path) -> None:
    folder = with_config(
        shutil.copytree(checkpoint, tmp_path / "coded"),
        model_type="mine",
        auto_map={"AutoConfig": "mine.Mine", "AutoModelForQuestionAnswering": "mine.Mine"},
    )
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match=r"'mine', which transformers .*; the code in the checkpoint is never run"):
        export(str(folder), tmp_path / "out")
    # with a known architecture, the export uses transformers' own code
    native = with_config(folder, model_type="bert")
    assert export(str(native), tmp_path / "out", FAST).family == "bert"
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_read_without_running_their_code(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    weights = load_checkpoint(str(checkpoint)).network.state_dict()
    torch.save(weights, tmp_path / "pickled" / "pytorch_model.bin")
    loaded = load_checkpoint(str(tmp_path / "pickled"))
    assert all(torch.equal(value, weights[name]) for name, value in loaded.network.state_dict().items())

    torch.save({**weights, "extra": Touching(str(tmp_path / "ran"))}, tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(
        ModelError, match=r"contains objects other than tensors, which are not read: .* with model\.safetensors$"
    ):
        load_checkpoint(str(tmp_path / "pickled"))
    assert not (tmp_path / "ran").exists()


class Touching:
    """An object whose unpickling creates a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self._path),)


def test_a_pair_layout_that_shards_cannot_build_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "other")
    tokenizer = json.loads(load_checkpoint(str(checkpoint)).tokenizer_json)
    pair = tokenizer["post_processor"]["pair"]
    pair.insert(3, {"SpecialToken": {"id": "[SEP]", "type_id": 1}})
    (tmp_path / "other" / TOKENIZER_FILE).write_text(json.dumps(tokenizer), encoding="utf-8")
    config = json.loads((tmp_path / "other" / "tokenizer_config.json").read_text())
    # BertTokenizer would use another pair layout
    generic = {**config, "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "other" / "tokenizer_config.json").write_text(json.dumps(generic))
    with pytest.raises(ModelError, match="does not lay out pairs"):
        export(str(tmp_path / "other"), tmp_path / "out")


class Joined:
    """A tokenizer that adds a space before a context after a question."""

    cls_token_id = None

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.backend_tokenizer = self

    def encode(self, text: str, pair: str | None = None, **options: Any) -> Any:
        return self._backend.encode(text, pair if pair is None else "it " + pair, **options)


def test_a_context_whose_tokens_depend_on_the_question_is_refused(checkpoint: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert learn_pair_layout(tokenizer, "fine").context_type == 1
    with pytest.raises(ModelError, match="'odd' tokenizes a context differently after a question"):
        learn_pair_layout(Joined(tokenizer.backend_tokenizer), "odd")


def test_a_network_too_large_for_one_file_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_PROTOBUF_LIMIT", 10_000)
    with pytest.raises(ModelError, match=r"weights of 'tiny\d*' have \d+ bytes, an ONNX file holds at most 10000"):
        export(str(checkpoint), tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_file_with_other_results_than_the_network_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = load_checkpoint(str(FAMILIES["bert"].save(tmp_path / "other", num_hidden_layers=1)))
    real = tracing.write_onnx
    monkeypatch.setattr("qa_cluster.models.exporting.export.write_onnx", lambda mine, target: real(other, target))
    with pytest.raises(ModelError, match="cannot be exported: its ONNX file gives logits in openvino that differ"):
        export(str(checkpoint), tmp_path / "out", FAST)


@pytest.mark.parametrize("source", ["", "/no/such/folder", "./none", "a/b/c", "a/b@", "a/b@c@d"])
def test_a_source_that_is_neither_folder_nor_hub_id_is_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        export(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_examples": 0}, "max_examples is 0"),
        ({"precision": "int4"}, "unknown precision 'int4'"),
        ({"precision": "int8"}, "int8 needs --calibration"),
        ({"tolerance": -1.0}, "tolerance is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"runtimes": ("tpu",)}, "runtimes are"),
        ({"calibration": Path("none.json")}, "cannot read question set 'none.json'"),
        ({"evaluation": (Path("a/dev.json"), Path("b/dev.json"))}, "have the names dev, dev"),
    ],
)
def test_bad_options_are_refused_before_anything_is_loaded(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        export("/nowhere", tmp_path / "out", ExportOptions(**changes))


def test_an_id_that_looks_like_a_revision_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="id 'mine@2' contains an @"):
        export(str(checkpoint), tmp_path / "out", ExportOptions(model_id="mine@2"))


def test_too_few_held_out_questions_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    row = {"question": "Who?", "context": "Ada did.", "answer": "Ada", "answer_start": 0}
    (tmp_path / "few.jsonl").write_text("\n".join([json.dumps(row)] * 19))
    with pytest.raises(ModelError, match="there are 19 held-out examples, but calibration needs at least 20"):
        export("/nowhere", tmp_path / "out", ExportOptions(held_out=tmp_path / "few.jsonl"))


def test_a_checkpoint_is_not_overwritten(checkpoint: Path) -> None:
    before = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    with pytest.raises(InvalidInput, match="is the folder of the checkpoint"):
        export(str(checkpoint), checkpoint / ".." / checkpoint.name)
    assert {path.name: path.read_bytes() for path in checkpoint.iterdir()} == before


def test_a_reader_is_written_into_a_folder_of_another_file_system(tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system")
    # too few positions for the longest answer
    short = FAMILIES["bert"].save(tmp_path / "short", max_position_embeddings=20)
    with TemporaryDirectory(dir=elsewhere) as name:
        (tmp_path / "out").symlink_to(name)
        manifest = export(str(short), tmp_path / "out", FAST)
        assert Manifest.load(Path(name) / MANIFEST_FILE) == manifest
        assert manifest.max_answer_tokens == manifest.max_tokens == 20
        assert not [path for path in Path(name).iterdir() if path.is_dir()]


def test_an_export_that_is_terminated_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qa_cluster.models", "export", str(checkpoint), str(tmp_path / "new" / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path) as program:
        try:
            deadline = time.monotonic() + 120
            while not list(tmp_path.glob(".export-*")):
                assert program.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            program.terminate()
            assert program.wait(60) == 128 + signal.SIGTERM
        finally:
            program.kill()
    assert not list(tmp_path.iterdir())


def test_pytorch_is_measured_with_the_same_number_of_threads(checkpoint: Path) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            torch_runner(load_checkpoint(str(checkpoint)).network, threads)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlanguage: en\nlicense: cc-by-4.0\n---\nA reader.\n", "cc-by-4.0"),
        ("---\nlicense:\n- apache-2.0\ntags: []\n---\n", "apache-2.0"),
        ("---\nlicense: 'mit'\n---\n", "mit"),
        ("---\nlicense:\nlanguage: en\n---\n", "not stated"),
        ("---\nlanguage: en\n---\nlicense: see below\n---\n", "not stated"),
        ("license: mit\n", "not stated"),
    ],
)
def test_the_licence_comes_from_the_card_of_the_checkpoint(
    checkpoint: Path, tmp_path: Path, card: str, licence: str
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    (folder / "README.md").write_text(card)
    assert load_checkpoint(str(folder)).licence == licence


def test_a_foreign_file_at_the_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match="is not a folder"):
        export("/nowhere", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_command_reports_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "/no/such/folder", str(tmp_path / "out")]) == 1
    assert "error: no model folder" in capsys.readouterr().err
