"""Runtime settings that the precision of an exported file requires.

The exporter writes the precision into the ONNX file's metadata, so that the file alone is enough. The worker's backend,
which sees no manifest, the local pipeline and the measurements all take OpenVINO's settings from here. ONNX Runtime
needs no settings: it computes in float32 what is stored in 16 bits, and with int8 weights in 8-bit products.
"""

from __future__ import annotations

from typing import Any

METADATA_KEY = "qa-cluster.precision"
"""The key in the `metadata_props` of an ONNX file; its value is one of `manifest.PRECISIONS`."""

GROUP_SIZE = 128
"""Activations without a fixed range get one scale for each group of this many neighbouring channels of a token."""


def openvino_settings(precision: str | None) -> dict[str, str | int]:
    """OpenVINO's settings for a file of this precision; None: any other file.

    float32 is requested explicitly: by default OpenVINO computes in bf16 on newer processors, and answers would differ
    from host to host.

    >>> openvino_settings("bfloat16")
    {'INFERENCE_PRECISION_HINT': 'bf16'}
    """
    settings: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32"}
    if precision in ("int8", "int8-dynamic"):  # an int8 file too may have activations without a fixed range
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP_SIZE
    return settings


def precision_of(model: Any) -> str | None:
    """The precision written in the ONNX file that an `openvino.Model` was read from, None where there is none."""
    place = ["framework", METADATA_KEY]
    return str(model.get_rt_info(place).astype(str)) if model.has_rt_info(place) else None
