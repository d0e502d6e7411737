"""The worker connects to a server that only has a TLS port, and reports faults of certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.certificates import Authority, Pair, tls_or_skip
from tests.harness.polling import eventually
from tests.harness.servers import Server
from tests.harness.workers import WORKER

SCRIPT = """
def counted(_):
    with atomic():
        execute("SET", "a", "1")
        execute("INCR", "a")
    return execute("GET", "a")
GB("CommandReader").map(counted).register(trigger="count")
GB("CommandReader").map(lambda record: record[1] * 3).register(trigger="thrice")
"""


class TlsServer(Server):
    """A server that only has a TLS port."""

    def __init__(self, binary: Path, authority: Authority, pair: Pair, **settings: object) -> None:
        own = authority.sign("tester", usage="clientAuth")
        self.files = {"ssl_ca_certs": authority.cert, "ssl_certfile": own.cert, "ssl_keyfile": own.key}
        super().__init__(
            binary,
            {
                "port": 0,
                "unixsocket": "",
                "tls-cert-file": pair.cert,
                "tls-key-file": pair.key,
                "tls-ca-cert-file": authority.cert,
                **{name.replace("_", "-"): value for name, value in settings.items()},
            },
            worker=WORKER,
        )
        with (self.directory / "server.conf").open("a") as file:
            file.write(f"tls-port {self.port}\n")

    def client(self, **options: Any) -> Any:
        """A TLS client that checks neither the name nor the date of a certificate."""
        given = {name: str(file) for name, file in self.files.items()} | {"ssl_cert_reqs": "none"}
        options.setdefault("decode_responses", True)
        return redis.Redis(port=self.port, ssl=True, socket_timeout=30, **given | options)


@pytest.fixture
def program(server_binary: Path) -> Path:
    return tls_or_skip(server_binary)


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    yield Authority(tmp_path)


def works(server: TlsServer) -> None:
    server.wait_ready()
    with server.client() as client:
        client.execute_command("RG.PYEXECUTE", SCRIPT)
        assert client.execute_command("RG.TRIGGER", "count") == ["2"]
        large = "x" * 300_000  # large enough for many TLS records
        assert client.execute_command("RG.TRIGGER", "thrice", large) == [large * 3]


@pytest.mark.parametrize("clients", ["yes", "optional"])
def test_functions_run_over_tls_with_any_names_in_the_certificate(
    program: Path, authority: Authority, clients: str
) -> None:
    with TlsServer(program, authority, authority.sign("db", ["DNS:db.example"]), tls_auth_clients=clients) as server:
        works(server)


def test_a_server_without_an_authority_is_known_by_its_own_certificate(program: Path, authority: Authority) -> None:
    pair = authority.sign("db")
    with TlsServer(program, authority, pair, tls_auth_clients="no", tls_ca_cert_file="") as server:
        works(server)


def test_a_server_can_have_a_separate_client_certificate(program: Path, authority: Authority) -> None:
    client = authority.sign("client", usage="clientAuth")
    shown = {"tls_client_cert_file": client.cert, "tls_client_key_file": client.key}
    with TlsServer(program, authority, authority.sign("db", usage="serverAuth"), **shown) as server:
        works(server)


@pytest.mark.hostile
def test_the_log_says_what_certificates_lack(program: Path, authority: Authority) -> None:
    pair = authority.sign("db")
    with TlsServer(program, authority, pair) as server:
        server.wait_ready()
        with server.client() as client:
            content = pair.key.read_text()
            pair.key.unlink()
            server.signal_worker(9)
            eventually(lambda: f"'{pair.key}', cannot be read" in server.output())
            assert client.ping()
            assert "Traceback" not in server.output()
            pair.key.write_text(content)
            server.wait_ready()
            old = authority.sign("old", days=0)
            client.config_set("tls-cert-file", str(old.cert), "tls-key-file", str(old.key))
        server.signal_worker(9)
        eventually(lambda: "by TLS: its certificate has expired: renew it on that server" in server.output())
        assert "Traceback" not in server.output()
        with server.client() as client:
            client.config_set("tls-cert-file", str(pair.cert), "tls-key-file", str(pair.key))
        server.wait_ready()
