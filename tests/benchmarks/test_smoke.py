"""The benchmarks of the engine run to their end on a few keys. The tests do not check the figures."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.harness.polling import eventually
from tests.harness.programs import MODULE, binary_or_skip, chosen_servers
from tests.harness.system import UNHURRIED, WORDS_ONLY, System

from . import engine, fairness, ingest, pauses, peers
from .corpus import Corpus, from_pydoc
from .report import Report, server_version

SMALL: dict[Callable[..., None], dict[str, Any]] = {
    engine.run: {"sizes": (engine.Size("1 × 32", 32, 16),)},
    pauses.run: {"big_bytes": 1_000_000, "load_seconds": 0.4, "documents": 2, "words": 20_000},
}


@pytest.fixture(autouse=True)
def small_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings for tests: readers are warm sooner than in measurements, and no question times out."""
    with_encoder = request.function is test_corpus_and_peers_run
    monkeypatch.setattr(System, "usual", UNHURRIED if with_encoder else WORDS_ONLY)


@pytest.fixture
def binary() -> Path:
    """The program of the first server."""
    return binary_or_skip(chosen_servers()[0])


@pytest.mark.parametrize(("measure", "sizes"), SMALL.items(), ids=["engine", "pauses"])
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


def test_fairness_runs(binary: Path) -> None:
    report = Report(server_version(binary), "none", "none")
    fairness.run(report, binary, from_pydoc(count=3), 1, questions=3, connections=10, bulk=10, sentences=(3,))
    assert [len(table["rows"]) for table in report.tables] == [6]
    for table in report.tables:
        # with few questions, the rate of the other loads may be zero
        assert all(float(cell.split()[0]) > 0 for row in table["rows"] for cell in row[1:-1] if cell)


def test_corpus_and_peers_run(binary: Path, tmp_path: Path) -> None:
    """All servers answer, mosec only where it is installed, and their answers to easy questions are right."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(10):
        (folder / f"d{number}.txt").write_text(f"Document {number} says that it is kept in box {number}. " * 2)
    names = ("Ada", "Berta", "Clara", "Doris")
    documents = [
        (name, f"{name} lives in house {i + 20}. She sells wool and {name}lamps.") for i, name in enumerate(names)
    ]
    answers = {f"In which house does {name} live?": (f"house {i + 20}", str(i + 20)) for i, name in enumerate(names)}
    corpus = Corpus("houses", documents, [*answers], answers)
    report = Report(server_version(binary), "none", "none")
    with System(binary, shards=1, apart=True) as cluster:
        ingest.run(report, cluster, folder, 10**6)
        ((row,),) = (table["rows"] for table in report.tables)
        assert row[:2] == ["10", "20"]
        assert all(float(cell) > 0 for cell in row[2:])
        cluster.cli("ingest", str(corpus.write_jsonl(tmp_path / "corpus.jsonl")))
        eventually(lambda: cluster.total("qa_unembedded_documents") == 0, 60)
        peers.run(report, cluster, corpus, 1, sizes={1: 2, 2: 4}, settings=peers.SETTINGS[:1])
    *_, natural, rare, quality = (table["rows"] for table in report.tables)
    servers = len(peers.NAMES) - (find_spec(peers.MOSEC) is None)
    assert len(natural) == len(rare) == len(quality) == 2 * servers
    assert all(float(cell) > 0 for row in (*natural, *rare) for cell in row[2:5])
    assert all(row[1] == "4" and float(row[2]) == 1 for row in quality[:servers]), quality
