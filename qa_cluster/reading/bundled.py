"""Finds and recognizes the bundled models, and unpacks folders whose ONNX file is compressed. This module does not load
a model runtime.

A packed folder has `reader.onnx.gz` instead of `reader.onnx`. Compression helps if each weight is a code of a few bits
(`models/quantization/rounding.py`). The manifest describes the uncompressed ONNX file.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

from qa_cluster.errors import ModelError

from .manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest

PACKED_FILE = f"{MODEL_FILE}.gz"
_PART_BYTES = 1 << 20


def bundled_reader() -> Path:
    """Return the folder of the reader that is bundled with the package."""
    return Path(str(files("qa_cluster.models"))) / "default"


def bundled_encoder() -> Path:
    """Return the folder of the encoder that is bundled with the package."""
    return Path(str(files("qa_cluster.models"))) / "encoder"


def is_bundled(size: int, parts: Iterable[bytes]) -> bool:
    """Return whether an ONNX file of `size` bytes is the model of the bundled reader or encoder, by its SHA-256.

    `parts`, the content of the file, is read only if the size is the size of a bundled model.
    """
    known = _bundled_sha256().get(size)
    if known is None:
        return False
    computed = hashlib.sha256()
    for part in parts:
        computed.update(part)
    return computed.hexdigest() == known


@cache
def _bundled_sha256() -> dict[int, str]:
    manifests = [json.loads((folder / MANIFEST_FILE).read_text()) for folder in (bundled_reader(), bundled_encoder())]
    return {manifest["model_bytes"]: manifest["model_sha256"] for manifest in manifests}


@contextmanager
def unpacked(folder: Path) -> Iterator[Path]:
    """Yield `folder`; if it is packed, yield a temporary copy with an uncompressed ONNX file.

    ModelError if the compressed file is damaged, or if its contents are larger than the manifest says.
    """
    if (folder / MODEL_FILE).is_file() or not (folder / PACKED_FILE).is_file():
        yield folder
        return
    with TemporaryDirectory(prefix="qa-reader-") as made:
        target = Path(made)
        for name in (MANIFEST_FILE, TOKENIZER_FILE):
            if (folder / name).is_file():
                copyfile(folder / name, target / name)
        limit = Manifest.load(folder / MANIFEST_FILE).model_bytes
        with (target / MODEL_FILE).open("wb") as file:
            for part in _parts(folder / PACKED_FILE, limit):
                file.write(part)
        yield target


def _parts(packed: Path, limit: int) -> Iterator[bytes]:
    """Yield the decompressed file in parts; ModelError if it has more than `limit` bytes."""
    made = 0
    try:
        with gzip.open(packed) as file:
            while part := file.read(_PART_BYTES):
                made += len(part)
                if made > limit:
                    raise ModelError(f"{str(packed)!r} has more than the {limit} bytes that its manifest names")
                yield part
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ModelError(f"{str(packed)!r} is damaged, copy it again: {error}") from error
