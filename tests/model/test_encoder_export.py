"""The export of an encoder: shards can load its files, and the vectors of int8 are close to the network's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extra is not installed")

from qa_cluster.cluster.readers.reader_files import read_reader
from qa_cluster.errors import ModelError
from qa_cluster.models.exporting.encoder import EncoderOptions, export_encoder
from qa_cluster.models.recipe import tiny
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.manifest import TOKENIZER_FILE
from qa_cluster.reading.runtimes import RUNTIMES, open_vectors
from qa_cluster.vectors.encoder_manifest import ENCODER_FILE, EncoderManifest

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
TEXTS = [f"Number {number} of the texts says {word}." for number in range(12) for word in ("little", "a lot more than")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    tiny.save(folder, "bert", 1)
    return folder


def options(precision: str) -> EncoderOptions:
    return EncoderOptions("tiny", "CC0", "random weights", TEXTS[::2], TEXTS[1::2], precision, threads=1)


@pytest.fixture(scope="module", params=["float32", "int8"])
def exported(request: pytest.FixtureRequest, checkpoint: Path) -> tuple[Path, EncoderManifest]:
    folder = checkpoint.parent / request.param
    return folder, export_encoder(checkpoint, folder, options(request.param))


def test_shards_can_load_the_files(exported: tuple[Path, EncoderManifest]) -> None:
    folder, manifest = exported
    assert read_reader(folder).manifest == manifest
    assert (manifest.dims, manifest.precision, manifest.head, manifest.tail) == (32, folder.name, (101,), (102,))
    assert manifest.agreement is not None
    assert manifest.agreement.texts == len(TEXTS) // 2
    assert manifest.agreement.least > (0.9999 if manifest.precision == "float32" else 0.97)
    assert sorted(path.name for path in folder.iterdir()) == [ENCODER_FILE, "manifest.json", TOKENIZER_FILE]
    assert (folder / TOKENIZER_FILE).read_bytes() == (bundled_reader() / TOKENIZER_FILE).read_bytes()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_padding_does_not_change_a_vector(exported: tuple[Path, EncoderManifest], runtime: str) -> None:
    run = open_vectors(exported[0] / ENCODER_FILE, runtime, threads=1)
    ids = np.array([[101, 2000, 2001, 102]], np.int64)
    alone = run({"input_ids": ids, "attention_mask": np.ones((1, 4), np.int64)})
    padded = np.zeros((2, 16), np.int64)
    padded[0, :4], padded[1] = ids[0], 1999
    mask = np.ones((2, 16), np.int64)
    mask[0, 4:] = 0
    together = run({"input_ids": padded, "attention_mask": mask})
    assert np.linalg.norm(alone, axis=1) == pytest.approx(1, abs=1e-4)
    assert float((alone[0] * together[0]).sum()) > 0.9999


def test_a_folder_without_an_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot load the encoder"):
        export_encoder(tmp_path, tmp_path / "out", options("int8"))
