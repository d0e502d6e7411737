"""Finds the password of a local cluster, which is stored in the cluster's folder.

Commands that use the folder read the password from it. A client that gets only the cluster's address reads the
password from the folder in the working directory if both conditions hold:

- The address is an address of the running cluster.
- No other user could have written the folder or the password file, and no other user can read the file.

Without TLS, the password is sent only to servers that `LocalServers` includes. With TLS, the servers' certificates are
checked instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qa_cluster.topology import split_cluster_url

from .ownership import objection

# Files in the folder of a local cluster: the password, the state with the servers' ports, and the servers' process ids.
PASSWORD_FILE = "password"
STATE_FILE = "cluster.json"
_PID_FILE = "node-{index}/server.pid"
_HOST = "127.0.0.1"


def stored_password(file: Path) -> str:
    """Return the password of a local cluster; `file` is the password file in its folder.

    The result is empty if the file is missing or cannot be read.
    """
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def password_at(cluster_url: str, data_dir: Path) -> str:
    """Return the password of the running local cluster in `data_dir`; empty if `cluster_url` names other servers.

    The result is also empty if another user may have written the folder or the password file, or can read the file. A
    URL with a user name gets no password. Host names such as localhost also get no password, because they may resolve
    to a server of another user.
    """
    hosts = split_cluster_url(cluster_url)[1].split(",")  # with a user name, the first part is not a server's address
    file = data_dir / PASSWORD_FILE
    if not set(hosts) <= _addresses(data_dir) or not _is_own(data_dir, file):
        return ""
    return stored_password(file)


@dataclass(frozen=True, slots=True)
class LocalServers:
    """The servers that may receive the password of a local cluster: the servers in its folder, and servers that the
    user named.

    `named` has the addresses (``host:port``) of the servers that the user named.

    Without this check, a program could get the password: it could join the cluster without knowing the password, and
    the cluster would then redirect clients to the address of this program.
    """

    data_dir: Path
    named: frozenset[str]

    def include(self, host: str, port: int) -> bool:
        """Return whether the server at this address may receive the password.

        The state file is read on each call, because `qa-cluster scale` may have added servers.
        """
        return f"{host}:{port}" in self.named or f"{host}:{port}" in _recorded(self.data_dir)


def local_servers(password: str, data_dir: Path, named: Iterable[str]) -> LocalServers | None:
    """Return the servers that may receive `password`; None if it is not the stored password of the local cluster.

    `data_dir` is the folder of the local cluster. `named` are the addresses (``host:port``) that the user named.
    """
    if not password or password != stored_password(data_dir / PASSWORD_FILE):
        return None
    return LocalServers(data_dir, frozenset(named))


def _recorded(data_dir: Path) -> set[str]:
    """Return the addresses in the state file of the local cluster; empty if the file is missing or damaged."""
    try:
        ports = json.loads((data_dir / STATE_FILE).read_text("utf-8"))["ports"]
        return {f"{_HOST}:{int(port)}" for port in ports}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _addresses(data_dir: Path) -> set[str]:
    """Return the addresses of the local cluster's servers.

    The result is empty if all servers are down, because other programs may then use their ports.
    """
    found = _recorded(data_dir)
    is_up = any(_runs(data_dir / _PID_FILE.format(index=index)) for index in range(len(found)))
    return found if is_up else set()


def _runs(pid_file: Path) -> bool:
    """Return whether the process whose id is in the file runs and belongs to this user."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _is_own(folder: Path, file: Path) -> bool:
    """Return whether only this user can have written the folder and the file, and only this user can read the file."""
    try:
        return objection(folder) is None and objection(file) is None and not file.stat().st_mode & 0o077
    except OSError:
        return False
