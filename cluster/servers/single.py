"""One server of a cluster, in the foreground, for a supervisor: systemd, Docker, Kubernetes.

The server takes the place of this process, so signals and the exit status are its own.
"""

from __future__ import annotations

import os
import socket

from qa_cluster.config import Settings
from qa_cluster.errors import ConfigError
from qa_cluster.passwords import without_passwords

from . import ports
from .module_options import module_options, server_options
from .server_process import ServerSpec, find_program, write_config
from .state import data_folder

DEFAULT_PORT = 7000
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def prepare(settings: Settings, host: str, port: int, announce: str = "") -> ServerSpec:
    """Write the configuration of the server in ``data_dir/node`` and return its parameters.

    `announce` is the name or address by which the others reach it; empty: as they find it.

    ConfigError if that name has no address, if the port is out of range or taken, if the server would be open to other
    machines without a password, or if the folder may be another user's (`data_folder`).
    """
    if not 0 < port <= ports.HIGHEST:
        raise ConfigError(f"port {port} is out of range: 1 to {ports.HIGHEST}, for the cluster's bus is 10000 above")
    if host not in _LOOPBACK and not settings.cluster_password:
        raise ConfigError(
            f"a server that listens on {host} needs a password: set 'cluster_password' (QA_CLUSTER_PASSWORD), the same"
            " for all servers and services of the cluster, or listen on 127.0.0.1"
        )
    for wanted in (port, port + ports.BUS_OFFSET):
        try:
            ports.bind_once(wanted, host)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{wanted}: {error.strerror or error}") from error
    spec = ServerSpec(
        data_folder(settings) / "node",
        find_program(settings.server),
        port,
        cluster=True,
        # An empty file name: the server writes its log to the standard output, where the supervisor reads it.
        options=(
            ("logfile", ""),
            *([("cluster-announce-ip", _resolved(announce))] if announce else []),
            *server_options(settings),
            *module_options(settings),
        ),
        password=settings.cluster_password,
        host=host,
    )
    write_config(spec)
    return spec


def _resolved(announce: str) -> str:
    """The IP address behind a name: servers tell each other addresses only."""
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
