"""`qa-cluster check` reports what a host lacks to run a server of the cluster, and leaves no files or processes."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster.cluster.provision.host_check import Check, HostPlan, check_host
from qa_cluster.cluster.servers.processes import stop_all
from qa_cluster.cluster.servers.server_process import ServerSpec, start
from qa_cluster.config import Settings
from tests.harness.certificates import Authority, without_tls
from tests.harness.ports import free_port
from tests.harness.programs import MODULE
from tests.harness.system import TOOL, UNHURRIED, System


@pytest.fixture
def settings(server_binary: Path) -> Settings:
    return replace(Settings(), server=str(server_binary), module_path=str(MODULE), cluster_password="secret")


def checks(settings: Settings, host: str = "127.0.0.1", port: int = 0, announce: str = "") -> dict[str, Check]:
    return {made.what: made for made in check_host(HostPlan(settings, host, port or free_port(), announce))}


def missing(found: dict[str, Check]) -> dict[str, str]:
    return {name: made.said for name, made in found.items() if not made.ok}


def test_a_host_that_has_everything(settings: Settings, tmp_path: Path) -> None:
    found = checks(settings, "0.0.0.0")
    assert missing(found) == {}
    assert found["server, module and worker"].said == "started as a test; the worker was ready"
    assert str(MODULE) in found["module file"].said
    assert not any(tmp_path.iterdir())


@pytest.mark.one_server
def test_missing_requirements_are_named_with_advice(settings: Settings, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no qa_cluster' >&2\nexit 1\n")
    python.chmod(0o755)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        lacking = replace(settings, worker_python=str(python), module_path=str(tmp_path / "qa.so"), cluster_password="")
        found = missing(checks(lacking, "0.0.0.0", port if port <= 55_535 else 60_000))
    assert "cannot run a worker: ModuleNotFoundError: no qa_cluster; install qa-cluster" in found["worker environment"]
    assert "'module_path'" in found["module file"]
    assert "needs a password" in found["password"]
    assert "'bus_key_file' or 'cluster_password'" in found["bus key"]
    assert "not tried" in found["server, module and worker"]
    assert any(name.startswith("ports ") for name in found)
    python.write_text('#!/bin/sh\necho \'["0.0.1", "3.11.0"]\'\n')
    found = missing(checks(replace(lacking, server=str(python))))
    assert "has qa-cluster 0.0.1, but this command has" in found["worker environment"]
    assert "is not redis-server or valkey-server" in found["server program"]


def test_the_command_checks_the_named_server_program(tmp_path: Path) -> None:
    words = [TOOL, "check", "--server", "none-such", "--port", str(free_port()), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stderr
    told = {made["what"]: made["said"] for made in json.loads(done.stdout)["checks"] if not made["ok"]}
    assert "none-such" in told["server program"]


def test_the_log_of_a_worker_that_never_becomes_ready_is_shown(settings: Settings, tmp_path: Path) -> None:
    python = tmp_path / "python"
    facts = '["0.1.0", "3.11.0"]'
    python.write_text(f"#!/bin/sh\ncase \"$2\" in -c) echo '{facts}';; *) echo 'no onnxruntime here'; exit 1;; esac\n")
    python.chmod(0o755)
    said = missing(checks(replace(settings, worker_python=str(python))))
    assert list(said) == ["server, module and worker"]
    assert "no onnxruntime here" in said["server, module and worker"]


@pytest.mark.hostile
def test_certificates_are_checked_as_other_servers_check_them(
    settings: Settings, server_binary: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    given = replace(
        settings, cluster_tls_ca=str(authority.cert), server_tls_cert=str(pair.cert), server_tls_key=str(pair.key)
    )
    found = checks(given, announce="127.0.0.1")["certificate"]
    assert found.ok == (not without_tls(server_binary)), found.said
    assert found.ok or "built without TLS" in found.said
    assert "is for another host" in checks(given, announce="127.0.0.2")["certificate"].said
    old = authority.sign("old", days=0)
    expired = replace(given, server_tls_cert=str(old.cert), server_tls_key=str(old.key))
    assert "has expired" in checks(expired)["certificate"].said
    wanted = replace(settings, cluster_url=f"rediss://127.0.0.1:{free_port()}")
    assert "add --tls-cert, --tls-key and --cluster-tls-ca" in checks(wanted)["certificate"].said


@pytest.fixture
def elsewhere(server_binary: Path) -> Iterator[System]:
    with System(server_binary, shards=1, **UNHURRIED) as made:
        yield made


def test_the_connections_to_other_servers_are_checked(elsewhere: System, tmp_path: Path, settings: Settings) -> None:
    host, port = elsewhere.addresses[0]
    spec = ServerSpec(tmp_path / "plain", settings.server, free_port(), cluster=False)
    process = start(spec, 60)
    try:
        url = f"redis://{host}:{port},{host}:{spec.port},{host}:1"
        words = ("check", "--port", str(port), "--cluster-url", url, "--set", "cluster_password=", "--json")
        done = elsewhere.cli(*words, check=False)
    finally:
        stop_all([process], 30)
    assert done.returncode == 1
    found = {made["what"]: made for made in json.loads(done.stdout)["checks"]}
    assert found[f"server {host}:{port}"]["said"] == "answers, with the module; its cluster bus can be reached"
    assert "cluster bus" in found[f"server {host}:{spec.port}"]["said"]
    assert "refused" in found[f"server {host}:1"]["said"]
    assert found[f"ports {port} and {port + 10_000}"]["said"] == "a server with the module already listens there"
