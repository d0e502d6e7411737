"""Background jobs: their own server and worker, no pickles, nothing listening beyond this user."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster.cluster.provision import jobs
from qa_cluster.config import Loaded, Settings
from qa_cluster.errors import ConfigError


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Loaded]:
    settings = replace(Settings(), data_dir=tmp_path / "data", start_timeout_ms=120_000)
    yield Loaded(settings, dict.fromkeys(vars(settings), "default"))
    jobs.stop(settings)


def test_a_job_runs_and_is_reported(loaded: Loaded) -> None:
    settings = loaded.settings
    assert jobs.progress(settings) == []
    jobs.start(loaded)
    good = jobs.enqueue(settings, "os.path.basename", "good", "/a/b", timeout_seconds=120)
    bad = jobs.enqueue(settings, "os.path.getsize", "bad", "/nowhere", timeout_seconds=120)
    assert jobs.wait(settings, good, 120).state == "finished"
    report = jobs.wait(settings, bad, 120)
    assert report.state == "failed"
    assert "/nowhere" in report.error
    assert {job.id for job in jobs.progress(settings)} == {good, bad}


def test_starting_twice_keeps_server_and_worker_and_stop_ends_both(loaded: Loaded) -> None:
    jobs.start(loaded)
    worker = (jobs.directory(loaded.settings) / "worker.pid").read_text()
    jobs.start(loaded)
    assert (jobs.directory(loaded.settings) / "worker.pid").read_text() == worker
    assert len(jobs.stop(loaded.settings)) == 2
    assert jobs.stop(loaded.settings) == []


def test_queued_jobs_survive_a_restart(loaded: Loaded) -> None:
    jobs.start(loaded)
    job = jobs.enqueue(loaded.settings, "os.path.basename", "kept", "/a/b", timeout_seconds=120)
    jobs.wait(loaded.settings, job, 120)
    jobs.stop(loaded.settings)
    jobs.start(loaded)
    assert [found.id for found in jobs.progress(loaded.settings)] == [job]


def test_the_server_has_no_port_and_the_queue_no_pickles(loaded: Loaded) -> None:
    jobs.start(loaded)
    job = jobs.enqueue(loaded.settings, "time.sleep", "short", "0", timeout_seconds=120)
    with jobs.connection(loaded.settings) as client:
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("unixsocketperm")["unixsocketperm"] == "700"
        deadline = time.monotonic() + 60
        while (data := client.hget(f"rq:job:{job}", "data")) is None:
            assert time.monotonic() < deadline
    import zlib

    assert zlib.decompress(data).startswith(b"[")


@pytest.mark.parametrize("url", ["redis://jobs.example:6379", "http://127.0.0.1:1"])
def test_a_server_elsewhere_needs_tls(url: str) -> None:
    with pytest.raises(ConfigError, match="jobs_url"):
        jobs.connection(replace(Settings(), jobs_url=url))
