"""Certificates are verified in the same way as by peers, and errors name the unusable files."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from qa_cluster.config import Settings, load
from qa_cluster.errors import ConfigError
from qa_cluster.routing.cluster_address import address_of
from qa_cluster.security.tls import (
    MINIMUM,
    OwnServer,
    TlsFiles,
    certificate_problem,
    explain_failure,
    service_context,
    trusted,
)
from tests.harness.certificates import Authority, Pair

pytestmark = pytest.mark.hostile


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign("peer")


def judged(pair: Pair, authority: Authority, host: str = "", *, as_client: bool = False) -> str:
    files = ("cert", str(pair.cert)), ("key", str(pair.key)), ("ca", str(authority.cert))
    return certificate_problem(*files, host, as_client=as_client)


def test_a_good_certificate_is_good_for_both_sides_and_its_hosts_only(authority: Authority, pair: Pair) -> None:
    assert [judged(pair, authority, host) for host in ("", "127.0.0.1", "localhost")] == ["", "", ""]
    assert judged(pair, authority, as_client=True) == ""
    assert "its certificate is for another host" in judged(pair, authority, "10.0.0.1")


def test_each_fault_of_a_certificate_has_its_own_message(authority: Authority, tmp_path: Path) -> None:
    old = authority.sign("old", days=0)
    assert judged(old, authority) == judged(old, authority, as_client=True)
    assert "has expired: renew it" in judged(old, authority)
    stranger = Authority(tmp_path, "stranger").sign("strange")
    assert "is not trusted" in judged(stranger, authority)
    assert "--cluster-tls-ca" in judged(stranger, authority)
    client = authority.sign("client", usage="clientAuth")
    assert judged(client, authority, as_client=True) == ""
    assert "needs serverAuth and clientAuth" in judged(client, authority)


@pytest.mark.parametrize("which", ["ca", "cert", "key"])
@pytest.mark.parametrize("content", [None, "hm"])
def test_files_that_cannot_be_used_are_named(
    authority: Authority, pair: Pair, tmp_path: Path, which: str, content: str | None
) -> None:
    bad = tmp_path / f"bad {which}"
    if content is not None:
        bad.write_text(content)
    said = "cannot be read: No such file" if content is None else "in PEM"
    files = {"ca": authority.cert, "cert": pair.cert, "key": pair.key} | {which: bad}
    named = TlsFiles(**{name: str(file) for name, file in files.items()})
    with pytest.raises(ConfigError, match=said) as caught:
        named.context()
    assert f"cluster_tls_{which}" in str(caught.value)
    assert str(bad) in str(caught.value)


def test_a_key_of_another_certificate_and_one_with_a_pass_phrase_are_refused(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    other = authority.sign("other")
    with pytest.raises(ConfigError, match="does not belong to the certificate of cluster_tls_cert"):
        TlsFiles(cert=str(pair.cert), key=str(other.key)).context()
    with pytest.raises(ConfigError, match="does not belong to the certificate of http_tls_cert"):
        service_context(str(pair.cert), str(other.key))
    locked = tmp_path / "locked.key"
    words = ("pkcs8", "-topk8", "-v2", "aes256", "-passout", "pass:secret", "-in", str(pair.key), "-out", str(locked))
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)
    with pytest.raises(ConfigError, match="has a pass phrase"):  # without a prompt
        service_context(str(pair.cert), str(locked))
    with pytest.raises(ConfigError, match="its certificate in 'cluster_tls_cert' is not"):
        TlsFiles(key=str(pair.key)).context()
    with pytest.raises(ConfigError, match="its certificate in 'http_tls_cert'"):
        service_context("", str(pair.key))


def test_every_context_wants_tls_1_2_and_a_known_authority(authority: Authority, pair: Pair) -> None:
    client = TlsFiles(str(authority.cert), str(pair.cert), str(pair.key)).context()
    assert (client.minimum_version, client.verify_mode, client.check_hostname) == (MINIMUM, ssl.CERT_REQUIRED, True)
    # only the named authority, no authority of the system
    assert len(client.get_ca_certs()) == 1
    assert not TlsFiles(str(authority.cert), check_host=False).context().check_hostname
    assert service_context(str(pair.cert), str(pair.key)).minimum_version == MINIMUM
    assert trusted("") is True
    asking = trusted(str(authority.cert))
    assert isinstance(asking, ssl.SSLContext)
    assert asking.check_hostname
    worker = OwnServer(1, str(authority.cert), "", str(pair.cert), str(pair.cert), str(pair.key), "").context()
    assert (worker.minimum_version, worker.verify_mode) == (MINIMUM, ssl.CERT_REQUIRED)


def test_a_worker_of_a_server_without_authority_trusts_its_certificate_only(authority: Authority, pair: Pair) -> None:
    def taken(shown: Pair) -> bool:
        worker = OwnServer(1, "", "", str(pair.cert), "", "", "").context()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(shown.cert, shown.key)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        ours = worker.wrap_bio(to_client, to_server)
        theirs = server.wrap_bio(to_server, to_client, server_side=True)
        for end in (ours, theirs, ours):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
        return True

    assert taken(pair)
    assert not taken(authority.sign("another"))


def test_other_failures_have_no_explanation_and_servers_without_tls_have_one() -> None:
    assert explain_failure(OSError("no route")) == ""
    assert explain_failure(None) == ""
    assert "write redis://" in explain_failure(
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    )
    assert "http://" in explain_failure(
        ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), of_service=True
    )


def test_certificates_of_the_folder_are_for_its_cluster_only(tmp_path: Path) -> None:
    made = tmp_path / "tls"
    made.mkdir()
    (made / "ca.crt").write_text("here")
    here = {"QA_DATA_DIR": str(tmp_path)}
    found = load("/dev/null", environment=here)
    assert found.settings.cluster_tls_ca == str(made / "ca.crt")
    assert found.settings.cluster_tls_key == str(made / "client.key")
    assert found.sources["cluster_tls_cert"] == f"folder {made}"
    elsewhere = load("/dev/null", environment={**here, "QA_CLUSTER_URL": "rediss://db:7000"})
    assert elsewhere.settings.cluster_tls_ca == ""
    given = load("/dev/null", environment={**here, "QA_CLUSTER_TLS_CA": "mine"})
    assert (given.settings.cluster_tls_ca, given.settings.cluster_tls_cert) == ("mine", "")


def test_the_settings_reach_the_login(authority: Authority, pair: Pair) -> None:
    settings = replace(
        Settings(),
        cluster_url="rediss://db:7000",
        cluster_tls_ca=str(authority.cert),
        cluster_tls_cert=str(pair.cert),
        cluster_tls_key=str(pair.key),
        cluster_tls_check_host=False,
    )
    context = address_of(settings).login.tls
    assert context is not None
    assert not context.check_hostname
    assert address_of(replace(settings, cluster_url="redis://db:7000")).login.tls is None
