"""The arithmetic limit: how many multiply-adds a second large matrix products reach, and how many a model needs.

The products run in the runtime that serves (OpenVINO, which is oneDNN), in float32, bfloat16 and int8. The best of
several shapes and rounds is the peak: the rate of a model that consists of ideal matrix products only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from .report import Report

# rows, inner dimension, columns: a few MB of weights each, so that at least one shape fits into the caches of a core
PRODUCTS = ((512, 1536, 1536), (256, 768, 768), (1024, 2048, 2048))
REPEATS = 5
ARITHMETICS = ("float32", "bfloat16", "int8")
_STEP = np.float32(0.01)


def arithmetic_of(runtime: str, precision: str) -> str:
    """The best arithmetic in which a runtime could compute a file of this precision."""
    if precision in ("int8", "int8-dynamic"):  # ONNX Runtime computes int8-dynamic with MatMulNBits, which is int8 too
        return "int8"
    return "bfloat16" if (runtime, precision) == ("OpenVINO", "bfloat16") else "float32"


@dataclass(frozen=True, slots=True)
class _Product:
    run: Callable[[], object]
    multiply_adds: int


class Peak:
    """The best rate of each arithmetic, in multiply-adds a second, over all calls of `measure`."""

    def __init__(self, threads: int, products: tuple[tuple[int, int, int], ...] = PRODUCTS) -> None:
        self.threads = threads
        self.per_second = dict.fromkeys(ARITHMETICS, 0.0)
        self._products = {name: [_product(name, shape, threads) for shape in products] for name in ARITHMETICS}

    def measure(self) -> None:
        """One more round of all products."""
        for name, products in self._products.items():
            for product in products:
                product.run()
                for _ in range(REPEATS):
                    started = time.perf_counter()
                    product.run()
                    rate = product.multiply_adds / (time.perf_counter() - started)
                    self.per_second[name] = max(self.per_second[name], rate)

    def limit_ms(self, arithmetic: str, multiply_adds: int) -> float:
        """The shortest time that these multiply-adds can take."""
        return multiply_adds / self.per_second[arithmetic] * 1000


def _product(arithmetic: str, shape: tuple[int, int, int], threads: int) -> _Product:
    rows, inner, columns = shape
    pick = np.random.default_rng(1)
    data = ops.parameter([rows, inner], np.float32)
    if arithmetic == "int8":
        weights = pick.integers(-127, 128, (columns, inner)).astype(np.int8)
        scales = ops.constant(np.full((columns, 1), _STEP, np.float32))
        right = ops.multiply(ops.convert(ops.constant(weights), "f32"), scales)
        left = ops.fake_quantize(data, np.float32(0), 255 * _STEP, np.float32(0), 255 * _STEP, 256)
    else:
        right = ops.constant(pick.standard_normal((columns, inner)).astype(np.float32))
        left = data
    model = ov.Model([ops.matmul(left, right, False, True)], [data], "product")
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "bf16" if arithmetic == "bfloat16" else "f32",
        "ENABLE_CPU_PINNING": False,
    }
    request = ov.Core().compile_model(model, "CPU", settings).create_infer_request()
    request.infer([pick.random((rows, inner), np.float32)])

    def run() -> None:
        request.start_async()
        request.wait()

    return _Product(run, rows * inner * columns)


class MultiplyAdds:
    """Counts the multiply-adds of a model's matrix products, which are nearly all of its arithmetic."""

    def __init__(self, model: Path) -> None:
        self._model = ov.Core().read_model(model)

    def of(self, batch: int, length: int) -> int:
        """The multiply-adds of one run on `batch` rows of `length` tokens."""
        self._model.reshape({port: [batch, length] for port in self._model.inputs})
        total = 0
        for op in self._model.get_ordered_ops():
            if op.get_type_name() == "MatMul":
                left = list(op.input_value(0).get_shape())
                inner = left[-2] if op.get_attributes()["transpose_a"] else left[-1]
                total += inner * math.prod(op.output(0).get_shape())
        return total


def print_peaks(report: Report, peaks: list[Peak]) -> None:
    """Print the rates from which the limits come."""
    report.table(
        "Arithmetic limit of the cores: 10⁹ multiply-adds a second",
        ["", *(f"{peak.threads} thread{'s' * (peak.threads > 1)}" for peak in peaks)],
        [[name, *(f"{peak.per_second[name] / 1e9:.0f}" for peak in peaks)] for name in ARITHMETICS],
        "the best of matrix products of several sizes in OpenVINO (oneDNN), in every round of the run",
    )
