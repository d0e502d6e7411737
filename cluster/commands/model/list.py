"""`qa-cluster model list`: lists the readers and encoders on the shards."""

from __future__ import annotations

from typing import Any

import typer

from ...readers import reader_listing
from ...readers.shard_readers import ShardReader
from ...terminal import console, tables
from ..shared_options import Json
from .operation import Timeout, operation_of


def list_readers(context: typer.Context, json: Json = False, timeout: Timeout = 30.0) -> None:
    """Show the readers and encoders on the shards, which reader is the default, and on how many shards each is ready.

    Example: qa-cluster model list --json | jq -r '.[] | select(.default) | .name'
    """
    _, operation = operation_of(context, timeout)
    found = reader_listing.listing(operation)
    rows = summary(found)
    for name, addresses in reader_listing.incomplete_readers(operation, found).items():
        console.notice(
            f"{name} is incomplete on {', '.join(addresses)}: a command is loading it now, or was interrupted. If it"
            f" was interrupted, load the model again, or remove it with `qa-cluster model unload {name}`"
        )
    if json:
        console.say_json(rows)
        return
    tables.table(
        [
            {
                "name": row["id"],
                "revision": row["revision"],
                "kind": row["kind"],
                "default": _default_text(row),
                "precision": row["precision"],
                "context tokens": row["context_tokens"] or "",
                "MB": f"{row['bytes'] / 1e6:.1f}",
                "ready on": f"{row['warm']} of {row['shards']}",
            }
            for row in rows
        ],
        right=("MB", "context tokens"),
        minor=("context tokens", "precision"),
    )
    for row in rows:
        for address, problem in row["problems"].items():
            console.notice(f"{row['name']} on {address}: {problem}")


def _default_text(row: dict[str, Any]) -> str:
    """Return the text for a row of `summary`: whether the reader is the default on all shards ("yes"), on some shards
    after an incomplete change ("on 1 of 3"), or on no shard (empty).
    """
    if row["default"]:
        return "yes"
    return f"on {len(row['default_on'])} of {row['shards']}" if row["default_on"] else ""


def summary(found: dict[str, list[ShardReader]]) -> list[dict[str, Any]]:
    """Return one row for each reader and encoder of the cluster, the default reader first, then by name. `found` has
    the readers of each shard, by the shard's address. The keys of a row are those of `qa-cluster model list --json`.
    """
    by_name: dict[str, dict[str, ShardReader]] = {}
    for address, entries in found.items():
        for entry in entries:
            by_name.setdefault(entry.name, {})[address] = entry
    rows = []
    for name, on in by_name.items():
        first = next(iter(on.values()))
        rows.append(
            {
                "name": name,
                "id": first.id,
                "revision": first.revision,
                "kind": first.kind,
                "default": all(address in on and on[address].default for address in found),
                "default_on": sorted(address for address, entry in on.items() if entry.default),
                "precision": first.precision,
                "bytes": first.bytes,
                "context_tokens": first.context_tokens,
                "warm": sum(entry.warm for entry in on.values()),
                "shards": len(found),
                "problems": {address: entry.problem for address, entry in on.items() if entry.problem},
            }
        )
    return sorted(rows, key=lambda row: (not row["default_on"], str(row["name"])))
