"""One server of a cluster in the foreground, for a supervisor such as systemd, Docker or Kubernetes.

The server replaces this process, so it receives the signals and sets the exit status.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from qa_cluster.security.passwords import without_passwords
from qa_cluster.security.tls import certificate_problem

from ..nodes.cluster_secrets import replication_password, write_derived_key
from . import ports
from .module_options import model_cache_default, module_options, server_options
from .server_process import ServerSpec, ServerTls, find_program, need_tls, write_config
from .state import data_folder

DEFAULT_PORT = 7000
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def prepare(settings: Settings, host: str, port: int, announce: str = "") -> ServerSpec:
    """Write the configuration of the server in ``data_dir/node`` and return its parameters.

    `announce` is the name or address under which other servers reach this server; if it is empty, they detect the
    address.

    ConfigError in these cases: the name cannot be resolved; the port is invalid or in use; other machines could use the
    server without a password; the certificates cannot be used; `data_folder` refuses the data folder.
    """
    check_port(port)
    need_password(settings, host)
    for wanted in (port, port + ports.BUS_OFFSET):
        try:
            ports.bind_once(wanted, host)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{wanted}: {error.strerror or error}; choose another --host or --port"
            ) from error
    # servers announce addresses to clients, so the certificate must be valid for the address
    program, tls = find_program(settings.server), server_tls_of(settings, resolved(announce) if announce else "")
    if tls is not None:
        need_tls(program)
    folder = data_folder(settings) / "node"
    key = None if settings.bus_key_file else write_derived_key(settings, folder)
    spec = ServerSpec(
        folder,
        program,
        port,
        cluster=True,
        # With an empty file name, the server logs to standard output, for the supervisor.
        options=(
            ("logfile", ""),
            *([("cluster-announce-ip", resolved(announce))] if announce else []),
            *server_options(settings),
            *module_options(settings),
            *([("qa.bus-key-file", str(key))] if key else []),
            *model_cache_default(settings, data_folder(settings)),
        ),
        password=settings.cluster_password,
        replication_password=replication_password(settings),
        host=host,
        tls=tls,
    )
    write_config(spec)
    return spec


def check_port(port: int) -> None:
    """Raise ConfigError if the port, or its bus port (10000 higher), is out of range."""
    if not 0 < port <= ports.HIGHEST:
        raise ConfigError(
            f"port {port} is out of range: it must be from 1 to {ports.HIGHEST}, because the port of the cluster bus is"
            f" {ports.BUS_OFFSET} higher"
        )


def need_password(settings: Settings, host: str) -> None:
    """Raise ConfigError if other machines could use the server without a password."""
    if host not in _LOOPBACK and not settings.cluster_password:
        raise ConfigError(
            f"a server that listens on {host} needs a password: set 'cluster_password' (QA_CLUSTER_PASSWORD) to the"
            " same password for all servers and services of the cluster, or listen on 127.0.0.1"
        )


def server_tls_of(settings: Settings, host: str = "") -> ServerTls | None:
    """Return the TLS files of a server; None if the settings have no certificate.

    Raises ConfigError if a file is missing or cannot be used, or if other servers or clients would refuse the
    certificate for `host`. Host names are not checked if `cluster_tls_check_host` is false.
    """
    host = host if settings.cluster_tls_check_host else ""
    given = {name: getattr(settings, name) for name in ("server_tls_cert", "server_tls_key", "cluster_tls_ca")}
    if not given["server_tls_cert"] and not given["server_tls_key"]:
        return None
    if missing := [name for name, file in given.items() if not file]:
        raise ConfigError(
            f"a server with TLS also needs setting {', '.join(map(repr, missing))}: set its certificate, the private"
            " key, and the authority that signed the certificates of all servers and clients"
        )
    cert, key, ca = given.items()
    for as_client in (False, True):
        if problem := certificate_problem(cert, key, ca, "" if as_client else host, as_client=as_client):
            raise ConfigError(
                f"setting 'server_tls_cert' is {cert[1]!r}, which other servers or clients refuse: {problem}"
            )
    files = {name: Path(file).expanduser().resolve() for name, file in given.items()}
    return ServerTls(
        files["cluster_tls_ca"], files["server_tls_cert"], files["server_tls_key"], settings.server_tls_clients
    )


def resolved(announce: str) -> str:
    """Return the IP address of the name `announce`, because servers announce only addresses.

    Raises ConfigError if this host cannot resolve the name.
    """
    try:
        return str(socket.getaddrinfo(announce, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(
            f"--announce {announce}: this host cannot resolve the name: {error.strerror or error}; give an address"
        ) from error


def become(spec: ServerSpec) -> None:
    """Replace this process by the server.

    The server reads the password from its configuration file. The password is not in the server's environment, because
    user functions could read it there.
    """
    spec.socket_path.unlink(missing_ok=True)
    os.execve(spec.program, [spec.program, str(spec.config_path)], without_passwords(os.environ))
