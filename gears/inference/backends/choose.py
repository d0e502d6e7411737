"""Chooses the runtime of a model. A runtime is imported only when it is needed.

- OpenVINO runs ONNX files on a CPU if they are token models or have fixed shapes.
- ONNX Runtime runs all other ONNX files: files that OpenVINO cannot load, and int8 files on a processor without
  instructions for products of int8 numbers. If a memory limit is set (`qa.backend-memory-mb`) or the device is a GPU,
  ONNX Runtime runs all ONNX files.
- torch runs TorchScript, if the worker's environment has torch.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import logging
import threading

from qa_cluster.errors import ModelError
from qa_cluster.reading.precisions import has_int8_products, is_int8_file

from ..model_file import ModelFile
from .base import CompiledModel, RuntimeLimits

logger = logging.getLogger(__name__)
RUNTIMES = ("onnxruntime", "openvino", "torch")


def backend_versions() -> list[str]:
    """Return a flat list of the name and version of each installed runtime, without importing the runtimes."""
    found: list[str] = []
    for name in RUNTIMES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found += [name, importlib.metadata.version(name)]
    return found


def import_ahead() -> None:
    """Import the usual runtime of readers in a separate thread while the worker starts."""
    name = "openvino" if has_int8_products() else "onnx"
    threading.Thread(target=_import, args=(name,), name="import", daemon=True).start()


def import_runtimes(backend: str) -> None:
    """Import the installed runtimes that can run models of a backend."""
    for name in ("torch",) if backend.upper() in ("TORCH", "SCRIPT") else ("openvino", "onnx"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"{__package__}.{name}")


def _import(name: str) -> None:
    try:
        importlib.import_module(f"{__package__}.{name}")
    except ImportError as error:
        logger.warning("the runtime %s cannot be imported, so models run in a different runtime: %s", name, error)


def load_model(backend: str, device: str, file: ModelFile, limits: RuntimeLimits) -> CompiledModel:
    """Compile a model; raise ModelError if it cannot be compiled."""
    if backend.upper() == "TORCH":
        return _load_torch(device, file, limits)
    if backend.upper() != "ONNX":
        raise ModelError(f"unsupported backend {backend}: convert the model to ONNX and store it with backend ONNX")
    # OpenVINO cannot enforce a memory limit
    on_cpu = device.upper().startswith("CPU") and not limits.memory_mb
    if on_cpu and (has_int8_products() or not is_int8_file(file.path)):
        try:
            from .openvino import OpenVinoModel

            return OpenVinoModel(file, limits.threads, limits.compiled_folder)
        except Exception as error:  # OpenVINO raises bare RuntimeError; ONNX Runtime reports an invalid model
            logger.info("OpenVINO cannot run the model, trying ONNX Runtime: %s", _one_line(error))
    from .onnx import OnnxModel

    return OnnxModel(file, device, limits)


def _load_torch(device: str, file: ModelFile, limits: RuntimeLimits) -> CompiledModel:
    try:
        from .torch import TorchModel
    except ImportError as error:
        raise torch_missing(error) from error
    return TorchModel(file, device, limits)


def torch_missing(error: ImportError) -> ModelError:
    """Return the error for a worker whose environment has no usable torch."""
    reason = "" if getattr(error, "name", None) == "torch" else f" ({_one_line(error)})"
    return ModelError(
        f"the worker's environment has no torch{reason}: install qa-cluster with its extra torch there, "
        "or export the model to ONNX"
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
