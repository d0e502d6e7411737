"""The password of a local cluster is sent only to the cluster's address, and read only from the user's own folder."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qa_cluster.client import ClusterClient
from qa_cluster.config import load
from qa_cluster.errors import ClusterError
from qa_cluster.security.local_password import PASSWORD_FILE, STATE_FILE, password_at
from tests.harness.strangers import give_away

pytestmark = pytest.mark.hostile
OWN = "redis://127.0.0.1:7000"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cluster of two servers, in the working directory.

    One server has the process id of this process.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".qa-cluster"
    folder.mkdir(0o700)
    (folder / STATE_FILE).write_text(json.dumps({"ports": [7000, 7001]}))
    (folder / PASSWORD_FILE).touch(0o600)
    (folder / PASSWORD_FILE).write_text("sesame\n")
    (folder / "node-0").mkdir()
    (folder / "node-0" / "server.pid").write_text(f"{os.getpid()}\n")
    return folder


@pytest.mark.parametrize(
    ("url", "password"),
    [
        (OWN, "sesame"),
        (f"{OWN},127.0.0.1:7001", "sesame"),
        ("rediss://127.0.0.1:7001", "sesame"),
        ("redis://127.0.0.1:7002", ""),
        (f"{OWN},127.0.0.1:7002", ""),
        (f"{OWN},db.example:7000", ""),
        ("redis://db.example:7000", ""),
        ("redis://localhost:7000", ""),
        ("redis://[::1]:7000", ""),
        ("redis://me@127.0.0.1:7000", ""),
        ("redis://me:other@127.0.0.1:7000", ""),
        ("redis://127.0.0.1:7000@db.example:7000", ""),
        ("redis://[127.0.0.1:7000", ""),
        ("127.0.0.1:7000", ""),
        ("", ""),
    ],
)
def test_only_the_clusters_own_address_gets_the_password(data: Path, url: str, password: str) -> None:
    assert password_at(url, data) == password


def test_settings_with_an_address_find_the_password(data: Path) -> None:
    def found(**environment: str) -> str:
        return load(environment={"QA_CLUSTER_URL": OWN, **environment}).settings.cluster_password

    assert found() == "sesame"
    assert load(environment={"QA_CLUSTER_URL": OWN}).sources["cluster_password"] == "file .qa-cluster/password"
    assert found(QA_CLUSTER_URL="redis://127.0.0.1:7002") == ""
    assert found(QA_CLUSTER_USER="ada") == "", "it is the password of another user"
    assert found(QA_CLUSTER_PASSWORD="") == ""
    assert found(QA_DATA_DIR="/nowhere") == ""


def test_no_password_is_found_while_no_server_of_the_cluster_runs(data: Path) -> None:
    pid = data / "node-0" / "server.pid"
    for text in (f"{2**22 + 1}", f"{2**80}", "", "x"):  # 2**22 is the highest process id of Linux
        pid.write_text(text)
        assert password_at(OWN, data) == ""
    pid.unlink()
    assert password_at(OWN, data) == ""


def test_no_password_is_found_where_others_can_read_or_write(data: Path) -> None:
    file = data / PASSWORD_FILE
    for path, mode, usual in ((file, 0o640, 0o600), (file, 0o604, 0o600), (data, 0o777, 0o700)):
        path.chmod(mode)
        assert password_at(OWN, data) == "", oct(mode)
        path.chmod(usual)
    assert password_at(OWN, data) == "sesame"


@pytest.mark.parametrize("name", ["", PASSWORD_FILE])
def test_no_password_is_found_in_files_of_another_user(data: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    give_away(data / name, monkeypatch)
    assert password_at(OWN, data) == ""


@pytest.mark.parametrize("state", ["", "[]", "{}", '{"ports": 7000}', '{"ports": ["x"]}', '{"ports": [null]}'])
def test_a_damaged_state_is_no_cluster(data: Path, state: str) -> None:
    (data / STATE_FILE).write_text(state)
    assert password_at(OWN, data) == ""
    (data / STATE_FILE).unlink()
    assert password_at(OWN, data) == ""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that closes every connection after the first bytes."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(30)
        yield made


@pytest.mark.parametrize("own", [True, False])
def test_a_client_sends_the_password_only_to_its_cluster(data: Path, listener: socket.socket, own: bool) -> None:
    port = listener.getsockname()[1]
    if own:
        (data / STATE_FILE).write_text(json.dumps({"ports": [port]}))
    client = ClusterClient(f"redis://127.0.0.1:{port}")
    heard = []

    def hear() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(4096))

    with ThreadPoolExecutor(1) as threads:
        heard_all = threads.submit(hear)
        with pytest.raises(ClusterError), client:
            pass
        heard_all.result()
    assert heard[0].startswith(b"*") and b"HELLO" in heard[0]
    assert (b"sesame" in heard[0]) == own
