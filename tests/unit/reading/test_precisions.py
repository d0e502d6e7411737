"""The runtime that a precision requires on a processor."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from qa_cluster.reading import precisions
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.reading.local_reader import installed_runtime
from qa_cluster.reading.manifest import MODEL_FILE, PRECISIONS
from qa_cluster.reading.precisions import INT8_PRECISIONS, has_int8_products, is_int8_file
from tests.gears.onnx_file import token_model


def test_int8_is_found_in_the_file_alone(tmp_path: Path) -> None:
    assert is_int8_file(bundled_reader() / MODEL_FILE)
    file = tmp_path / "model.onnx"
    for content in (token_model(), b"", b"qa-cluster.precision int8"):
        file.write_bytes(content)
        assert not is_int8_file(file)
    for precision in PRECISIONS:
        file.write_bytes(token_model() + precisions._entry(precision))
        assert is_int8_file(file) == (precision in INT8_PRECISIONS)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("fpu sse2 avx2 avx512f", False),
        ("fpu sse2 avx2 avx_vnni", True),
        ("fpu avx512_vnni", True),
        ("amx_int8", True),
        ("fpu avx512_vnni_of_some_kind", False),
    ],
)
def test_the_processor_is_known_by_its_flags(
    flags: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert has_int8_products(str(cpuinfo)) is found


def test_int8_products_are_assumed_where_flags_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "without").write_text("processor: 0\n")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert has_int8_products(str(tmp_path / "missing"))
    assert has_int8_products(str(tmp_path / "without"))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert has_int8_products(str(tmp_path / "arm"))


def test_the_runtime_suits_the_precision_and_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    for int8_products, runtime in ((True, "openvino"), (False, "onnxruntime")):
        monkeypatch.setattr(precisions, "has_int8_products", lambda found=int8_products: found)
        assert installed_runtime("cpu", "int8") == runtime
        assert installed_runtime("cpu", "float32") == "openvino"
        assert installed_runtime("cuda", "float32") == "onnxruntime"
