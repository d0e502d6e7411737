"""Folders whose ONNX file is compressed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from qa_cluster.cluster.readers.reader_files import read_reader
from qa_cluster.errors import ModelError
from qa_cluster.reading.bundled import PACKED_FILE, unpacked
from qa_cluster.reading.local_reader import LocalReader
from qa_cluster.reading.manifest import MODEL_FILE
from tests.harness.tiny_readers import tiny_reader


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    tiny_reader(tmp_path, "tiny", last=False)
    (tmp_path / PACKED_FILE).write_bytes(gzip.compress((tmp_path / MODEL_FILE).read_bytes()))
    (tmp_path / MODEL_FILE).unlink()
    return tmp_path


def test_a_packed_reader_is_read_like_an_ordinary_one(packed: Path) -> None:
    files = read_reader(packed)
    assert (files.tag.partition("@")[0], len(files.model)) == ("tiny", files.manifest.model_bytes)
    assert LocalReader(packed, threads=1).manifest == files.manifest
    assert sorted(path.name for path in packed.iterdir()) == ["manifest.json", PACKED_FILE, "tokenizer.json"]


def test_an_ordinary_folder_is_used_as_it_is(tmp_path: Path) -> None:
    tiny_reader(tmp_path, "tiny", last=False)
    with unpacked(tmp_path) as folder:
        assert folder == tmp_path


@pytest.mark.parametrize("damage", ["cut", "no gzip", "flipped"])
def test_a_damaged_file_is_named(packed: Path, damage: str) -> None:
    path = packed / PACKED_FILE
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-9], "no gzip": b"x" + data[1:], "flipped": data[:-5] + b"xxxxx"}[damage])
    with pytest.raises(ModelError, match=r"reader\.onnx\.gz' is damaged, copy it again"):
        read_reader(packed)


def test_a_file_that_unpacks_to_more_than_its_manifest_says_is_refused(packed: Path) -> None:
    (packed / PACKED_FILE).write_bytes(gzip.compress(bytes(1 << 24)))
    with pytest.raises(ModelError, match=r"has more than the [0-9]+ bytes that its manifest names"):
        read_reader(packed)
