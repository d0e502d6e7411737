"""The benchmarks of the engine run to their end on a few keys; their figures do not matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qa_cluster.reading.manifest import PRECISIONS
from tests.harness.certificates import without_tls
from tests.harness.programs import MODULE, binary_or_skip, chosen_servers, find_binary
from tests.harness.system import UNHURRIED, System

from . import (
    blocking,
    engine,
    events,
    fairness,
    functions,
    ingest,
    pauses,
    reader_latency,
    tls,
)
from .corpus import from_pydoc
from .machine_limit import MultiplyAdds, Peak, arithmetic_of
from .report import Report, server_version

SMALL: dict[Callable[..., None], dict[str, Any]] = {
    engine.run: {"sizes": (engine.Size("1 × 32", 32, 16),)},
    functions.run: {"keys": 1000, "shards": (2,)},
    events.run: {"events": 400},
    pauses.run: {"big_bytes": 1_000_000, "load_seconds": 0.4, "documents": 2, "words": 20_000},
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with which readers are warm sooner than in measurements, and no question is late."""
    monkeypatch.setattr(System, "usual", UNHURRIED)


@pytest.fixture
def binary() -> Path:
    """The program of the first server."""
    return binary_or_skip(chosen_servers()[0])


@pytest.mark.parametrize(("measure", "sizes"), SMALL.items(), ids=["engine", "functions", "events", "pauses"])
def test_benchmark_runs(
    measure: Callable[..., None], sizes: dict[str, Any], binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QA_MODULE_PATH", str(MODULE))
    report = Report(server_version(binary), "none", "none")
    measure(report, binary, 1, **sizes)
    assert report.tables
    for table in report.tables:
        assert table["rows"]
        for row in table["rows"]:
            figures = [cell for cell in row[1:] if cell[:1].isdigit()]
            assert len(figures) >= 3, row
            assert any(float(figure.split()[0]) > 0 for figure in figures), row


def test_reader_latency_runs(reader: Path) -> None:
    report = Report("none", "none", "none")
    reader_latency.run(report, from_pydoc(count=1), [reader], None, 2, lengths=(16, 32), batches=(1,), threads=(1,))
    limits, openvino, openvino_share, onnx, onnx_share, peaks = report.tables
    assert [row[:2] for row in limits["rows"]] == [["limit, int8", "1"]]
    least = [float(cell) for cell in limits["rows"][0][2:]]
    for table, shares in ((openvino, openvino_share), (onnx, onnx_share)):
        (row,) = table["rows"]
        assert row[:2] == ["int8", "1"]
        took = [float(cell.split()[0]) for cell in row[2:]]
        # on a busy machine any of two measured times may be longer; only the computation of the share is checked
        expected = [pytest.approx(100 * limit / time, rel=0.02, abs=1) for limit, time in zip(least, took, strict=True)]
        assert [int(cell.removesuffix("%")) for cell in shares["rows"][0][2:]] == expected
    assert all(int(row[1]) > 0 for row in peaks["rows"])


def test_without_time_for_a_round_the_first_runs_are_told(reader: Path) -> None:
    report = Report("none", "none", "none")
    reader_latency.run(
        report, from_pydoc(count=1), [reader], None, 2, lengths=(16,), batches=(1,), threads=(1,), seconds=0.0
    )
    openvino, share = report.tables[1:3]
    assert openvino["rows"][0][2].startswith("≤ ")
    assert float(openvino["rows"][0][2][2:]) > 0
    assert "medians of 1 round ±" in openvino["note"]
    assert int(share["rows"][0][2].removesuffix("%")) >= 0


def test_every_precision_is_measured_against_the_arithmetic_it_is_computed_in() -> None:
    assert {*reader_latency.EXPORTED, "int8"} == set(PRECISIONS)
    assert {name: arithmetic_of("OpenVINO", name) for name in PRECISIONS} == {
        **dict.fromkeys(("float32", "float16"), "float32"),
        "bfloat16": "bfloat16",
        **dict.fromkeys(("int8", "int8-dynamic"), "int8"),
    }
    assert arithmetic_of("ONNX Runtime", "bfloat16") == "float32"


def test_multiply_adds_are_those_of_the_model(reader: Path) -> None:
    """Six layers of 384 with a feed-forward part of 1536, and the two logits of each token."""
    for batch, length in ((1, 16), (8, 64)):
        layer = 4 * 384 * 384 + 2 * 384 * 1536 + 2 * length * 384
        assert MultiplyAdds(reader / "reader.onnx").of(batch, length) == batch * length * (6 * layer + 2 * 384)


def test_limit_is_the_best_rate_seen() -> None:
    peak = Peak(1, products=((64, 128, 128),))
    peak.measure()
    first = dict(peak.per_second)
    peak.measure()
    assert all(peak.per_second[name] >= rate > 0 for name, rate in first.items())
    assert peak.limit_ms("float32", int(first["float32"])) <= 1000


def test_blocking_runs(binary: Path) -> None:
    report = Report(server_version(binary), "none", "none")
    blocking.run(report, binary, from_pydoc(count=3), 1, questions=2)
    (table,) = report.tables
    assert [row[:2] for row in table["rows"]] == [[name, workers] for workers in "01" for name in blocking.FUNCTIONS]
    assert all(float(cell.split()[0]) > 0 for row in table["rows"] for cell in row[2:])


def test_fairness_runs(binary: Path) -> None:
    report = Report(server_version(binary), "none", "none")
    fairness.run(report, binary, from_pydoc(count=3), 1, questions=5, connections=20, bulk=20, sentences=(3,))
    assert [len(table["rows"]) for table in report.tables] == [6]
    for table in report.tables:
        # few questions end before the others have read much
        assert all(float(cell.split()[0]) > 0 for row in table["rows"] for cell in row[1:-1] if cell)


def test_tls_runs() -> None:
    found = [binary for name in chosen_servers() if (binary := find_binary(name)) and not without_tls(binary)]
    if not found:
        pytest.skip("no server with TLS, or no openssl, on this machine")
    report = Report(server_version(found[0]), "none", "none")
    counts = {1: 2, 2: 4}
    few = UNHURRIED | {"QA_RETRIEVER_K": "2"}
    tls.run(report, found[0], from_pydoc(count=5), 2, shards=1, new=counts, repeated=counts, **few)
    for table in report.tables:
        assert [row[:2] for row in table["rows"]] == [
            [name, clients] for clients in "12" for name in (tls.PLAIN, "HTTPS", "TLS to the cluster", "both")
        ]
        rates = [row[2] for row in table["rows"]]
        assert all(float(cell.split()[0]) >= 0 for cell in rates)  # a slow machine may do less than one in two seconds
        figures = [cell for row in table["rows"] for cell in row[3:] if cell]
        assert len(figures) == 22
        assert all(float(cell.split()[0]) > 0 for cell in figures)


def test_corpus_runs(binary: Path, tmp_path: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(10):
        (folder / f"d{number}.txt").write_text(f"Document {number} says that it is kept in box {number}. " * 30)
    report = Report(server_version(binary), "none", "none")
    with System(binary, shards=1, apart=True) as cluster:
        ingest.run(report, cluster, folder, 10**6)
    ((row,),) = (table["rows"] for table in report.tables)
    assert row[:2] == ["10", "300"]
    assert all(float(cell) > 0 for cell in row[2:])
