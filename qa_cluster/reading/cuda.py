"""Opens an ONNX file in ONNX Runtime on an NVIDIA GPU.

ONNX Runtime answers a missing library, a GPU that is not there and a run that fails alike: it goes on on the CPU, and
tells at most its log. Here each of them is an error.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime

from qa_cluster.errors import ModelError

_PROVIDER = "CUDAExecutionProvider"
# what ONNX Runtime says of a GPU that is not there, between the places in its source
_NO_GPU = re.compile(r'provider option "device_id": (?:\S+ operator\(\) )?([^;]+)')


def open_on_gpu(model: str | Path, options: onnxruntime.SessionOptions, number: int) -> onnxruntime.InferenceSession:
    """Load a model to the GPU of this number; operators that ONNX Runtime has for CPUs only run on the CPU.

    Raises:
        ModelError: this environment has no ONNX Runtime for GPUs, or lacks its libraries, or has no such GPU.
        Exception: what ONNX Runtime raises for a file that it cannot load.
    """
    offered = onnxruntime.get_available_providers()
    if _PROVIDER not in offered:
        raise ModelError(f"it needs onnxruntime-gpu in place of onnxruntime, which offers {', '.join(offered)}")
    onnxruntime.preload_dlls(msvc=False)  # those that pip has installed lie where the system does not look
    providers = [(_PROVIDER, {"device_id": number})]
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=providers, enable_fallback=0)
    except Exception as error:  # ONNX Runtime has one exception class per cause, all private
        if found := _NO_GPU.search(str(error)):
            raise ModelError(f"this host has no GPU {number}: {found[1].strip().rstrip('.')}") from error
        raise
    if session.get_providers()[0] != _PROVIDER:
        raise ModelError("ONNX Runtime cannot use the GPU: its log says which library or driver is missing")
    return session
