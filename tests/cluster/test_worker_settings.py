"""The settings `worker_environment` and `answer_keys`: servers get them as the module takes them."""

from __future__ import annotations

import pytest

from qa_cluster.cluster.servers.module_options import module_options
from qa_cluster.config import Settings, load
from qa_cluster.errors import ConfigError


@pytest.mark.parametrize(("given", "written"), [("HTTPS_PROXY", "HTTPS_PROXY"), (" A, B_1 ,c", "A,B_1,c")])
def test_names_of_variables(given: str, written: str) -> None:
    assert ("qa.worker-environment", written) in module_options(Settings(worker_environment=given))


def test_none_is_the_default() -> None:
    assert "qa.worker-environment" not in dict(module_options(Settings()))


@pytest.mark.parametrize("given", ["A B", "A,,B", "A=1", "1A", "*"])
def test_what_is_no_list_of_names_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="worker_environment"):
        module_options(Settings(worker_environment=given))


@pytest.mark.parametrize("kind", ["text", "digest"])
def test_keys_of_answers(kind: str) -> None:
    settings = load(flags={"answer_keys": kind}, environment={}).settings
    assert ("qa.answer-keys", kind) in module_options(settings)


def test_another_kind_of_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"answer_keys.*must be one of text, digest"):
        load(flags={"answer_keys": "sha1"}, environment={})
