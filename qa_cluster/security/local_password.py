"""The password that a local cluster keeps in its folder, and who finds it there.

Commands that use the folder do. So does whoever is given the cluster's address where its folder is: a password goes to
no other address, and from no folder or file that another user may have made or can read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

from .ownership import objection

# In the folder of a local cluster: its password, its state with the ports of its servers, and their processes.
PASSWORD_FILE = "password"
STATE_FILE = "cluster.json"
_PID_FILE = "node-{index}/server.pid"
_HOST = "127.0.0.1"


def stored_password(file: Path) -> str:
    """The password that a local cluster keeps in its folder; empty if there is none."""
    try:
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def password_at(cluster_url: str, data_dir: Path) -> str:
    """The password of the local cluster in `data_dir` if it runs and `cluster_url` names its servers alone; else empty.

    An address that says who logs in gets none. Names such as localhost count as other addresses: what they lead to may
    be another user's.
    """
    try:
        hosts = urlsplit(cluster_url).netloc.split(",")  # with a login, the first one is no server's address
    except ValueError:
        return ""
    file = data_dir / PASSWORD_FILE
    if not set(hosts) <= _addresses(data_dir) or not _is_own(data_dir, file):
        return ""
    return stored_password(file)


def _addresses(data_dir: Path) -> set[str]:
    """The addresses of the local cluster's servers; none while all are down, as others may listen there then."""
    try:
        ports = json.loads((data_dir / STATE_FILE).read_text("utf-8"))["ports"]
        if not any(_runs(data_dir / _PID_FILE.format(index=index)) for index in range(len(ports))):
            return set()
        return {f"{_HOST}:{int(port)}" for port in ports}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _runs(pid_file: Path) -> bool:
    """Whether the process in the file runs, and is this user's."""
    try:
        os.kill(int(pid_file.read_text()), 0)
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _is_own(folder: Path, file: Path) -> bool:
    """Whether only this user can have chosen what they hold, and can read the file."""
    try:
        return objection(folder) is None and objection(file) is None and not file.stat().st_mode & 0o077
    except OSError:
        return False
