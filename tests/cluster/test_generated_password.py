"""A local cluster with a password of its own, which the user's commands find and nobody else can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from qa_cluster.cluster.servers.local import LocalCluster, with_password
from qa_cluster.config import PASSWORD_FILE, Settings, load
from qa_cluster.errors import ConfigError
from tests.harness.polling import eventually
from tests.harness.system import UNHURRIED, System

pytestmark = pytest.mark.hostile


@pytest.fixture
def guarded(server_binary: Path) -> Iterator[System]:
    with System(server_binary, shards=1, up=("--generate-password",), **UNHURRIED) as made:
        yield made


def test_commands_find_the_password_and_nobody_gets_in_without(guarded: System) -> None:
    data = guarded.folder / "data"
    file = data / PASSWORD_FILE
    password = file.read_text().strip()
    assert len(password) == 64
    assert (data.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    (guarded.folder / "ada.txt").write_text("Ada Lovelace wrote the first program in 1843.")
    guarded.cli("ingest", "ada.txt")
    assert "Ada Lovelace" in guarded.cli("ask", "Who wrote the first program?").stdout
    guarded.start_service()
    assert b"Ada Lovelace" in guarded.http("/qa?question=Who+wrote+the+first+program%3F")[2]
    guarded.cli("pretokenize", "--background")
    eventually(lambda: [job["state"] for job in guarded.status()["jobs"]] == ["finished"])
    shown = guarded.cli("config", "--json").stdout
    assert password not in shown
    assert json.loads(shown)["cluster_password"]["source"] == f"file {file}"

    refused = guarded.client(0, retry=Retry(NoBackoff(), 0))
    assert_refused(refused)
    guarded.stop_service()
    guarded.cli("down")
    guarded.cli("up")  # the option is needed once only
    assert file.read_text().strip() == password
    assert guarded.status()["ready"]
    assert_refused(refused)
    guarded.cli("up", "--generate-password")
    assert file.read_text().strip() == password


def assert_refused(client: redis.Redis) -> None:
    with pytest.raises(redis.exceptions.AuthenticationError):
        client.get("paragraphs:ada.txt")


def test_the_password_of_the_folder_is_for_its_cluster_only(tmp_path: Path) -> None:
    (tmp_path / PASSWORD_FILE).write_text("made\n")
    here = {"QA_DATA_DIR": str(tmp_path)}
    assert load("/dev/null", environment=here).settings.cluster_password == "made"
    elsewhere = load("/dev/null", environment={**here, "QA_CLUSTER_URL": "redis://db:7000"})
    assert elsewhere.settings.cluster_password == ""
    given = load("/dev/null", environment={**here, "QA_CLUSTER_PASSWORD": "given"})
    assert given.settings.cluster_password == "given"
    none = load("/dev/null", environment={**here, "QA_CLUSTER_PASSWORD": ""})
    assert none.settings.cluster_password == ""


def test_a_password_is_made_only_where_it_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    with pytest.raises(ConfigError, match="for a local cluster only"):
        with_password(replace(settings, cluster_url="redis://db:7000"))
    with pytest.raises(ConfigError, match="is a password already") as caught:
        with_password(replace(settings, cluster_password="hunter2"))
    assert "hunter2" not in str(caught.value)
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "is_running", lambda self: True)
        with pytest.raises(ConfigError, match="runs without a password: `qa-cluster down`"):
            with_password(settings)
    assert not (tmp_path / "data" / PASSWORD_FILE).exists()
    made = with_password(settings)
    assert with_password(made) == made
