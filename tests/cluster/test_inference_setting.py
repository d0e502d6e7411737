"""The setting `inference_workers` reaches the servers, and `status` shows its effect."""

from __future__ import annotations

import pytest

from qa_cluster.cluster.commands.status import _worker
from qa_cluster.cluster.provision.inspection import worker_problem
from qa_cluster.cluster.servers.module_options import module_options
from qa_cluster.config import Settings

READY = {"qa_worker_state": "ready"}


@pytest.mark.parametrize("count", [0, 2])
def test_servers_get_the_setting(count: int) -> None:
    assert ("qa.inference-workers", str(count)) in module_options(Settings(inference_workers=count))


def test_servers_get_the_settings_of_shared_workers() -> None:
    given = module_options(Settings(worker_ahead=9, shared_ahead=2, bulk_users="night import"))
    wanted = {("qa.worker-ahead", "9"), ("qa.shared-ahead", "2"), ("qa.bulk-users", "night import")}
    assert wanted <= set(given)
    assert not [name for name, _ in module_options(Settings()) if name == "qa.bulk-users"]


@pytest.mark.parametrize(
    ("fields", "shown", "problem"),
    [
        ({}, "", ""),
        (READY, "ready", ""),
        (READY | {"qa_inference_workers": 0, "qa_inference_ready": 0}, "ready", ""),
        (
            READY | {"qa_models_refused": 1, "qa_model_refused_1": "m: its run ended its process: signal 8"},
            "ready, 1 refused until stored again (m: its run ended its process: signal 8)",
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
            "ready, 1 of 2 for models (325 MB)",
            "",
        ),
        (
            READY | {"qa_inference_workers": 2, "qa_inference_ready": 2, "qa_inference_missing": 3},
            "ready, 2 of 2 for models (0 MB), 3 to be loaded again",
            "",
        ),
        (
            {
                "qa_worker_state": "ready",
                "qa_inference_workers": 2,
                "qa_inference_ready": 0,
                "qa_inference_restarts": 7,
            },
            "ready, 0 of 2 for models (0 MB)",
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
