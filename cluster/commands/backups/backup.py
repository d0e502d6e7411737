"""`qa-cluster backup`: saves the contents of the cluster in a folder."""

from __future__ import annotations

import errno
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...backup.saving import Backup, save
from ...servers.local import with_cluster
from ...terminal import console
from ..shared_options import Json, audit_of, collections_option, load_settings

_FAILED = 1
_MAX_LISTED = 5
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
MAX_HOLD_SECONDS = 60.0


def backup(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="A new or empty folder for the backup; its parent must exist.", metavar="DIR")
    ],
    collection: Annotated[
        list[str] | None,
        collections_option("Save only the documents of this collection; repeatable. By default, everything is saved."),
    ] = None,
    hold_writes: Annotated[
        float,
        typer.Option(
            help="If clients write to a shard without a pause, block its writes and uncached questions for at most this"
            " time, to get a consistent snapshot.",
            min=0,
            max=MAX_HOLD_SECONDS,
            metavar="SECONDS",
        ),
    ] = 0.0,
    force: Annotated[bool, typer.Option("--force", help="Replace the backup in DIR.")] = False,
    json: Json = False,
) -> None:
    """Save the contents of the cluster in a folder, while the cluster stays in use.

    A backup has the documents, collections, pins, synonyms and feedback, and the readers, functions and API keys. With
    --collection, it has no readers, functions and API keys.

    `qa-cluster restore` stores the backup in a cluster with any number of shards, on Valkey or Redis. The documents of
    each shard are a consistent snapshot of one moment. If clients write to a shard without a pause, its snapshot can be
    inconsistent: each document is complete, but the documents are from different moments. The command then prints a
    note.

    The command creates DIR only when the backup is complete. An interrupted backup leaves nothing. Only you can read
    DIR: it contains the hashes of API keys and the scripts of functions. It never contains passwords.

    Examples:

        qa-cluster backup /var/backups/qa/monday

        qa-cluster backup /var/backups/qa/books --collection books

        qa-cluster backup /var/backups/qa/last --force --json | jq .counts
    """
    audit = audit_of(context)
    settings = with_cluster(load_settings(context).settings)
    chosen = None if collection is None else frozenset(collection)
    try:
        saved = save(settings, folder, chosen=chosen, force=force, hold_seconds=hold_writes)
    except KeyboardInterrupt:
        console.notice(f"interrupted: nothing was saved in {folder}")
        raise
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        console.error(f"nothing was saved in {folder}: {error.strerror}; free disk space there, or use another disk")
        raise typer.Exit(_FAILED) from error
    audit.note("backup", folder=str(saved.path), documents=saved.manifest.counts["documents"], collections=collection)
    if json:
        console.say_json(_summary(saved))
    else:
        _report(saved)


def _summary(saved: Backup) -> dict[str, Any]:
    manifest = saved.manifest
    return {
        "folder": str(saved.path),
        "created": manifest.created,
        "bytes": manifest.size,
        "counts": dict(manifest.counts),
        "exact": all(shard.exact for shard in manifest.shards),
        "written_meanwhile": manifest.written_meanwhile,
        "shards": [asdict(shard) for shard in manifest.shards],
        "unreadable": saved.unreadable,
    }


def _report(saved: Backup) -> None:
    counts, manifest = saved.manifest.counts, saved.manifest
    shown = [
        console.counted(counts[name], noun, plural)
        for name, noun, plural in (
            ("documents", "document", ""),
            ("collections", "collection", ""),
            ("models", "model", ""),
            ("functions", "script with functions", "scripts with functions"),
            ("api_keys", "API key", ""),
        )
    ]
    console.say(f"{', '.join(shown)} saved in {saved.path} ({manifest.size / 1e6:.1f} MB)")
    if manifest.written_meanwhile:
        console.notice(
            f"{console.counted(manifest.written_meanwhile, 'document')} written or deleted during the backup: the"
            " backup has the latest state"
        )
    for shard in manifest.shards:
        if not shard.exact:
            console.notice(
                f"clients wrote to shard {shard.address} without a pause: each document is complete, but the documents"
                " are from different moments (--hold-writes makes them consistent)"
            )
    if saved.unreadable:
        more = f" and {len(saved.unreadable) - _MAX_LISTED} more" if len(saved.unreadable) > _MAX_LISTED else ""
        console.notice(
            f"{console.counted(len(saved.unreadable), 'text')} not saved, because it is not a valid document:"
            f" {', '.join(map(repr, saved.unreadable[:_MAX_LISTED]))}{more}"
        )
