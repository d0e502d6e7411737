"""TORCH models in process: names, types and shapes of inputs and outputs, and refusals."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from qa_cluster.errors import InferenceFailed, ModelError
from qa_cluster.gears.inference.backends.base import CompiledModel, RuntimeLimits
from tests.gears.files import load_bytes
from tests.torch import models

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def load(blob: bytes, device: str = "CPU") -> CompiledModel:
    return load_bytes("TORCH", device, blob, RuntimeLimits(threads=2))


def test_ports_are_those_of_forward() -> None:
    model = load(models.file_of(models.AddAndOne()))
    assert [port.name for port in model.inputs] == ["a", "b"]
    assert [port.name for port in model.outputs] == ["", ""]
    assert len(load(models.file_of(models.Add())).outputs) == 1


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "i1", "<i2", "<i4", "<i8", "u1"])
def test_types_are_kept(dtype: str) -> None:
    (total,) = load(models.file_of(models.Add())).run([np.array([[1, 2]], dtype), np.array([[3, 4]], dtype)])
    assert total.dtype == np.dtype(dtype) and total.tolist() == [[4, 6]]


def test_a_reader_of_three_inputs() -> None:
    model = load(models.file_of(models.TokenReader()))
    ids = np.array([[5, 6, 7]])
    start, end = model.run([ids, np.array([[1, 1, 0]]), np.zeros((1, 3), "<i8")])
    assert start.dtype == np.dtype("<f4") and start.tolist() == [[5.0, 6.0, 0.0]]
    assert end.tolist() == [[-5.0, -6.0, 0.0]]


def test_inputs_are_not_changed_and_threads_are_set() -> None:
    given = np.array([1.0, 2.0], "<f4")
    given.setflags(write=False)
    (changed,) = load(models.file_of(models.InPlace())).run([given])
    assert (changed.tolist(), given.tolist()) == ([2.0, 3.0], [1.0, 2.0])
    assert torch.get_num_threads() == 2


def newer_file() -> bytes:
    """A file of a version that is too new for torch."""
    source, target = io.BytesIO(models.file_of(models.Add())), io.BytesIO()
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"999\n" if name.endswith("/version") else old.read(name))
    return target.getvalue()


@pytest.mark.parametrize(
    ("blob", "device", "message"),
    [
        (b"", "CPU", "not a TorchScript file"),
        (b"garbage" * 1000, "CPU", "not a TorchScript file"),
        (models.file_of(models.Add())[:-500], "CPU", "not a TorchScript file"),
        (newer_file(), "CPU", "version 999.*maximum supported version"),
        (models.file_of(models.Saving()), "CPU", "uses save"),
        (models.file_of(models.Unchecked()), "CPU", "uses _sparse_coo_tensor_unsafe"),
        (models.file_of(models.Commanding()), "CPU", "uses redis, which is forbidden in models"),
        (models.file_of(models.Flagged()), "CPU", "scale, a float, but a model gets only tensors"),
        (models.file_of(models.Add()), "GPU:63", "unsupported device GPU:63"),
    ],
)
def test_refusals_are_one_line(blob: bytes, device: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(blob, device)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def changed_code(blob: bytes, old: bytes, new: bytes) -> bytes:
    """A file with changed code."""
    source, target = io.BytesIO(blob), io.BytesIO()
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            after.writestr(name, content.replace(old, new) if name.endswith(".py") else content)
    return target.getvalue()


@pytest.mark.parametrize("name", [b'getattr(torch, "a" "dd")', b'getattr((ops.aten), "\\x61dd")'])
def test_operators_are_called_by_their_names(name: bytes) -> None:
    blob = models.file_of(models.Add())
    with pytest.raises(ModelError, match="which is forbidden in models"):
        load(changed_code(blob, b"torch.add", name))


def test_modules_in_a_row_are_distinguished_by_number() -> None:
    assert len(load(models.file_of(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()))).outputs) == 1


def test_code_that_would_run_at_the_load_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "written"
    with pytest.raises(ModelError, match="uses save, which is forbidden in models"):
        load(models.file_of(models.SavingAtLoad(str(target))))
    assert not target.exists()


def test_errors_of_a_run_are_one_line() -> None:
    with pytest.raises(InferenceFailed) as caught:
        load(models.file_of(models.Add())).run([np.ones(2, "<f4"), np.ones(3, "<f4")])
    assert str(caught.value).startswith("The size of tensor a (2) must match the size of tensor b (3)")
    assert "\n" not in str(caught.value)
    with pytest.raises(InferenceFailed, match="returned str"):
        load(models.file_of(models.Text())).run([np.ones(1, "<f4")])
    with pytest.raises(InferenceFailed, match="STRING"):
        load(models.file_of(models.InPlace())).run([np.array(["x"], object)])
