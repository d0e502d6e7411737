"""Servers receive settings in the syntax of the module, and `status` shows the effect of `inference_workers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_cluster.cluster.commands.status import _worker
from qa_cluster.cluster.provision.inspection import worker_problem
from qa_cluster.cluster.servers import single
from qa_cluster.cluster.servers.local import LocalCluster
from qa_cluster.cluster.servers.module_options import module_options
from qa_cluster.cluster.servers.state import ClusterState
from qa_cluster.config import Settings, load
from qa_cluster.errors import ConfigError
from tests.harness.ports import free_port

READY = {"qa_worker_state": "ready"}


def test_servers_get_the_settings_of_workers() -> None:
    given = module_options(Settings(inference_workers=2, worker_ahead=9, shared_ahead=2, bulk_users="night import"))
    assert set(given) >= {
        ("qa.inference-workers", "2"),
        ("qa.worker-ahead", "9"),
        ("qa.shared-ahead", "2"),
        ("qa.bulk-users", "night import"),
    }
    usual = dict(module_options(Settings()))
    assert usual["qa.inference-workers"] == "0"
    assert not usual.keys() & {"qa.bulk-users", "qa.worker-environment", "qa.model-cache-dir"}


@pytest.mark.parametrize(
    ("fields", "shown", "problem"),
    [
        ({}, "", ""),
        (READY, "ready", ""),
        (READY | {"qa_inference_workers": 0, "qa_inference_ready": 0}, "ready", ""),
        (
            READY | {"qa_models_refused": 1, "qa_model_refused_1": "m: its run ended its process: signal 8"},
            "ready, models refused until stored again: 1 (m: its run ended its process: signal 8)",
            "",
        ),
        (
            READY
            | {
                "qa_inference_workers": 2,
                "qa_inference_ready": 1,
                "qa_inference_rss_bytes": 300_000_000,
                "qa_inference_file_bytes": 25_000_000,
            },
            "ready, 1 of 2 inference workers (325 MB)",
            "",
        ),
        (
            READY | {"qa_inference_workers": 2, "qa_inference_ready": 2, "qa_inference_missing": 3},
            "ready, 2 of 2 inference workers (0 MB), models to be loaded again: 3",
            "",
        ),
        (
            {
                "qa_worker_state": "ready",
                "qa_inference_workers": 2,
                "qa_inference_ready": 0,
                "qa_inference_restarts": 7,
            },
            "ready, 0 of 2 inference workers (0 MB)",
            "none of its 2 inference workers is running (restarts: 7)",
        ),
        (
            {"qa_worker_state": "backoff", "qa_worker_restarts": 3, "qa_inference_workers": 0},
            "backoff",
            "its worker is backoff (restarts: 3)",
        ),
    ],
)
def test_status_shows_the_number_of_running_inference_workers(
    fields: dict[str, object], shown: str, problem: str
) -> None:
    assert (_worker(fields), worker_problem(fields)) == (shown, problem)


@pytest.mark.parametrize(("given", "written"), [("HTTPS_PROXY", "HTTPS_PROXY"), (" A, B_1 ,c", "A,B_1,c")])
def test_names_of_environment_variables(given: str, written: str) -> None:
    assert ("qa.worker-environment", written) in module_options(Settings(worker_environment=given))


@pytest.mark.parametrize("given", ["A B", "A,,B", "A=1", "1A", "*"])
def test_an_invalid_list_of_names_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="worker_environment"):
        module_options(Settings(worker_environment=given))


def test_kinds_of_answer_keys() -> None:
    for kind in ("text", "digest"):
        settings = load(flags={"answer_keys": kind}, environment={}).settings
        assert ("qa.answer-keys", kind) in module_options(settings)
    with pytest.raises(ConfigError, match=r"answer_keys.*must be one of text, digest"):
        load(flags={"answer_keys": "sha1"}, environment={})


@pytest.mark.parametrize(
    ("setting", "written"), [("", "{data}/compiled-models"), ("{data}/else", "{data}/else"), ("off", None)]
)
def test_folder_of_compiled_models(tmp_path: Path, setting: str, written: str | None) -> None:
    settings = Settings(data_dir=tmp_path, model_cache_dir=setting.format(data=tmp_path))
    state = ClusterState(1, 0, (7000,), "server", created=True)
    (shard,) = LocalCluster(settings, options=module_options(settings)).specs(state)
    alone = single.prepare(settings, "127.0.0.1", free_port())
    wanted = [written.format(data=tmp_path)] if written is not None else []
    for spec in (shard, alone):
        assert [value for name, value in spec.options if name == "qa.model-cache-dir"] == wanted
