"""Runs ONNX models in OpenVINO on a CPU, if their shapes can be checked before a run.

After a run that fails because of wrong shapes, later runs of the model read wrong memory. So this module accepts only
models with fixed shapes, and token models. All inputs of a token model have the same shape, and the loader determines
their maximum length.

With a folder for compiled models (`compiled_files.py`), a model is checked and compiled once for each kind of
processor. The file contains the compiled model and the results of the checks.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import threading
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from qa_cluster.errors import InferenceFailed
from qa_cluster.reading import lean_openvino  # noqa: F401 (must come first: a plain `import openvino` takes twice as long)

# isort: split
import openvino
from openvino.frontend import FrontEnd, FrontEndManager

from qa_cluster.reading.precisions import openvino_settings, precision_of

from ..model_file import ModelFile
from ..tensors import Array
from .base import Port, is_token_model
from .compiled_files import SMALLEST_MODEL_BYTES, CompiledFiles

logger = logging.getLogger(__name__)
_UNSUPPORTED = frozenset({"string", "dynamic", "undefined"})
_ANY_LENGTH = 1 << 20
_USUAL_LENGTH = 512


@cache
def _core() -> openvino.Core:
    return openvino.Core()


@cache
def _onnx() -> FrontEnd:
    return FrontEndManager().load_by_framework("onnx")


def _read(file: ModelFile) -> openvino.Model:
    # uses only OpenVINO's reader of ONNX files, because its reader of TensorFlow files slowly reads any text and prints
    # errors
    if not _onnx().supported(file.path):
        raise RuntimeError("the file is not an ONNX file")
    return _core().read_model(file.path)


def _accepts(model: openvino.Model, length: int) -> bool:
    tried = model.clone()
    try:
        tried.reshape({port: openvino.PartialShape([2, length]) for port in tried.inputs})
    except RuntimeError:
        return False
    return True


def _find_longest(model: openvino.Model) -> int:
    """Return the maximum row length of a token model in tokens, usually the size of its table of positions.

    The result is `_ANY_LENGTH` if the model has no such limit.
    """
    if _accepts(model, _ANY_LENGTH):
        return _ANY_LENGTH
    most, too_many = 0, _ANY_LENGTH
    tries = [_USUAL_LENGTH, _USUAL_LENGTH + 1]
    while too_many - most > 1:
        length = tries.pop(0) if tries and most < tries[0] < too_many else (most + too_many) // 2
        if _accepts(model, length):
            most = length
        else:
            too_many = length
    return most


def _port(port: openvino.ConstOutput | openvino.Output, position: int) -> Port:
    type_name = port.get_element_type().get_type_name()
    if type_name in _UNSUPPORTED:
        raise RuntimeError(f"port {position} has type {type_name}")
    name = port.get_any_name() if port.get_names() else str(position)
    shape = port.get_partial_shape()
    dims = None if shape.rank.is_dynamic else tuple(None if d.is_dynamic else d.get_length() for d in shape)
    return Port(name, np.dtype(port.get_element_type().to_dtype()), dims)


def _ports(model: openvino.Model | openvino.CompiledModel) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return the inputs and the outputs."""
    inputs, outputs = (tuple(_port(port, i) for i, port in enumerate(each)) for each in (model.inputs, model.outputs))
    return inputs, outputs


def _settings(threads: int, precision: str | None) -> dict[str, Any]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": threads,
        **openvino_settings(precision),
        # off, because with pinning all workers of the host would use the same cores
        "ENABLE_CPU_PINNING": False,
    }


@cache
def _processor() -> str:
    """Return the processor features that determine OpenVINO's kernels.

    The names of files depend on these features, because a folder may be moved to another machine.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    # the line of features is named flags on x86 and Features on ARM
    told = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return "\n".join([platform.machine(), _core().get_property("CPU", "FULL_DEVICE_NAME"), *told])


def _name(file: ModelFile, threads: int) -> str:
    """Return the file name for a compiled model: a hash of everything that the content depends on."""
    digest = hashlib.blake2b(digest_size=20)
    for part in (openvino.get_version(), _processor(), str(threads)):
        digest.update(f"{len(part)} {part}".encode())
    with open(file.path, "rb") as content:
        while part_of_it := content.read(1 << 20):
            digest.update(part_of_it)
    return digest.hexdigest()


class OpenVinoModel:
    """A compiled model with one `InferRequest` (OpenVINO's object for a run), which one thread uses at a time.

    `folder` is the folder for compiled models. If it is empty, compiled models are not stored.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def __init__(self, file: ModelFile, threads: int, folder: str = "") -> None:
        files = CompiledFiles(folder) if folder and file.size >= SMALLEST_MODEL_BYTES else None
        name = _name(file, threads) if files is not None else ""
        if files is None or not self._load_compiled(files, name, threads):
            precision = self._compile(file, threads)
            if files is not None:
                self._store_compiled(files, name, _settings(threads, precision), precision)
        self._request = self._compiled.create_infer_request()
        self._lock = threading.Lock()

    def _compile(self, file: ModelFile, threads: int) -> str | None:
        """Check and compile the model; return its precision. Raise RuntimeError if OpenVINO cannot run it."""
        model = _read(file)
        if any(op.get_type_name() == "Loop" for op in model.get_ops()):
            raise RuntimeError("the model has a loop, which may never end, and only ONNX Runtime can stop runs")
        self.inputs, self.outputs = _ports(model)
        self._longest = _find_longest(model) if is_token_model(self) else None
        if self._longest is None and model.is_dynamic():
            raise RuntimeError("the model has dynamic shapes, which only ONNX Runtime checks")
        precision = precision_of(model)
        self._compiled = _core().compile_model(model, "CPU", _settings(threads, precision))
        return precision

    def _load_compiled(self, files: CompiledFiles, name: str, threads: int) -> bool:
        """Load the compiled model from its file; return whether it is ready to run."""
        found = files.read(name)
        if found is None:
            return False
        facts, compiled = found
        settings = _settings(threads, facts["precision"])
        if facts["settings"] != settings:
            files.remove(name, "the file was compiled with different settings")
            return False
        try:
            self._compiled = _core().import_model(compiled, "CPU", settings)
            self.inputs, self.outputs = _ports(self._compiled)
        except (RuntimeError, MemoryError) as error:
            files.remove(name, " ".join(str(error).split())[:200])
            return False
        self._longest = facts["longest"]
        logger.info("compiled model %s is loaded from its file", name)
        return True

    def _store_compiled(self, files: CompiledFiles, name: str, settings: dict[str, Any], precision: str | None) -> None:
        if files.has(name):  # several shards of a host can start at the same time
            return
        try:
            exported = self._compiled.export_model()
            same = _ports(self._compiled) == (self.inputs, self.outputs)
        except (RuntimeError, MemoryError) as error:  # the compiled model can run without a file
            logger.warning("the compiled model is not stored: %s", error)
            return
        if same:
            facts = {"precision": precision, "settings": settings, "longest": self._longest}
            files.write(name, facts, exported.getbuffer() if isinstance(exported, BytesIO) else exported)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the model once.

        Copies inputs and outputs, so that no array refers to the request's memory after the run.

        Raises InferenceFailed if a row is too long, or if OpenVINO fails.
        """
        if self._longest is not None and arrays[0].shape[1] > self._longest:
            raise InferenceFailed(f"the model reads rows of up to {self._longest} tokens, got {arrays[0].shape[1]}")
        with self._lock:
            try:
                # With INFERENCE_NUM_THREADS 1, `infer` hides an error and returns the outputs of the previous run,
                # which may be another client's.
                self._request.start_async(list(arrays), share_inputs=False)
                self._request.wait()
            except RuntimeError as error:
                raise InferenceFailed(" ".join(str(error).split())[-400:]) from error
            return [np.array(self._request.get_output_tensor(i).data) for i in range(len(self.outputs))]
