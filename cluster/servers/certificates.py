"""Creates a certificate authority and the certificates of a local cluster with TLS, with the program `openssl`.

All files are in one folder that only this user can enter. The folder appears only when it is complete. All servers
share one certificate, which they show to clients and to each other. All clients share a second certificate.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

from qa_cluster.config import CLIENT_TLS_FILES, TLS_FOLDER, Settings
from qa_cluster.errors import ConfigError

from . import ports
from .server_process import ServerTls

DAYS = 3650
_SECONDS = 60
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# The configuration for `openssl`. Because of it, `openssl` does not read the configuration of the system.
_CONFIGURATION = f"""
[req]
distinguished_name = name
prompt = no
[name]
CN = qa-cluster
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:{ports.HOST}, IP:::1, DNS:localhost
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
"""


def tls_folder(data_dir: Path) -> Path:
    """Return the folder for the certificates of the local cluster. The folder exists only if the cluster uses TLS."""
    return data_dir / TLS_FOLDER


def server_tls(data_dir: Path, settings: Settings) -> ServerTls | None:
    """Return the paths of the TLS files of the local cluster's servers; None if the cluster does not use TLS. The files
    may be missing.
    """
    folder = tls_folder(data_dir)
    if not folder.is_dir():
        return None
    return ServerTls(
        ca=folder / CLIENT_TLS_FILES["cluster_tls_ca"],
        cert=folder / "server.crt",
        key=folder / "server.key",
        clients=settings.server_tls_clients,
    )


def need_files(data_dir: Path, settings: Settings) -> None:
    """Raise ConfigError if the local cluster uses TLS and one of its TLS files is missing, so that the command does not
    continue without TLS.
    """
    tls = server_tls(data_dir, settings)
    if tls is None:
        return
    folder = tls_folder(data_dir)
    own = [folder / file for file in CLIENT_TLS_FILES.values()]
    ours = [file for file in own if str(file) in (settings.cluster_tls_cert, settings.cluster_tls_key)]
    if missing := [file.name for file in (tls.ca, tls.cert, tls.key, *ours) if not file.is_file()]:
        raise ConfigError(
            f"the folder {str(folder)!r} lacks {', '.join(missing)}, which the local cluster needs for TLS: restore the"
            " files, or run `qa-cluster down`, remove the folder, and create new certificates with `qa-cluster up"
            " --tls`"
        )


def make_certificates(data_dir: Path) -> None:
    """Create the authority and the certificates of servers and clients, if the folder for them (`tls_folder`) does not
    exist yet.

    Raises ConfigError if the program `openssl` is missing or fails. In this case, no folder is created.
    """
    folder = tls_folder(data_dir)
    if folder.exists():
        return
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError(
            "the program openssl, which creates the certificates, is not installed: install it, or run servers with"
            " your own certificates (`qa-cluster node`, settings 'server_tls_cert' and 'server_tls_key')"
        )
    fresh = folder.with_name(f"{TLS_FOLDER}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700, parents=True)
    try:
        (fresh / "openssl.cnf").write_text(_CONFIGURATION, "ascii")
        _make_authority(program, fresh)
        for name in ("server", "client"):
            _make_signed(program, fresh, name)
        for file in fresh.iterdir():
            file.chmod(0o600)
        (fresh / "openssl.cnf").unlink()
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _make_authority(program: str, folder: Path) -> None:
    _run(
        folder,
        *(program, "req", "-x509", "-config", "openssl.cnf", "-extensions", "authority", *_KEY, "-sha256"),
        *("-subj", "/CN=qa-cluster local authority", "-days", str(DAYS), "-keyout", "ca.key", "-out", "ca.crt"),
    )


def _make_signed(program: str, folder: Path, name: str) -> None:
    """Create the private key `name.key` and the certificate `name.crt`, which the authority signs. The section `name`
    of openssl.cnf has the extensions of the certificate.
    """
    request = f"{name}.csr"
    _run(
        folder,
        *(program, "req", "-new", "-config", "openssl.cnf", *_KEY, "-sha256"),
        *("-subj", f"/CN=qa-cluster {name}", "-keyout", f"{name}.key", "-out", request),
    )
    _run(
        folder,
        *(program, "x509", "-req", "-in", request, "-CA", "ca.crt", "-CAkey", "ca.key", "-sha256"),
        *("-set_serial", f"0x{secrets.token_hex(15)}", "-days", str(DAYS)),
        *("-extfile", "openssl.cnf", "-extensions", name, "-out", f"{name}.crt"),
    )
    (folder / request).unlink()


def _run(folder: Path, *command: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the certificates could not be created: {error}") from error
    if done.returncode:
        raise ConfigError(
            f"the certificates could not be created: `openssl {command[1]}`: {done.stderr.strip()[-500:]}"
        )
