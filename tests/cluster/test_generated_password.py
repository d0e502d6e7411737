"""A local cluster requires its generated password. Only its user's commands and clients can read the password."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from qa_cluster.client import ClusterClient
from qa_cluster.cluster.evaluation import temporary_cluster
from qa_cluster.cluster.readers.reader_files import ReaderFiles, budget_of, read_reader
from qa_cluster.cluster.servers.local import LocalCluster, with_local_password, with_password, without_password
from qa_cluster.cluster.servers.state import ClusterState, write_state
from qa_cluster.config import Settings, load
from qa_cluster.errors import ClusterError, ConfigError
from qa_cluster.reading.bundled import bundled_reader
from qa_cluster.security.local_password import PASSWORD_FILE
from tests.harness.commands import run_here
from tests.harness.polling import eventually
from tests.harness.programs import MODULE
from tests.harness.system import WORDS_ONLY, System

from .test_passwords import read

pytestmark = pytest.mark.hostile
WHO = "Who wrote the first program?"


@pytest.fixture
def guarded(server_binary: Path) -> Iterator[System]:
    """The cluster that `qa-cluster up` creates by default."""
    with System(server_binary, shards=1, up=(), **WORDS_ONLY) as made:
        yield made


def test_commands_and_clients_find_the_password_and_it_is_required(
    guarded: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = guarded.folder / "data"
    file = data / PASSWORD_FILE
    password = file.read_text().strip()
    assert len(password) == 64
    assert (data.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    (guarded.folder / "ada.txt").write_text("Ada Lovelace wrote the first program in 1843.")
    guarded.cli("ingest", "ada.txt")
    assert "Ada Lovelace" in guarded.cli("ask", WHO).stdout
    guarded.start_service()
    assert b"Ada Lovelace" in guarded.http("/qa?question=Who+wrote+the+first+program%3F")[2]
    guarded.cli("pretokenize", "--background")
    eventually(lambda: [job["state"] for job in guarded.status()["jobs"]] == ["finished"])
    assert in_view(guarded, password) == []
    shown = guarded.cli("config", "--json").stdout
    assert password not in shown
    assert json.loads(shown)["cluster_password"]["source"] == f"file {file}"
    refused = guarded.client(0, retry=Retry(NoBackoff(), 0))
    assert_refused(refused)

    with pytest.raises(ClusterError, match=r"NOAUTH.*'cluster_password'"), ClusterClient(guarded.url):
        pass
    (guarded.folder / ".qa-cluster").symlink_to(data)
    monkeypatch.chdir(guarded.folder)
    with ClusterClient(guarded.url) as client:
        assert client.ask(WHO, timeout=60).answers[0].answer == "Ada Lovelace"
    by_address = {name: value for name, value in guarded.environment.items() if name != "QA_DATA_DIR"}
    asked = run_here(("--cluster-url", guarded.url, "ask", WHO), guarded.folder, by_address)
    assert "Ada Lovelace" in asked.stdout, asked.stderr

    guarded.stop_service()
    guarded.cli("down")
    guarded.cli("up")
    assert file.read_text().strip() == password
    assert guarded.status()["ready"]
    assert_refused(refused)
    guarded.cli("up", "--generate-password")
    assert file.read_text().strip() == password
    assert "has a password: to remove it, run `qa-cluster down`" in " ".join(
        guarded.cli("up", "--no-password", check=False).stderr.split()
    )
    assert file.read_text().strip() == password


def assert_refused(client: redis.Redis) -> None:
    with pytest.raises(redis.exceptions.AuthenticationError):
        client.get("paragraphs:ada.txt")


def in_view(system: System, password: str) -> list[str]:
    """Return the arguments of processes and the log lines that contain the password."""
    texts = [read(entry.name, "cmdline").decode(errors="replace") for entry in Path("/proc").glob("[0-9]*")]
    assert any(str(system.folder) in text for text in texts)
    texts += [file.read_text(errors="replace") for file in system.folder.rglob("*.log")]
    return [text for text in texts if password in text]


@pytest.mark.one_server("a setting says so, whichever the server")
def test_an_empty_password_means_no_password(server_binary: Path, tmp_path: Path) -> None:
    given = {"QA_SHARDS": "1", "QA_SERVER": str(server_binary), "QA_MODULE_PATH": str(MODULE)}
    try:
        done = run_here(("up", "--bare"), tmp_path, {**given, "QA_CLUSTER_PASSWORD": ""})
        assert done.returncode == 0, done.stderr
        assert "password" not in done.stdout
        assert not (tmp_path / ".qa-cluster" / PASSWORD_FILE).exists()
    finally:
        run_here(("down",), tmp_path, given)


@pytest.mark.one_server("the same servers as those of `up`")
def test_the_temporary_cluster_of_an_evaluation_has_a_password(
    server_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # without models, to save time
    monkeypatch.setattr(temporary_cluster, "provision", lambda *arguments: None)
    monkeypatch.setattr(temporary_cluster, "add_models", lambda *arguments: None)
    settings = replace(Settings(), shards=1, server=str(server_binary), module_path=MODULE)
    reader: ReaderFiles = read_reader(bundled_reader(), budget_of(settings))
    with temporary_cluster.temporary_cluster(settings, reader) as made:
        port = int(made.cluster_url.rpartition(":")[2])
        with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
            assert_refused(client)
        with redis.Redis(port=port, password=made.cluster_password) as client:
            assert client.ping()


def test_the_password_of_a_folder_is_used_only_for_its_cluster(tmp_path: Path) -> None:
    (tmp_path / PASSWORD_FILE).write_text("made\n")
    here = {"QA_DATA_DIR": str(tmp_path)}
    assert load("/dev/null", environment=here).settings.cluster_password == "made"
    elsewhere = load("/dev/null", environment={**here, "QA_CLUSTER_URL": "redis://db:7000"})
    assert elsewhere.settings.cluster_password == ""
    given = load("/dev/null", environment={**here, "QA_CLUSTER_PASSWORD": "given"})
    assert given.settings.cluster_password == "given"
    none = load("/dev/null", environment={**here, "QA_CLUSTER_PASSWORD": ""})
    assert none.settings.cluster_password == ""


def test_only_a_new_cluster_gets_a_password(tmp_path: Path) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    file = settings.data_dir / PASSWORD_FILE
    for chosen in (replace(settings, cluster_url="redis://db:7000"), replace(settings, cluster_password="hunter2")):
        assert with_local_password(chosen) == chosen
    assert not file.exists()
    made = with_local_password(settings)
    assert made.cluster_password == file.read_text().strip()
    assert with_local_password(settings) == made, "an existing password is used again"
    assert without_password(made) == settings, "no cluster uses the password, so the command removes it"
    assert not file.exists()
    write_state(settings.data_dir, ClusterState(1, 0, (7000,), "redis-server", created=True))
    assert with_local_password(settings) == settings
    assert without_password(settings) == settings
    assert not file.exists()


def test_the_option_no_password_is_refused_for_a_cluster_with_a_password(tmp_path: Path) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    with pytest.raises(ConfigError, match=r"only .*for a local cluster"):
        without_password(replace(settings, cluster_url="redis://db:7000"))
    with pytest.raises(ConfigError, match="contradicts --no-password") as caught:
        without_password(replace(settings, cluster_password="hunter2"))
    assert "hunter2" not in str(caught.value)
    made = with_local_password(settings)
    write_state(settings.data_dir, ClusterState(1, 0, (7000,), "redis-server", created=True))
    with pytest.raises(ConfigError, match="has a password: to remove it, run `qa-cluster down`"):
        without_password(made)
    assert (settings.data_dir / PASSWORD_FILE).exists()


def test_a_password_is_generated_only_if_the_cluster_can_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    with pytest.raises(ConfigError, match=r"only .*for a local cluster"):
        with_password(replace(settings, cluster_url="redis://db:7000"))
    with pytest.raises(ConfigError, match="is already set") as caught:
        with_password(replace(settings, cluster_password="hunter2"))
    assert "hunter2" not in str(caught.value)
    with monkeypatch.context() as patched:
        patched.setattr(LocalCluster, "is_running", lambda self: True)
        with pytest.raises(ConfigError, match="is running without a password: to add one, run `qa-cluster down`"):
            with_password(settings)
    assert not (tmp_path / "data" / PASSWORD_FILE).exists()
    made = with_password(settings)
    assert with_password(made) == made
