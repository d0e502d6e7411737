"""Round trips of `AI.TENSORSET`, `AI.TENSORGET` and `AI.MODELEXECUTE`, compared with `SET` and `GET` of the same bytes.

The model adds its input to itself, so the figures show the cost of the transfer to the worker and back. The plain
alternative is a client that gets the bytes, computes the result and sets it: a `GET`, then a `SET`. Each round runs all
operations on the same server in turn.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gears.onnx_file import double_model
from tests.harness.clusters import ready_shards

from .loadgen import Load, Request, encode, pipeline, run_resp_load
from .report import Report, median

VARIANTS = 16  # keys of each kind, one for each client


@dataclass(frozen=True)
class Size:
    """A tensor size: `elements` INT64 in one row. `commands` is the number of commands of a kind in a round."""

    name: str
    elements: int
    commands: int


@dataclass(frozen=True)
class Mode:
    """A way of sending commands."""

    name: str
    clients: int
    depth: int


SIZES = (Size("1 × 32", 32, 2000), Size("64 KiB", 8192, 800), Size("1 MiB", 131072, 120))
MODES = (Mode("1 client", 1, 1), Mode("16 clients", 16, 1), Mode("1 client, pipelines of 16", 1, 16))


@dataclass(frozen=True)
class Operation:
    """Commands in sequence, each as a function of the variant. `plain` names the operation to compare with."""

    name: str
    commands: tuple[Callable[[int], bytes], ...]
    plain: str = ""


@dataclass
class _Results:
    loads: dict[tuple[Mode, Size, str], list[Load]] = field(default_factory=dict)

    def add(self, mode: Mode, size: Size, name: str, load: Load) -> None:
        self.loads.setdefault((mode, size, name), []).append(load)


def run(report: Report, binary: Path, rounds: int, sizes: tuple[Size, ...] = SIZES) -> None:
    """Rounds of every operation, size and mode."""
    results, found = _Results(), {}
    with ready_shards(binary, 1) as (server,), server.client(decode_responses=False) as client:
        backends = ["ONNX", *_store_models(client)]
        for size in sizes:
            found[size] = _operations(client, size, backends)
        for number in range(rounds + 1):
            for size, mode in itertools.product(sizes, MODES):
                for operation in found[size]:
                    count = max(size.commands // (1 if number else 10) // mode.depth, VARIANTS)
                    load = run_resp_load(server.port, _requests(operation, mode, count), clients=mode.clients)
                    if number:  # the first round is a warm-up
                        results.add(mode, size, operation.name, load)
    note = (
        f"medians of {rounds} rounds [least–most]; bytes are INT64 elements; models: {', '.join(backends)}, x + x;"
        " no persistence; p50 and p99 are of a round trip, of a whole pipeline in the last table"
    )
    for mode in MODES:
        _print(report, mode, results, found, note)


def _store_models(client: Any) -> list[str]:
    """Store the model as ONNX and, if PyTorch is installed, as TorchScript; returns names of additional backends."""
    client.execute_command("AI.MODELSTORE", "model:ONNX", "ONNX", "CPU", "BLOB", double_model())
    if importlib.util.find_spec("torch") is None:
        return []
    client.execute_command("AI.MODELSTORE", "model:TORCH", "TORCH", "CPU", "BLOB", _torch_model())
    return ["TORCH"]


def _torch_model() -> bytes:
    import torch

    class Double(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    out = io.BytesIO()
    torch.jit.save(torch.jit.trace(Double(), torch.ones(1, 4, dtype=torch.int64)), out)
    return out.getvalue()


def _operations(client: Any, size: Size, backends: list[str]) -> list[Operation]:
    blob = bytes(range(256)) * (size.elements * 8 // 256)
    suffix = str(size.elements)
    plain, tensor = f"plain:{suffix}", f"tensor:{suffix}"
    shape = ("INT64", 1, size.elements, "BLOB", blob)
    for variant in range(VARIANTS):
        client.execute_command("SET", f"{plain}:{variant}", blob)
        client.execute_command("AI.TENSORSET", f"{tensor}:{variant}", *shape)

    def get(variant: int) -> bytes:
        return encode("GET", f"{plain}:{variant}")

    def set_(variant: int) -> bytes:
        return encode("SET", f"{plain}:{variant}", blob)

    def execute(backend: str) -> Callable[[int], bytes]:
        return lambda variant: encode(
            *("AI.MODELEXECUTE", f"model:{backend}", "INPUTS", 1, f"{tensor}:{variant}"),
            *("OUTPUTS", 1, f"out:{suffix}:{variant}"),
        )

    return [
        Operation("SET", (set_,)),
        Operation("AI.TENSORSET", (lambda v: encode("AI.TENSORSET", f"{tensor}:{v}", *shape),), "SET"),
        Operation("GET", (get,)),
        Operation("AI.TENSORGET", (lambda v: encode("AI.TENSORGET", f"{tensor}:{v}", "META", "BLOB"),), "GET"),
        Operation("GET, then SET", (get, set_)),
        *(Operation(f"AI.MODELEXECUTE, {b}", (execute(b),), "GET, then SET") for b in backends),
    ]


def _requests(operation: Operation, mode: Mode, count: int) -> Iterator[Request]:
    """`count` requests of `depth` commands; each variant is encoded once."""
    made: list[Request] = []
    for first in range(0, VARIANTS, mode.depth):
        variants = range(first, first + mode.depth)
        made.append(tuple(pipeline([command(v) for v in variants]) for command in operation.commands))
    return itertools.islice(itertools.cycle(made), count)


def _print(report: Report, mode: Mode, results: _Results, found: dict[Size, list[Operation]], note: str) -> None:
    rows = []
    for size, operations in found.items():
        for operation in operations:
            loads = results.loads[mode, size, operation.name]
            ratio = ""
            if operation.plain:
                pairs = zip(loads, results.loads[mode, size, operation.plain], strict=True)
                ratio = median([plain.per_second / ours.per_second for ours, plain in pairs], 1) + " ×"
            rows.append(
                [
                    operation.name,
                    size.name,
                    median([load.percentile(50) for load in loads], 3),
                    median([load.percentile(99) for load in loads], 3),
                    median([load.per_second * mode.depth for load in loads], 0),
                    f"{ratio} {operation.plain}".strip(),
                ]
            )
    columns = ["", "tensor", "p50 ms", "p99 ms", "per second", "time against plain"]
    report.table(f"Tensors and models: {mode.name}", columns, rows, note)
