"""Finds out, without writing, why a running server refuses writes: its disk, its memory or its replicas."""

from __future__ import annotations

from typing import Any

import redis

from qa_cluster.errors import remedy

WRITE_REFUSED = "cannot write: "


def write_refusal(client: redis.Redis) -> str:
    """Return why a server refuses writes, and what to do; empty if it accepts writes.

    The reply to PING says whether the server can write its data set to disk.
    """
    try:
        client.ping()
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith("MISCONF"):
            raise
        return cannot_write(str(error))
    memory = client.info("memory")
    used, most = int(memory["used_memory"]), int(memory.get("maxmemory", 0))
    counted = used - int(memory.get("mem_not_counted_for_evict", 0))
    if most and counted >= most and not _can_evict(client, str(memory.get("maxmemory_policy"))):
        return cannot_write(f"OOM {used / 1e6:.0f} MB are used, maxmemory is {most / 1e6:.0f} MB")
    return _few_replicas(client)


def cannot_write(reason: str) -> str:
    """Return a text that describes the problem and what to do. `reason` is the error text of the server."""
    return WRITE_REFUSED + remedy(reason)


def _can_evict(client: redis.Redis, policy: str) -> bool:
    """Return whether the server can evict a key, to make a write possible, under the maxmemory policy `policy`.
    `volatile-..` policies evict only keys with a TTL.
    """
    if policy.startswith("volatile-"):
        return any(int(database["expires"]) for database in client.info("keyspace").values())
    return policy != "noeviction"


def _few_replicas(client: redis.Redis) -> str:
    good = client.info("replication").get("min_slaves_good_slaves")
    if good is None:  # the setting min-replicas-to-write is unset
        return ""
    try:
        wanted: Any = client.config_get("min-replicas-to-write").get("min-replicas-to-write", 0)
    except redis.exceptions.ResponseError:  # the login may not read settings
        return ""
    if int(good) >= int(wanted):
        return ""
    return cannot_write(f"NOREPLICAS {good} replicas are in sync, min-replicas-to-write is {wanted}")
