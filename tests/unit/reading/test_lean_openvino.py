"""OpenVINO is imported without its converter. A program can still import the converter."""

from __future__ import annotations

import subprocess
import sys

CONVERTER = "openvino.tools.ovc"


def test_the_converter_is_imported_on_demand() -> None:
    code = (
        "import sys, qa_cluster.gears.inference.backends.openvino, openvino;"
        f"found = {{'{CONVERTER}', 'openvino_telemetry'}} & set(sys.modules);"
        "assert not found, found;"
        "assert not hasattr(openvino, 'convert');"
        f"from openvino import convert_model; assert convert_model is sys.modules['{CONVERTER}'].convert_model"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


def test_an_imported_converter_stays() -> None:
    code = (
        f"import openvino, sys; own = sys.modules['{CONVERTER}'];"
        "from qa_cluster.reading import lean_openvino;"
        f"assert lean_openvino.openvino is openvino and sys.modules['{CONVERTER}'] is own"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
