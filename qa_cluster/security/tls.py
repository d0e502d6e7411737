"""TLS: the contexts of all connections, the checks of certificates, and the explanations of errors.

All programs get their contexts here: clients of the cluster (blocking, asynchronous and redis-py's), workers and the
REST service. So all programs require TLS 1.2 or later, and refuse the same files with the same messages. Only OpenSSL
verifies certificates. To check a certificate without a connection, `certificate_problem` runs a handshake in memory.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from qa_cluster.errors import ConfigError

MINIMUM = ssl.TLSVersion.TLSv1_2
# X509_V_ERR_* of OpenSSL, the values of `SSLCertVerificationError.verify_code`.
_EXPIRED, _NOT_YET = 10, 9
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_OTHER_NAME = frozenset({62, 64})
_NO_PURPOSE = 26
_REASON = re.compile(r"\[(?:SSL|[A-Z0-9]+)(?:: ([A-Z0-9_]+))?\]")
# A TLS server responds with an alert to a client that does not use TLS.
ALERT = b"\x15\x03"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS files of a client of the cluster; each may be empty.

    Attributes:
        ca: the authorities that may have signed the servers' certificates. If it is empty, these are the authorities
            that the system trusts.
        cert: the client's certificate, with the intermediate certificates.
        key: the key of the certificate. If it is empty, the file `cert` contains the key.
        check_host: whether a server's certificate must match its address.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    check_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a client; ConfigError names the setting and a file that cannot be used."""
        context = _client_context()
        if self.ca:
            _trust(context, "cluster_tls_ca", self.ca)
        else:
            context.load_default_certs()
        if self.cert:
            _load_pair(context, ("cluster_tls_cert", self.cert), ("cluster_tls_key", self.key))
        elif self.key:
            raise ConfigError("setting 'cluster_tls_key' is set, but its certificate in 'cluster_tls_cert' is not")
        context.check_hostname = self.check_host
        return context


@dataclass(frozen=True, slots=True)
class OwnServer:
    """The TLS files for a worker's connection to the server that started it. They are the server's own files.

    Attributes:
        port: the port for TLS.
        ca, ca_folder: the authorities that the server trusts.
        server: the server's certificate, which the worker trusts if the server names no authority.
        cert, key, key_password: the certificate and key that the server uses as a client. The worker uses them, too.
    """

    port: int
    ca: str
    ca_folder: str
    server: str
    cert: str
    key: str
    key_password: str

    def __repr__(self) -> str:
        return f"OwnServer(port={self.port})"

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a worker; ConfigError names the server's file that cannot be used.

        The context does not check host names: the address is always the worker's own host, but the certificate may have
        any name. The certificate must be signed by an authority that the server trusts. If the server names no
        authority, the certificate must be the server's own certificate.
        """
        context = _client_context()
        context.check_hostname = False
        if self.ca or self.ca_folder:
            if self.ca:
                _trust(context, "tls-ca-cert-file", self.ca)
            if self.ca_folder:
                context.load_verify_locations(capath=self.ca_folder)
        else:
            # Trust only the server's own certificate. The authority that signed it does not matter.
            context.load_verify_locations(cadata=_first_certificate("tls-cert-file", self.server))
            context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        if self.cert:
            _load_pair(context, ("tls-cert-file", self.cert), ("tls-key-file", self.key), self.key_password)
        return context


def trusted(ca: str) -> ssl.SSLContext | bool:
    """Return the argument `verify` of httpx for clients of the REST service.

    If `ca` is empty, httpx trusts the system's authorities. Raises ConfigError if the file `ca` cannot be used.
    """
    if not ca:
        return True
    context = _client_context()
    _trust(context, "tls_ca", ca)
    return context


def service_context(cert: str, key: str) -> ssl.SSLContext:
    """Return the TLS context of the REST service; ConfigError names the setting and a file that cannot be used.

    `key` may be empty if the file `cert` contains the key.
    """
    if not cert:
        raise ConfigError(
            "setting 'http_tls_key' (--tls-key) is set, but its certificate in 'http_tls_cert' (--tls-cert) is not"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, ("http_tls_cert", cert), ("http_tls_key", key))
    return context


def certificate_problem(
    cert: tuple[str, str], key: tuple[str, str], ca: tuple[str, str], host: str = "", *, as_client: bool = False
) -> str:
    """Return the reason why a peer that trusts `ca` would refuse a certificate; empty if the peer would accept it.

    Args:
        cert, key, ca: each the name of a setting and its file.
        host: the name or address that the certificate must match. If it is empty, the name is not checked.
        as_client: whether to verify the certificate as the certificate of a client, as servers do with each other.

    Raises:
        ConfigError: a file cannot be used.
    """
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if as_client else ssl.PROTOCOL_TLS_SERVER)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if as_client else ssl.PROTOCOL_TLS_CLIENT)
    _load_pair(ours, cert, key)
    _trust(theirs, *ca)
    if as_client:
        # Only the client's certificate is checked, so the client (`ours`) accepts any certificate of the server.
        ours.check_hostname, ours.verify_mode = False, ssl.CERT_NONE
        _load_pair(theirs, cert, key)
        theirs.verify_mode = ssl.CERT_REQUIRED
    else:
        theirs.check_hostname = bool(host)
    client, server = (ours, theirs) if as_client else (theirs, ours)
    try:
        _handshake(client, server, host if theirs.check_hostname else None)
    except ssl.SSLError as error:
        return explain_failure(error) or str(error)
    return ""


def explain_failure(error: BaseException | None, *, of_service: bool = False) -> str:
    """Explain in one line why a connection failed and what to do; empty if TLS is not the cause.

    The explanation is about a server of the cluster or, with `of_service`, about the REST service.

    >>> explain_failure(OSError("no route"))
    ''
    """
    chain = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    for found in chain:  # an error that wraps an SSLCertVerificationError has its text, but no `verify_code`
        if isinstance(found, ssl.SSLCertVerificationError):
            return _rejected(found, of_service)
    for found in chain:
        text = str(found)
        if reason := _REASON.search(text):
            words = _failed(reason[1] or "", text)
            return _PLAIN_SERVICE if of_service and words == _SPEAKS_PLAIN else words
        if 'got "\\x15"' in text:
            return SPEAKS_TLS
    return ""


def explain_closed(error: BaseException, *, tls: bool) -> str:
    """Explain why a server may have closed the connection before it replied to the login.

    `tls` says whether the client uses TLS. If the error does not show the cause, the text is the error and a hint.
    """
    if found := explain_failure(error):
        return found
    hint = (
        "if it requires a client certificate, name a certificate of its authority in 'cluster_tls_cert' and"
        " 'cluster_tls_key'"
        if tls
        else "if it uses TLS, write rediss:// instead of redis://"
    )
    return f"{error} ({hint})"


SPEAKS_TLS = "it uses TLS: write rediss:// instead of redis://"
_SPEAKS_PLAIN = "it does not use TLS on this port: write redis:// instead of rediss://, or use its TLS port"
_PLAIN_SERVICE = "it does not use TLS on this port: write http:// instead of https://"
_BY_REASON = {
    "WRONG_VERSION_NUMBER": _SPEAKS_PLAIN,
    "RECORD_LAYER_FAILURE": _SPEAKS_PLAIN,
    "PACKET_LENGTH_TOO_LONG": _SPEAKS_PLAIN,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a client certificate: name it in 'cluster_tls_cert' and"
    " 'cluster_tls_key' (--cluster-tls-cert, --cluster-tls-key)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client certificate has expired: renew the file of 'cluster_tls_cert'",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it accepts no version of TLS that this program accepts (1.2 and 1.3)",
    "UNSUPPORTED_PROTOCOL": "it has no version of TLS that this program accepts (1.2 and 1.3)",
} | dict.fromkeys(
    ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"),
    "it does not trust the client certificate: the authority in the server's tls-ca-cert-file must have signed"
    " the file of 'cluster_tls_cert'",
)


def _rejected(error: ssl.SSLCertVerificationError, of_service: bool) -> str:
    code, words = error.verify_code, error.verify_message
    if code == _EXPIRED:
        return "its certificate has expired: renew it on that server"
    if code == _NOT_YET:
        return "its certificate is not valid yet: compare the clocks of both hosts"
    if code in _UNKNOWN_AUTHORITY:
        where = "the argument tls_ca" if of_service else "'cluster_tls_ca' (--cluster-tls-ca)"
        return f"its certificate is not trusted ({words}): name the authority that signed it in {where}"
    if code in _OTHER_NAME:
        or_else = "or set 'cluster_tls_check_host' to false if its authority signs for this cluster only"
        return (
            f"its certificate is for another host ({words.rstrip('.')}): use a name that it"
            f" contains{'' if of_service else ', add this name to it, ' + or_else}"
        )
    if code == _NO_PURPOSE:
        return "its certificate is not valid for this purpose: its extendedKeyUsage needs serverAuth and clientAuth"
    return f"its certificate was refused: {words}"


def _failed(reason: str, text: str) -> str:
    if reason in _BY_REASON:
        return _BY_REASON[reason]
    if reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":  # TLS 1.2 has no other alert for a missing certificate
        return f"it refused the handshake: it may require a client certificate, see 'cluster_tls_cert' ({text})"
    return f"TLS failed: {text}"


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = MINIMUM
    return context


def _readable(setting: str, file: str) -> bytes:
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS: the file of {setting}, {file!r}, cannot be read: {error.strerror or error}") from error


def _trust(context: ssl.SSLContext, setting: str, file: str) -> None:
    _readable(setting, file)
    try:
        context.load_verify_locations(cafile=Path(file).expanduser())
    except ssl.SSLError as error:
        raise ConfigError(f"TLS: the file of {setting}, {file!r}, contains no certificate in PEM") from error


def _first_certificate(setting: str, file: str) -> str:
    text = _readable(setting, file).decode("ascii", "replace")
    found = re.search(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", text, re.DOTALL)
    if found is None:
        raise ConfigError(f"TLS: the file of {setting}, {file!r}, contains no certificate in PEM")
    return found[0]


def _load_pair(context: ssl.SSLContext, cert: tuple[str, str], key: tuple[str, str], password: str = "") -> None:
    """Load a certificate and its key into a context; raise ConfigError if they cannot be used.

    `cert` and `key` are each the name of a setting and its file. If the file in `key` is empty, the file of `cert` must
    contain the key. `password` is the pass phrase of the key; empty if the key has none.
    """
    cert_setting, cert_file = cert
    key_setting, key_file = key if key[1] else cert
    _first_certificate(cert_setting, cert_file)
    text = _readable(key_setting, key_file)
    if b"PRIVATE KEY-----" not in text:
        raise ConfigError(f"TLS: the file of {key_setting}, {key_file!r}, contains no private key in PEM")
    if b"ENCRYPTED" in text and not password:
        raise ConfigError(f"TLS: the key in the file of {key_setting}, {key_file!r}, has a pass phrase: remove it")
    try:
        # The password is never None, because OpenSSL would then ask for a pass phrase on the terminal.
        context.load_cert_chain(Path(cert_file).expanduser(), Path(key_file).expanduser(), password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"TLS: the key of {key_setting}, {key_file!r}, does not belong to the certificate of {cert_setting},"
                f" {cert_file!r}"
            ) from error
        raise ConfigError(
            f"TLS: certificate and key of {cert_setting} and {key_setting}, {cert_file!r} and {key_file!r}, cannot be"
            f" used: {error.reason or error}"
        ) from error


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str | None) -> None:
    """Run a handshake between client and server in memory; raise ssl.SSLError if one side refuses the other.

    `host` is the name that the client expects in the server's certificate; None if the client does not check the name.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    # Each side needs three turns: with TLS 1.3, the server receives the client's certificate in the last turn.
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
