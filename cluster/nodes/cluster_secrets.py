"""The secrets that the servers of a cluster share: the replication password and the bus key.

A server sends the replication password to each server that claims to be its primary, and on the cluster bus, any server
can claim this. So that a stolen replication password allows little, replication uses a separate user, which may only
replicate. The bus key signs messages between servers and stored functions, and no server ever sends it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import redis

from qa_cluster.config import Settings

from .node import command

REPLICATION_USER = "qa-replication"
# A replica sends only these commands: PING, REPLCONF and PSYNC.
_RIGHTS = ("resetkeys", "resetchannels", "-@all", "+ping", "+replconf", "+psync")
_COST = {"n": 2**14, "r": 8, "p": 1, "dklen": 32}


def replication_rule(password: str) -> tuple[str, ...]:
    """Return the rights of the replication user, as words of ACL SETUSER or of a `user` line in a configuration
    file.
    """
    return ("reset", "on", "#" + hashlib.sha256(password.encode()).hexdigest(), *_RIGHTS)


def replication_password(settings: Settings) -> str:
    """Return the replication password for servers on several hosts; empty if the cluster has no password.

    If the setting `replication_password` is empty, the replication password is derived from the cluster's password. The
    derived password is the same on all hosts, and does not reveal the cluster's password.
    """
    if not settings.cluster_password:
        return ""
    return settings.replication_password or _derived(settings.cluster_password, "replication")


def write_derived_key(settings: Settings, folder: Path) -> Path | None:
    """Derive the bus key from the cluster's password, and write the key to a file in `folder`.

    All hosts derive the same key.

    Returns:
        The path of the file; None if the cluster has no password.
    """
    if not settings.cluster_password:
        return None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path, fresh = folder / "bus.key", folder / "bus.key.new"
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(_derived(settings.cluster_password, "bus key") + "\n")
    fresh.replace(path)
    return path


def allow_replication(client: redis.Redis, password: str) -> None:
    """Create the replication user on a running server, because a server that an earlier version of qa-cluster started
    does not have this user. If the user exists, set its password and its rights.
    """
    command(client, "ACL", "SETUSER", REPLICATION_USER, *replication_rule(password))


def use_replication_user(client: redis.Redis, password: str) -> None:
    """Make a running server log in at its primary as the replication user."""
    command(client, "CONFIG", "SET", "masteruser", REPLICATION_USER, "masterauth", password)


def _derived(password: str, purpose: str) -> str:
    return hashlib.scrypt(password.encode(), salt=f"qa-cluster {purpose}".encode(), **_COST).hex()
