"""One server of a cluster, in the foreground, for a supervisor: systemd, Docker, Kubernetes.

The server takes the place of this process, so signals and the exit status are its own.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from qa_cluster.security.passwords import without_passwords
from qa_cluster.security.tls import judge

from . import ports
from .module_options import model_cache_default, module_options, server_options
from .server_process import ServerSpec, ServerTls, find_program, need_tls, write_config
from .state import data_folder

DEFAULT_PORT = 7000
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def prepare(settings: Settings, host: str, port: int, announce: str = "") -> ServerSpec:
    """Write the configuration of the server in ``data_dir/node`` and return its parameters.

    `announce` is the name or address by which the others reach it; empty: as they find it.

    ConfigError if that name has no address, if the port is out of range or taken, if the server would be open to other
    machines without a password, if certificates cannot be used, or if the folder may be another user's (`data_folder`).
    """
    if not 0 < port <= ports.HIGHEST:
        raise ConfigError(f"port {port} is out of range: 1 to {ports.HIGHEST}, for the cluster's bus is 10000 above")
    need_password(settings, host)
    for wanted in (port, port + ports.BUS_OFFSET):
        try:
            ports.bind_once(wanted, host)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{wanted}: {error.strerror or error}") from error
    # servers tell clients their addresses: a certificate for the name alone would not do
    program, tls = find_program(settings.server), server_tls_of(settings, resolved(announce) if announce else "")
    if tls is not None:
        need_tls(program)
    spec = ServerSpec(
        data_folder(settings) / "node",
        program,
        port,
        cluster=True,
        # An empty file name: the server writes its log to the standard output, where the supervisor reads it.
        options=(
            ("logfile", ""),
            *([("cluster-announce-ip", resolved(announce))] if announce else []),
            *server_options(settings),
            *module_options(settings),
            *model_cache_default(settings, data_folder(settings)),
        ),
        password=settings.cluster_password,
        host=host,
        tls=tls,
    )
    write_config(spec)
    return spec


def need_password(settings: Settings, host: str) -> None:
    """Raise ConfigError if the server would be open to other machines without a password."""
    if host not in _LOOPBACK and not settings.cluster_password:
        raise ConfigError(
            f"a server that listens on {host} needs a password: set 'cluster_password' (QA_CLUSTER_PASSWORD), the same"
            " for all servers and services of the cluster, or listen on 127.0.0.1"
        )


def server_tls_of(settings: Settings, host: str = "") -> ServerTls | None:
    """The files of a server with TLS; None if the settings name none.

    ConfigError if one is missing or cannot be used, or if clients that know the server as `host`, or other servers,
    would not take the certificate. Where `cluster_tls_check_host` is false, names do not count.
    """
    host = host if settings.cluster_tls_check_host else ""
    given = {name: getattr(settings, name) for name in ("server_tls_cert", "server_tls_key", "cluster_tls_ca")}
    if not given["server_tls_cert"] and not given["server_tls_key"]:
        return None
    if missing := [name for name, file in given.items() if not file]:
        raise ConfigError(
            f"a server with TLS needs setting {', '.join(map(repr, missing))} too: its certificate, the certificate's"
            " key, and the authority that signed the certificates of all servers and clients"
        )
    cert, key, ca = given.items()
    for as_client in (False, True):
        if problem := judge(cert, key, ca, "" if as_client else host, as_client=as_client):
            raise ConfigError(f"setting 'server_tls_cert' is {cert[1]!r}, which others refuse: {problem}")
    files = {name: Path(file).expanduser().resolve() for name, file in given.items()}
    return ServerTls(
        files["cluster_tls_ca"], files["server_tls_cert"], files["server_tls_key"], settings.server_tls_clients
    )


def resolved(announce: str) -> str:
    """The IP address behind a name: servers tell each other addresses only. ConfigError if it has none."""
    try:
        return str(socket.getaddrinfo(announce, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"--announce {announce}: this name has no address here: {error.strerror or error}") from error


def become(spec: ServerSpec) -> None:
    """Replace this process by the server. It does not return.

    The server has the password from its configuration file; functions on the shard do not get it in their environment.
    """
    spec.socket_path.unlink(missing_ok=True)
    os.execve(spec.program, [spec.program, str(spec.config_path)], without_passwords(os.environ))
