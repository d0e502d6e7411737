"""A compiled model in a file (`qa.model-cache-dir`) answers like the model. A bad file only costs time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qa_cluster.gears.inference.backends import compiled_files, openvino
from qa_cluster.gears.inference.backends.base import RuntimeLimits, blank_inputs, is_token_model
from qa_cluster.gears.inference.backends.onnx import OnnxModel
from qa_cluster.gears.inference.backends.openvino import OpenVinoModel
from qa_cluster.gears.inference.model_file import ModelFile
from qa_cluster.keys import manifest_key, model_key
from qa_cluster.models.bundle import default_reader
from qa_cluster.reading.manifest import MODEL_FILE
from qa_cluster.reading.precisions import METADATA_KEY
from tests.gears.files import load_bytes
from tests.gears.onnx_file import add_model, token_model
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import FEW_TOKENS, WORKER

READER = default_reader() / MODEL_FILE
LOADED = "is loaded from its file"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Store compiled files of small models too, and count compilations."""
    monkeypatch.setattr(openvino, "SMALLEST_MODEL_BYTES", 0)
    counted: list[int] = []
    compile_ = OpenVinoModel._compile

    def count(model: OpenVinoModel, file: ModelFile, threads: int) -> str | None:
        counted.append(threads)
        return compile_(model, file, threads)

    monkeypatch.setattr(OpenVinoModel, "_compile", count)
    return counted


def load(folder: Path, blob: bytes | None = None, threads: int = 1) -> OpenVinoModel:
    model = load_bytes("ONNX", "CPU", blob or token_model(), RuntimeLimits(threads, compiled_folder=str(folder)))
    assert isinstance(model, OpenVinoModel)
    return model


def score(model: OpenVinoModel) -> list[list[float]]:
    return [output.tolist() for output in model.run([np.array([[5, 6, 7]]), np.array([[1, 1, 0]])])]


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_the_bundled_reader_answers_alike_from_its_compiled_file(tmp_path: Path, compiled: list[int]) -> None:
    file = ModelFile(str(READER), READER.stat().st_size)
    first, second = (OpenVinoModel(file, 1, str(tmp_path / "kept")) for _ in range(2))
    assert compiled == [1]
    assert (first.inputs, first.outputs, first._longest) == (second.inputs, second.outputs, second._longest)
    for shape in ((1, 32), (4, 48), (1, 512)):
        inputs = blank_inputs(first.inputs, *shape)
        inputs[0] = np.random.default_rng(7).integers(1000, 20000, shape)
        for one, other in zip(first.run(inputs), second.run(inputs), strict=True):
            assert np.array_equal(one, other)
    for model in (first, second):
        with pytest.raises(Exception, match="rows of up to 512 tokens, got 513"):
            model.run(blank_inputs(first.inputs, 1, 513))


def test_a_model_is_compiled_once_for_each_content_processor_and_settings(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert score(load(tmp_path / "kept")) == score(load(tmp_path / "kept")) == [[[5.0, 6.0, 0.0]]]
    assert is_token_model(load(tmp_path / "kept"))
    assert compiled == [1]
    load(tmp_path / "kept", threads=2)
    assert compiled == [1, 2]
    other = load(tmp_path / "kept", add_model(2))
    assert [array.tolist() for array in other.run([np.float32([1, 2]), np.float32([3, 4])])] == [[4.0, 6.0]]
    assert compiled == [1, 2, 1]
    monkeypatch.setattr(openvino, "_processor", lambda: "another")
    load(tmp_path / "kept")
    assert compiled == [1, 2, 1, 1]
    kept = files(tmp_path / "kept")
    assert len(kept) == 4
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "kept", *kept)]
    assert modes == [0o700, *[0o600] * 4], "only its user may read folder and files"
    monkeypatch.setattr(openvino, "openvino_settings", lambda _: {"INFERENCE_PRECISION_HINT": "bf16"})
    load(tmp_path / "kept")
    assert compiled == [1, 2, 1, 1, 1]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


@pytest.mark.parametrize(
    "damage", [cut, flipped, lambda _: b"", lambda _: b"nonsense" * 100, lambda content: content[:10]]
)
def test_a_damaged_file_is_written_again(
    tmp_path: Path, compiled: list[int], damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path / "kept")
    (file,) = files(tmp_path / "kept")
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    assert score(load(tmp_path / "kept")) == [[[5.0, 6.0, 0.0]]]
    assert compiled == [1, 1]
    assert "the file is damaged" in caplog.text
    assert file.read_bytes() != damaged
    load(tmp_path / "kept")
    assert compiled == [1, 1]


def test_a_file_that_openvino_refuses_is_written_again(
    tmp_path: Path, compiled: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is valid, but the file is not a compiled model."""
    load(tmp_path / "kept")
    (file,) = files(tmp_path / "kept")
    kept = compiled_files.CompiledFiles(str(tmp_path / "kept"))
    found = kept.read(file.stem)
    assert found is not None
    file.unlink()
    kept.write(file.stem, found[0], b"no model")
    assert score(load(tmp_path / "kept")) == [[[5.0, 6.0, 0.0]]]
    assert compiled == [1, 1]
    assert "is removed, and the model is compiled again" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("no memory"), MemoryError("no memory")])
def test_a_model_that_cannot_be_exported_still_runs(
    tmp_path: Path,
    compiled: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def refuse(_: object) -> bytes:
        raise error

    monkeypatch.setattr("openvino.CompiledModel.export_model", refuse)
    model = load(tmp_path / "kept")
    assert (score(model), [port.name for port in model.outputs]) == ([[[5.0, 6.0, 0.0]]], ["score"])
    assert "the compiled model is not stored: no memory" in caplog.text
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_others_may_write_is_not_used(
    tmp_path: Path, compiled: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "kept"
    load(folder)
    folder.chmod(0o777)
    load(folder)
    assert compiled == [1, 1]
    load(folder, add_model(2))
    assert f"{folder} may be written by every user" in caplog.text
    assert len(files(folder)) == 1


def test_a_folder_that_cannot_be_created_is_not_needed(
    tmp_path: Path, compiled: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "kept", tmp_path / "missing" / "kept"):
        assert score(load(folder)) == [[[5.0, 6.0, 0.0]]]
        assert "compiled models are not stored" in caplog.text
        caplog.clear()
    assert compiled == [1, 1]


def test_a_full_disk_leaves_no_partial_file(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        assert score(load(tmp_path / "kept")) == [[[5.0, 6.0, 0.0]]]
    assert "No space left on device" in caplog.text
    assert files(tmp_path / "kept") == []


def test_the_least_recently_used_files_are_deleted(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    for threads in (1, 2, 3):
        load(folder, threads=threads)
    oldest_first = []
    for age, path in zip((300, 200, 100), files(folder), strict=True):
        os.utime(path, (path.stat().st_mtime - age,) * 2)
        oldest_first.append(path)
    part = folder / "0123456789abcdef.part"
    part.write_bytes(b"of a worker that has died")
    os.utime(part, (0, 0))
    young = folder / "fedcba9876543210.part"
    young.write_bytes(b"of a worker that writes")
    monkeypatch.setattr(compiled_files, "MAX_FOLDER_BYTES", 3 * oldest_first[0].stat().st_size)
    load(folder, threads=4)
    assert not oldest_first[0].exists()
    assert oldest_first[2].exists()
    assert len([path for path in files(folder) if path.suffix == ".compiled"]) == 3
    assert (part.exists(), young.exists()) == (False, True)


def test_a_model_that_is_too_large_for_the_folder_is_not_stored(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_files, "MAX_FILE_BYTES", 100)
    load(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_model_that_openvino_refuses_always_runs_in_onnx_runtime(tmp_path: Path, compiled: list[int]) -> None:
    for _ in range(2):
        limits = RuntimeLimits(compiled_folder=str(tmp_path / "kept"))
        assert isinstance(load_bytes("ONNX", "CPU", add_model(), limits), OnnxModel), "its shapes are not fixed"
    assert not (tmp_path / "kept").exists()


@pytest.mark.one_server("the server only passes the setting to the worker")
@pytest.mark.parametrize("inference_workers", [0, 1])
def test_a_restarted_worker_loads_its_model_from_the_file(
    server_binary: Path, tmp_path: Path, inference_workers: int
) -> None:
    settings = {
        "qa.model-processes": 0,
        "qa.model-cache-dir": tmp_path / "compiled",
        "qa.max-batch-tokens": FEW_TOKENS,
        "qa.worker-threads": 1,
        "qa.inference-workers": inference_workers,
        "qa.job-timeout-ms": 120_000,
    }
    # without the metadata of the precision, OpenVINO accepts the model on every processor
    model = READER.read_bytes().replace(METADATA_KEY.encode(), b"-" * len(METADATA_KEY))
    with Server(server_binary, settings, worker=WORKER) as server, server.client(socket_timeout=120) as client:
        server.wait_ready()
        client.set(manifest_key("t"), "a reader's")  # a new worker loads the models of readers at its start
        client.execute_command("AI.MODELSTORE", model_key("t"), "ONNX", "CPU", "BLOB", model)
        assert LOADED not in server.log.read_text()
        (file,) = files(tmp_path / "compiled")
        assert file.stat().st_size > READER.stat().st_size
        server.signal_worker(signal.SIGKILL)
        eventually(lambda: LOADED in server.log.read_text())
        server.wait_ready()
        assert client.config_get("qa.model-cache-dir") == {"qa.model-cache-dir": str(tmp_path / "compiled")}
