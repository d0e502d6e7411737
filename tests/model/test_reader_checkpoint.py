"""A reader becomes a checkpoint again: its weights are those that were exported, and it can be trained further."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export and train extras are not installed")

import torch

from qa_cluster.errors import ModelError
from qa_cluster.models.checkpoints.reader_checkpoint import is_reader, write_reader_checkpoint
from qa_cluster.models.examples.data import write_examples
from qa_cluster.models.exporting.export import ExportOptions, export
from qa_cluster.reading.manifest import MANIFEST_FILE, Manifest
from tests.model.tiny_checkpoints import FAMILIES
from tests.model.toy_training import Silent, run, settings, toy, weights

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "initializer_range": 0.06}
# The largest norm of the errors of a tensor, as a share of the norm of the tensor.
FURTHEST = {"float32": 1e-6, "int8": 0.05}


def reader_of(folder: Path, family: str, precision: str) -> tuple[Path, Path]:
    """Return a checkpoint and the reader that was exported from it."""
    checkpoint = FAMILIES[family].save(folder / "checkpoint", **(SIZES if family == "bert" else {}))
    data = folder / "calibration.jsonl.gz"
    write_examples(data, toy(40))
    options = ExportOptions(precision=precision, calibration=data, max_examples=20, runtimes=("openvino",), threads=1)
    export(str(checkpoint), folder / "reader", options)
    return checkpoint, folder / "reader"


@pytest.fixture(scope="module", params=["float32", "int8"])
def bert(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A checkpoint, its reader, and the precision of the reader."""
    return (*reader_of(tmp_path_factory.mktemp("bert"), "bert", request.param), request.param)


def test_the_weights_are_those_that_were_exported(bert: tuple[Path, Path, str], tmp_path: Path) -> None:
    checkpoint, reader, precision = bert
    assert is_reader(reader) and not is_reader(checkpoint)
    write_reader_checkpoint(reader, tmp_path / "again")
    before, after = weights(checkpoint), weights(tmp_path / "again")
    assert before.keys() == after.keys()
    for name, weight in before.items():
        corrected = 0.05 if precision == "int8" else 0  # the export makes up for the mean error of its rounding
        assert (weight - after[name]).norm() <= FURTHEST[precision] * weight.norm() + corrected, name
    config = (tmp_path / "again" / "config.json").read_text(encoding="utf-8")
    assert '"num_attention_heads": 4' in config


def test_a_reader_is_trained_further(bert: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, reader, _ = bert
    write_examples(tmp_path / "toy.jsonl.gz", toy(200))
    seen = Silent()
    record = run(reader, tmp_path / "out", settings(tmp_path / "toy.jsonl.gz"), seen)
    assert record["new_head"] is False
    assert np.mean(seen.losses[-4:]) < np.mean(seen.losses[:4])
    assert all(torch.isfinite(weight).all() for weight in weights(tmp_path / "out").values())


def test_only_readers_that_are_understood_are_trained_further(tmp_path: Path) -> None:
    _, roberta = reader_of(tmp_path / "other", "roberta", "float32")
    with pytest.raises(ModelError, match="family 'roberta': only readers of the family 'bert'"):
        write_reader_checkpoint(roberta, tmp_path / "again")
    manifest = Manifest.load(roberta / MANIFEST_FILE)
    (roberta / MANIFEST_FILE).write_text(replace(manifest, family="bert").to_json(), encoding="utf-8")
    with pytest.raises(ModelError, match="no weights of a BERT"):
        write_reader_checkpoint(roberta, tmp_path / "again")
    assert not (tmp_path / "again").exists()
