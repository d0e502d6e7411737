"""Servers receive `worker_environment`, `answer_keys` and `model_cache_dir` in the syntax of the module."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa_cluster.cluster.servers import single
from qa_cluster.cluster.servers.local import LocalCluster
from qa_cluster.cluster.servers.module_options import module_options
from qa_cluster.cluster.servers.state import ClusterState
from qa_cluster.config import Settings, load
from qa_cluster.errors import ConfigError
from tests.harness.ports import free_port


@pytest.mark.parametrize(("given", "written"), [("HTTPS_PROXY", "HTTPS_PROXY"), (" A, B_1 ,c", "A,B_1,c")])
def test_names_of_environment_variables(given: str, written: str) -> None:
    assert ("qa.worker-environment", written) in module_options(Settings(worker_environment=given))


def test_no_environment_variables_are_passed_by_default() -> None:
    assert "qa.worker-environment" not in dict(module_options(Settings()))


@pytest.mark.parametrize("given", ["A B", "A,,B", "A=1", "1A", "*"])
def test_an_invalid_list_of_names_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="worker_environment"):
        module_options(Settings(worker_environment=given))


@pytest.mark.parametrize("kind", ["text", "digest"])
def test_kinds_of_answer_keys(kind: str) -> None:
    settings = load(flags={"answer_keys": kind}, environment={}).settings
    assert ("qa.answer-keys", kind) in module_options(settings)


def test_an_unknown_kind_of_answer_keys_is_refused() -> None:
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


def test_by_default_servers_of_another_supervisor_have_no_folder(tmp_path: Path) -> None:
    assert "qa.model-cache-dir" not in dict(module_options(Settings(data_dir=tmp_path)))
