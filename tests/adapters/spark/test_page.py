"""The programs of the page run unchanged: the data source, questions, contexts, Ray and files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from qa_cluster.client import Client
from tests.adapters.pages import programs

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def ray_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "600")  # a busy machine
    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_the_page(spark: Any, url: str, tmp_path: Path, ray_of_two_cores: None) -> None:
    (tmp_path / "vasa.md").write_text("# Vasa\n\nThe Vasa sank in 1628.\n")
    printed: dict[str, Any] = {"__name__": "__main__"}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for program in programs("spark"):
            text = program.replace("http://127.0.0.1:8080", url).replace("/data/manuals", str(tmp_path))
            exec(compile(text, "docs/integrations/spark.md", "exec"), printed)
    shown = out.getvalue()
    assert '{"year":1843}' in shown and shown.count("Ada Lovelace") >= 3
    assert "Ada Lovelace 0." in shown, "the block for Ray prints the answer"
    with Client(url, timeout=120) as client:
        assert client.ask("When did the Vasa sink?", collection="books").best.answer == "1628"
        client.delete_collection("books")
