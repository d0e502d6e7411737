"""Opens an ONNX file in ONNX Runtime on an NVIDIA GPU.

If a library or the GPU is missing, or a run fails, ONNX Runtime continues on the CPU and at most logs the problem. This
module raises an error in each of these cases.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime

from qa_cluster.errors import ModelError

_PROVIDER = "CUDAExecutionProvider"
# ONNX Runtime's message about a missing GPU. In the text of the error, other text surrounds the message: positions in
# the source code of ONNX Runtime.
_NO_GPU = re.compile(r'provider option "device_id": (?:\S+ operator\(\) )?([^;]+)')


def open_on_gpu(model: str | Path, options: onnxruntime.SessionOptions, number: int) -> onnxruntime.InferenceSession:
    """Load a model onto GPU `number`. Operators without a GPU version run on the CPU.

    Raises:
        ModelError: ONNX Runtime for GPUs, one of its libraries, or the GPU is missing.
        Exception: ONNX Runtime cannot load the file.
    """
    offered = onnxruntime.get_available_providers()
    if _PROVIDER not in offered:
        raise ModelError(
            f"the package onnxruntime-gpu is needed instead of onnxruntime; the installed package offers only"
            f" {', '.join(offered)}"
        )
    onnxruntime.preload_dlls(msvc=False)  # the system itself does not find libraries that pip has installed
    providers = [(_PROVIDER, {"device_id": number})]
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=providers, enable_fallback=0)
    except Exception as error:  # ONNX Runtime has a private exception class for each cause
        if found := _NO_GPU.search(str(error)):
            raise ModelError(f"this host has no GPU {number}: {found[1].strip().rstrip('.')}") from error
        raise
    if session.get_providers()[0] != _PROVIDER:
        raise ModelError("ONNX Runtime cannot use the GPU: its log says which library or driver is missing")
    return session
