"""OpenVINO without its converter of other formats: `from qa_cluster.reading.lean_openvino import openvino`.

`import openvino` also imports that converter, with its telemetry: half of the time, and 15 MB in each process, for what
neither a worker nor a pipeline uses. Here it is left out until somebody asks for `openvino.convert_model`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_CONVERTER, _FUNCTION = "openvino.tools.ovc", "convert_model"


def _imported() -> Any:
    if "openvino" in sys.modules or _CONVERTER in sys.modules:
        return import_module("openvino")
    # openvino takes a converter that cannot be imported for one that is not installed
    sys.modules[_CONVERTER] = None  # type: ignore[assignment]
    try:
        module = import_module("openvino")
    finally:
        del sys.modules[_CONVERTER]
    vars(module).setdefault("__getattr__", _late)
    return module


def _late(name: str) -> Any:
    """An attribute that `openvino` lacks: only the converter's function is one that came late."""
    if name != _FUNCTION:
        raise AttributeError(f"module 'openvino' has no attribute {name!r}")
    return getattr(import_module(_CONVERTER), name)


openvino = _imported()
