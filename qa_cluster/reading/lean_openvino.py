"""OpenVINO without its converter for other formats: `from qa_cluster.reading.lean_openvino import openvino`.

`import openvino` also imports the converter with its telemetry. The converter takes half of the import time and 15 MB
in each process, but no worker or pipeline uses it. This module imports the converter only when a program uses
`openvino.convert_model`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_CONVERTER, _FUNCTION = "openvino.tools.ovc", "convert_model"


def _imported() -> Any:
    if "openvino" in sys.modules or _CONVERTER in sys.modules:
        return import_module("openvino")
    # openvino tolerates a converter that cannot be imported.
    sys.modules[_CONVERTER] = None  # type: ignore[assignment]
    try:
        module = import_module("openvino")
    finally:
        del sys.modules[_CONVERTER]
    vars(module).setdefault("__getattr__", _imported_at_first_use)
    return module


def _imported_at_first_use(name: str) -> Any:
    """Import the converter and return its function `convert_model`; AttributeError for any other `name`.

    Python calls this function with the name of each attribute that the module `openvino` lacks.
    """
    if name != _FUNCTION:
        raise AttributeError(f"module 'openvino' has no attribute {name!r}")
    return getattr(import_module(_CONVERTER), name)


openvino = _imported()
