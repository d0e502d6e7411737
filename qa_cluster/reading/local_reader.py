"""Loads an exported reader into this process and reads windows with it.

`qa-cluster model export` writes the folder of a reader: `reader.onnx`, `tokenizer.json`, `manifest.json`. ModelError is
raised if these files do not belong together. Several threads may share one reader; the model runs for one thread at a
time.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from qa_cluster.errors import ModelError
from qa_cluster.manifest_fields import ModelFiles, sha256_hex

from .bundled import unpacked
from .manifest import MANIFEST_FILE, MODEL_FILE, TOKENIZER_FILE, Manifest
from .precisions import suits_openvino
from .runtimes import RUNTIMES, Logits, open_runner
from .tokenization import ReaderTokenizer
from .windows import PairEncoder, Window, batches


class LocalReader:
    """A reader that is loaded into this process.

    >>> reader = LocalReader(bundled_reader())
    >>> reader.manifest.precision
    'int8'

    Args:
        folder: the folder of an exported reader.
        runtime: ``openvino`` or ``onnxruntime``. By default, a GPU uses ``onnxruntime``. The CPU uses the runtime that
            suits the reader's precision and this processor; if it is not installed, the other runtime.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        threads: the number of the runtime's threads; by default, the number of cores that this process may use.
    """

    def __init__(
        self, folder: Path, *, runtime: str | None = None, device: str = "cpu", threads: int | None = None
    ) -> None:
        if not folder.is_dir():
            raise ModelError(f"no folder {str(folder)!r}")
        self.folder = folder
        self.manifest = Manifest.load(folder / MANIFEST_FILE)
        tokenizer = read_tokenizer(folder / TOKENIZER_FILE, self.manifest)
        self.tokenizer = ReaderTokenizer(tokenizer)
        self.device = device
        self.runtime = runtime or installed_runtime(device, self.manifest.precision)
        self._pairs = PairEncoder(self.manifest)
        self._running = threading.Lock()
        with unpacked(folder) as files:
            check_model(files / MODEL_FILE, self.manifest)
            self._run = open_runner(files / MODEL_FILE, self.runtime, threads=threads or _cores(), device=device)

    def read(self, windows: Sequence[Window], *, batch_size: int = 1) -> list[Logits]:
        """Return the start and end logits of each window, in the order of `windows`.

        Each input token has one start and one end logit. At the end, there may be logits of padding. Up to `batch_size`
        windows run together.
        """
        logits: list[Logits | None] = [None] * len(windows)
        most = batch_size * self.manifest.max_tokens
        for group in batches(windows, max_batch=batch_size, max_batch_tokens=most):
            arrays = self._pairs.batch([windows[index] for index in group])
            with self._running:
                starts, ends = self._run(arrays)
            for row, index in enumerate(group):
                logits[index] = (starts[row], ends[row])
        return [found for found in logits if found is not None]


def check_tokenizer(place: Path, manifest: Manifest) -> None:
    """Raise ModelError if the tokenizer at `place`, a file or a folder, does not belong to the manifest."""
    read_tokenizer(place / TOKENIZER_FILE if place.is_dir() else place, manifest)


def read_tokenizer(path: Path, manifest: ModelFiles) -> bytes:
    """Return the contents of a model's tokenizer file; ModelError if it is not the file that the manifest names."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read tokenizer {str(path)!r}: {error.strerror}") from error
    found = sha256_hex(data)
    if found != manifest.tokenizer_sha256:
        raise ModelError(
            f"{str(path)!r} is not the tokenizer of {manifest.model_id!r}: sha256 {found}, "
            f"expected {manifest.tokenizer_sha256}"
        )
    return data


def check_model(path: Path, manifest: ModelFiles) -> None:
    """Raise ModelError if the hash of the file differs from the hash in the manifest.

    The file is read in parts, because a model may be larger than the free memory.
    """
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read model {str(path)!r}: {error.strerror}") from error
    if found != manifest.model_sha256:
        raise ModelError(
            f"{str(path)!r} is not the model of {manifest.model_id!r}: sha256 {found}, expected "
            f"{manifest.model_sha256}: the file is damaged or from another export"
        )


def installed_runtime(device: str, precision: str) -> str:
    """Return the runtime for a device and a precision: ``onnxruntime`` for a GPU.

    For the CPU, the function returns the runtime that suits the precision and this processor. If this runtime is not
    installed, the function returns the other runtime. ModelError if no runtime is installed.
    """
    if device != "cpu":
        return "onnxruntime"
    for name in RUNTIMES if suits_openvino(precision) else reversed(RUNTIMES):
        if find_spec(name) is not None:
            return name
    raise ModelError(f"no runtime ({' or '.join(RUNTIMES)}) is installed: run pip install openvino")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
