"""The service with TLS: refused connections, and certificates that are replaced while the service answers."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from qa_cluster.api.__main__ import main
from qa_cluster.client import AsyncClient, Client
from qa_cluster.errors import ClusterError
from qa_cluster.security.tls import trusted
from tests.api.service_under_test import succeeds
from tests.client.scripted_cluster import ScriptedCluster
from tests.harness.certificates import Authority, Pair
from tests.harness.polling import eventually_async
from tests.harness.ports import free_port
from tests.harness.programs import ROOT

pytestmark = pytest.mark.hostile


@dataclass
class Serving:
    """A service with TLS: its process, its files, and a client that trusts its certificate authority."""

    child: asyncio.subprocess.Process
    log: Path
    client: httpx.AsyncClient
    authority: Authority
    files: Pair
    port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def logged(self, text: str, times: int = 1) -> None:
        """Wait until the log of the service has the text `times` times."""

        async def found() -> bool:
            return self.log.read_text().count(text) == times

        await eventually_async(found)

    def replace(self, pair: Pair) -> None:
        """Replace the certificate and key files of the service."""
        shutil.copy(pair.key, self.files.key)
        shutil.copy(pair.cert, self.files.cert)

    async def shown(self) -> bytes:
        """The certificate that the service sends to a new connection."""
        return await asyncio.to_thread(self._shown)

    def _shown(self) -> bytes:
        context = trusted(str(self.authority.cert))
        assert isinstance(context, ssl.SSLContext)
        with (
            socket.create_connection(("127.0.0.1", self.port), 30) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
        ):
            return wrapped.getpeercert(binary_form=True) or b""


def der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.cert.read_text())


@asynccontextmanager
async def serving(cluster: ScriptedCluster, folder: Path, authority: Authority) -> AsyncIterator[Serving]:
    port, files = free_port(), Pair(folder / f"live-{os.urandom(4).hex()}.crt", folder / f"{os.urandom(4).hex()}.key")
    first = authority.sign("first", ["IP:127.0.0.1"])
    shutil.copy(first.cert, files.cert)
    shutil.copy(first.key, files.key)
    words = ("--port", str(port), "--tls-cert", str(files.cert), "--tls-key", str(files.key))
    verify = trusted(str(authority.cert))
    log = files.cert.with_suffix(".log")
    with log.open("wb") as writing:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "qa_cluster.api", *words),
            env={**os.environ, "QA_CLUSTER_URL": cluster.url},
            stderr=writing,
        )
    try:
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{port}", timeout=30, verify=verify) as client:
            await eventually_async(lambda: succeeds(client, "/readyz"))
            yield Serving(child, log, client, authority, files, port)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "made")


async def test_only_clients_that_trust_the_certificate_get_answers(
    cluster: ScriptedCluster, tmp_path: Path, authority: Authority
) -> None:
    async with serving(cluster, tmp_path, authority) as service:
        async with AsyncClient(service.url, tls_ca=str(authority.cert)) as client:
            await client.put_document("a", "Ada wrote it.")
            assert (await client.ask("Who wrote it?")).answers
        assert (await service.client.get("/")).is_success
        async with AsyncClient(service.url) as stranger:
            with pytest.raises(ClusterError, match=r"is not trusted .* in the argument tls_ca"):
                await stranger.ask("Who wrote it?", timeout=5)
        with pytest.raises(ClusterError, match="is for another host"):
            await asyncio.to_thread(_ask, f"https://localhost:{service.port}", str(authority.cert))
        with pytest.raises(httpx.TransportError):
            await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{service.port}/livez")
        assert (await service.client.get("/livez")).is_success
        assert await asyncio.to_thread(negotiated, service, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await asyncio.to_thread(negotiated, service, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(negotiated, service, ssl.TLSVersion.TLSv1_1)
        given = {"QA_HTTP_PORT": str(service.port), "QA_HTTP_TLS_CERT": str(service.files.cert)}
        health = (sys.executable, "-I", str(ROOT / "deploy" / "docker" / "health.py"), "ready")
        assert await (await asyncio.create_subprocess_exec(*health, env={**os.environ, **given})).wait() == 0
        service.child.terminate()
        await service.child.wait()
        assert "Traceback" not in service.log.read_text()


def negotiated(service: Serving, highest: ssl.TLSVersion) -> str | None:
    """The version of TLS that a client negotiates if it supports all versions up to `highest`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(service.authority.cert)
    context.set_ciphers("ALL:@SECLEVEL=0")  # lets this client use TLS 1.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, highest
    with (
        socket.create_connection(("127.0.0.1", service.port), 30) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
    ):
        return wrapped.version()


def _ask(url: str, ca: str) -> None:
    with Client(url, tls_ca=ca) as client:
        client.ask("Who wrote it?", timeout=5)


async def test_two_services_load_new_certificates_and_lose_no_connection(
    cluster: ScriptedCluster, tmp_path: Path, authority: Authority
) -> None:
    second = authority.sign("second")
    async with serving(cluster, tmp_path, authority) as one, serving(cluster, tmp_path, authority) as other:
        for service in (one, other):
            before = await service.shown()
            opened, written = await asyncio.open_connection(
                "127.0.0.1", service.port, ssl=_verifying(authority), server_hostname="127.0.0.1"
            )
            assert await _live(opened, written)
            service.replace(second)
            assert await service.shown() == before  # the service reads the new files only after the signal
            service.child.send_signal(signal.SIGHUP)

            async def renewed(service: Serving = service) -> bool:
                return await service.shown() == der(second)

            await eventually_async(renewed)
            assert await _live(opened, written)  # this connection is older than the new certificate
            written.close()
            await written.wait_closed()


async def test_unusable_files_leave_the_old_certificate_in_use(
    cluster: ScriptedCluster, tmp_path: Path, authority: Authority
) -> None:
    second, third = authority.sign("second"), authority.sign("third")
    async with serving(cluster, tmp_path, authority) as service:
        before = await service.shown()
        shutil.copy(second.key, service.files.key)  # the new key without its certificate
        service.child.send_signal(signal.SIGHUP)
        await service.logged("does not belong to the certificate")
        assert await service.shown() == before
        service.files.cert.unlink()
        service.child.send_signal(signal.SIGHUP)
        await service.logged("the service keeps the current certificate", 2)
        assert await service.shown() == before
        service.replace(third)
        service.child.send_signal(signal.SIGHUP)

        async def renewed() -> bool:
            return await service.shown() == der(third)

        await eventually_async(renewed)
        service.child.terminate()
        await service.child.wait()
        log = service.log.read_text()
        assert f"the key of http_tls_key, '{service.files.key}', does not belong to the certificate" in log
        assert f"the file of http_tls_cert, '{service.files.cert}', cannot be read" in log
        assert "Traceback" not in log


def _verifying(authority: Authority) -> ssl.SSLContext:
    context = trusted(str(authority.cert))
    assert isinstance(context, ssl.SSLContext)
    return context


async def _live(opened: asyncio.StreamReader, written: asyncio.StreamWriter) -> bool:
    """Whether the service answers a request on this connection."""
    written.write(b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    head = await opened.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await opened.readexactly(int(length.partition(b":")[2]))
    return head.startswith(b"HTTP/1.1 200")


async def test_a_client_without_a_tls_handshake_is_disconnected(
    cluster: ScriptedCluster, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QA_HTTP_HEAD_TIMEOUT_MS", "300")
    async with serving(cluster, tmp_path, authority) as service:
        opened, written = await asyncio.open_connection("127.0.0.1", service.port)
        assert await asyncio.wait_for(opened.read(), 30) == b""
        written.close()


@pytest.mark.parametrize("missing", ["cert", "key", "both", "pair"])
def test_a_start_with_unusable_files_ends_with_status_2_and_one_line(
    missing: str,
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = authority.sign("first"), authority.sign("second")
    cert, key = {
        "cert": (str(tmp_path / "none"), str(first.key)),
        "key": (str(first.cert), str(tmp_path / "none")),
        "both": ("", str(first.key)),
        "pair": (str(first.cert), str(second.key)),
    }[missing]
    monkeypatch.setenv("QA_CLUSTER_URL", "redis://127.0.0.1:1")
    assert main(["--tls-cert", cert, "--tls-key", key]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ") and "http_tls_" in text and text.count("\n") == 1
