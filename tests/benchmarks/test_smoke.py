"""The benchmarks of the engine run to their end on a few keys; what they measure is not looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers import MODULE, chosen_servers, find_binary

from . import engine, events, functions, pauses
from .report import Report, server_version

SMALL: dict[Callable[..., None], dict[str, Any]] = {
    engine.run: {"sizes": (engine.Size("1 × 32", 32, 16),)},
    functions.run: {"keys": 1000, "shards": (2,)},
    events.run: {"events": 400},
    pauses.run: {"big_bytes": 1_000_000, "load_seconds": 0.4, "documents": 2},
}


@pytest.mark.parametrize(("measure", "sizes"), SMALL.items(), ids=["engine", "functions", "events", "pauses"])
def test_benchmark_runs(measure: Callable[..., None], sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    binary = next((found for name in chosen_servers() if (found := find_binary(name))), None)
    if binary is None:
        pytest.skip("no server on this machine")
    monkeypatch.setenv("QA_MODULE_PATH", str(MODULE))
    report = Report(server_version(binary), "none", "none")
    measure(report, Path(binary), 1, **sizes)
    assert report.tables
    for table in report.tables:
        assert table["rows"]
        for row in table["rows"]:
            figures = [cell for cell in row[1:] if cell[:1].isdigit()]
            assert len(figures) >= 3, row
            assert any(float(figure.split()[0]) > 0 for figure in figures), row
