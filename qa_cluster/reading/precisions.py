"""Chooses the runtime and the settings that the precision of an exported file requires.

The exporter writes the precision into the metadata of the ONNX file, so the manifest is not needed. The worker's
backend, the local pipeline and the measurements take OpenVINO's settings from this module. ONNX Runtime needs no
settings: it computes 16-bit weights in float32, and int8 weights in 8-bit products.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

METADATA_KEY = "qa-cluster.precision"
"""The key in the `metadata_props` of an ONNX file; its value is one of `manifest.PRECISIONS`."""

GROUP_SIZE = 128
"""If an activation (an input of a matrix product) has no fixed range, OpenVINO computes its scales while the model
runs: one scale for this many neighbouring channels of a token."""


INT8_PRECISIONS = ("int8", "int8-dynamic")
# Linux's names of the processor instructions that multiply and add 8-bit numbers exactly.
_INT8_FEATURES = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
_X86 = ("x86_64", "AMD64")
_TAIL_BYTES = 1 << 16  # the metadata is at the end of the file, after the graph


def openvino_settings(precision: str | None) -> dict[str, str | int]:
    """Return OpenVINO's settings for a file of this precision; None: the file does not name a precision.

    For every precision except bfloat16, float32 is requested explicitly. By default, OpenVINO computes in bf16 on newer
    processors, so answers would differ between hosts.

    >>> openvino_settings("bfloat16")
    {'INFERENCE_PRECISION_HINT': 'bf16'}
    """
    settings: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32"}
    # This setting is not only for int8-dynamic, because a file of the precision int8 may also have activations without
    # a fixed range.
    if precision in INT8_PRECISIONS:
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP_SIZE
    return settings


def precision_of(model: Any) -> str | None:
    """Return the precision in the metadata of an `openvino.Model`'s ONNX file; None if it is missing."""
    place = ["framework", METADATA_KEY]
    return str(model.get_rt_info(place).astype(str)) if model.has_rt_info(place) else None


def is_int8_file(path: str | Path) -> bool:
    """Return whether the metadata of an ONNX file names an int8 precision. The check needs no runtime."""
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        end = file.read()
    return any(_entry(precision) in end for precision in INT8_PRECISIONS)


def _entry(precision: str) -> bytes:
    """Encode the precision as an entry of `metadata_props`.

    The entry is field 14 of ONNX's `ModelProto`. Fields 1 and 2 of the entry are its key and its value.
    """
    key, value = METADATA_KEY.encode(), precision.encode()
    entry = bytes((0x0A, len(key))) + key + bytes((0x12, len(value))) + value
    return bytes((0x72, len(entry))) + entry


@cache
def has_int8_products(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Return whether the processor has the instructions that OpenVINO needs to compute int8 models exactly.

    x86 processors have had them since Intel's Cascade Lake and Alder Lake and AMD's Zen 4. On systems other than Linux
    on x86, the result is True. `cpuinfo` is the path of Linux's description of the processor.
    """
    if platform.machine() not in _X86:
        return True
    try:
        lines = Path(cpuinfo).read_text(errors="replace").splitlines()
    except OSError:
        return True
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return not flags or not _INT8_FEATURES.isdisjoint(flags)


def suits_openvino(precision: str) -> bool:
    """Return whether OpenVINO is the right runtime for a file of this precision on this processor.

    Without the 8-bit instructions, OpenVINO computes an int8 model in float32, which is slower than ONNX Runtime in
    int8. The rounding of a value, and so an answer, would then depend on the other texts in its batch.
    """
    return precision not in INT8_PRECISIONS or has_int8_products()
