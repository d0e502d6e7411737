"""Background jobs have a separate server and worker, use no pickles, and allow no access to other users."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from qa_cluster.cluster.provision import jobs
from qa_cluster.config import LoadedSettings, Settings
from qa_cluster.errors import ClusterError, ConfigError
from tests.harness.polling import eventually
from tests.harness.ports import free_port


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[LoadedSettings]:
    settings = replace(Settings(), data_dir=tmp_path / "data", start_timeout_ms=120_000)
    yield LoadedSettings(settings, dict.fromkeys(vars(settings), "default"))
    jobs.stop(settings)


def with_settings(loaded: LoadedSettings, **changes: Any) -> LoadedSettings:
    """The settings with `changes`, which child processes also use."""
    sources = {**loaded.sources, **dict.fromkeys(changes, "flag")}
    return LoadedSettings(replace(loaded.settings, **changes), sources)


def ended(settings: Settings, job_id: str) -> jobs.JobReport:
    """The report on a job, once it has ended."""

    def found() -> jobs.JobReport | None:
        reports = [job for job in jobs.progress(settings) if job.id == job_id]
        return next((job for job in reports if job.state in ("finished", "failed")), None)

    report = eventually(found)
    assert report is not None
    return report


def test_jobs_run_are_reported_and_survive_a_restart(loaded: LoadedSettings) -> None:
    settings = loaded.settings
    assert jobs.progress(settings) == []
    jobs.start(loaded)
    worker = jobs.directory(settings) / "worker.pid"
    first = worker.read_text()
    jobs.start(loaded)
    assert worker.read_text() == first, "a second start changes nothing"
    good = jobs.enqueue(settings, "os.path.basename", "good", "/a/b", timeout_seconds=120)
    bad = jobs.enqueue(settings, "os.path.getsize", "bad", "/nowhere", timeout_seconds=120)
    assert ended(settings, good).state == "finished"
    report = ended(settings, bad)
    assert report.state == "failed"
    assert "/nowhere" in report.error
    assert {job.id for job in jobs.progress(settings)} == {good, bad}
    with jobs.connection(settings) as client:
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("unixsocketperm")["unixsocketperm"] == "700"
        data = client.hget(f"rq:job:{good}", "data")
        assert isinstance(data, bytes)
        assert zlib.decompress(data).startswith(b"["), "arguments are JSON, no pickle"
    assert len(jobs.stop(settings)) == 2
    assert jobs.stop(settings) == []
    jobs.start(loaded)
    assert {job.id for job in jobs.progress(settings)} == {good, bad}


@pytest.mark.hostile
@pytest.mark.parametrize(
    "given",
    [
        {"cluster_url": "redis://:the%20cluster's@127.0.0.1:1"},
        {"cluster_url": "redis://me:other@127.0.0.1:1", "cluster_password": "the cluster's"},
    ],
)
def test_the_jobs_server_requires_the_password_of_the_cluster(loaded: LoadedSettings, given: dict[str, str]) -> None:
    guarded = with_settings(loaded, **given, jobs_port=(port := free_port()))
    jobs.start(guarded)
    job = jobs.enqueue(guarded.settings, "os.path.basename", "good", "/a/b", timeout_seconds=120)
    assert ended(guarded.settings, job).state == "finished"
    for refused in (None, "other"):
        client = redis.Redis(port=port, password=refused, retry=Retry(NoBackoff(), 0))
        with client, pytest.raises(redis.exceptions.AuthenticationError):
            client.lpush(f"rq:queue:{jobs.QUEUE}", "anything")
    with redis.Redis(port=port, password="the cluster's") as client:
        assert client.ping()


@pytest.mark.hostile
def test_a_changed_password_reaches_the_jobs_server_and_jobs_survive(loaded: LoadedSettings) -> None:
    known: set[str] = set()
    before = ""
    for password in ("", "old", "new", ""):
        now = with_settings(loaded, cluster_password=password)
        if before:
            with pytest.raises(ClusterError, match=r"refused the login.*restarts it"):
                jobs.progress(now.settings)
        jobs.start(now)
        job = jobs.enqueue(now.settings, "os.path.basename", "kept", "/a/b", timeout_seconds=120)
        assert ended(now.settings, job).state == "finished"
        known.add(job)
        assert {found.id for found in jobs.progress(now.settings)} == known
        if password:
            with pytest.raises(ClusterError, match="refused the login"):
                jobs.progress(with_settings(loaded, cluster_password=before).settings)
        before = password
    assert len(jobs.stop(now.settings)) == 2


@pytest.mark.hostile
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis://me@localhost:1", "rediss://jobs.example:1"])
def test_an_external_jobs_server_needs_a_password_if_the_cluster_has_one(url: str) -> None:
    for settings in (
        replace(Settings(), jobs_url=url, cluster_password="hunter2"),
        replace(Settings(), jobs_url=url, cluster_url="redis://:hunter2@127.0.0.1:1"),
    ):
        with pytest.raises(ConfigError, match="'jobs_url' has no password, but the cluster has one") as caught:
            jobs.connection(settings)
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://jobs.example:6379", "http://127.0.0.1:1"])
def test_a_jobs_server_on_another_host_needs_tls(url: str) -> None:
    with pytest.raises(ConfigError, match="jobs_url"):
        jobs.connection(replace(Settings(), jobs_url=url))
