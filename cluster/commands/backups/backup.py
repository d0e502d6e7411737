"""`qa-cluster backup`: saves what the cluster holds in a folder."""

from __future__ import annotations

import errno
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...backup.saving import Backup, save
from ...servers.local import with_cluster
from ...terminal import console
from ..shared_options import Json, audit_of, collection_name, load_settings

_FAILED = 1
_NAMED = 5
_OF_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
MOST_HELD_SECONDS = 60.0


def backup(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(help="A new folder, or an empty one; its parent must exist.", metavar="DIR")
    ],
    collection: Annotated[
        list[str] | None,
        typer.Option(
            help="Only the documents of this collection; can be repeated. Without it everything is saved.",
            parser=collection_name,
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    hold_writes: Annotated[
        float,
        typer.Option(
            help="If a shard is written to without a pause, let its writes and uncached questions wait for up to so"
            " many seconds, so that its documents are those of one moment.",
            min=0,
            max=MOST_HELD_SECONDS,
            metavar="SECONDS",
        ),
    ] = 0.0,
    force: Annotated[bool, typer.Option("--force", help="Replace the backup that is in DIR.")] = False,
    json: Json = False,
) -> None:
    """Save documents, collections, readers, functions and API keys in a folder, while the cluster serves.

    `qa-cluster restore` stores them in a cluster again, with any number of shards, on Valkey or Redis. The documents of
    a shard are a state that it had, unless it is written to all the time: then each document is whole and of one
    version, but they are not all of one moment, and the command says so.

    DIR appears when everything is on the disk; an interrupted backup leaves none. It is readable for you only: it has
    the hashes of API keys and the scripts of functions. Passwords are never in it.

    Examples:

        qa-cluster backup /var/backups/qa/monday

        qa-cluster backup /var/backups/qa/books --collection books

        qa-cluster backup /var/backups/qa/last --force --json | jq .counts
    """
    audit = audit_of(context)
    settings = with_cluster(load_settings(context).settings)
    chosen = None if collection is None else frozenset(collection)
    try:
        made = save(settings, folder, chosen=chosen, force=force, hold_seconds=hold_writes)
    except KeyboardInterrupt:
        console.notice(f"interrupted: nothing was saved in {folder}")
        raise
    except OSError as error:
        if error.errno not in _OF_DISK:
            raise
        console.error(f"nothing was saved in {folder}: {error.strerror}; make room there, or name a folder elsewhere")
        raise typer.Exit(_FAILED) from error
    audit.note("backup", folder=str(made.path), documents=made.manifest.counts["documents"], collections=collection)
    if json:
        console.say_json(_summary(made))
        return
    _report(made)


def _summary(made: Backup) -> dict[str, Any]:
    manifest = made.manifest
    return {
        "folder": str(made.path),
        "created": manifest.created,
        "bytes": manifest.size,
        "counts": dict(manifest.counts),
        "exact": all(shard.exact for shard in manifest.shards),
        "written_meanwhile": manifest.written_meanwhile,
        "shards": [asdict(shard) for shard in manifest.shards],
        "unreadable": made.unreadable,
    }


def _report(made: Backup) -> None:
    counts, manifest = made.manifest.counts, made.manifest
    shown = [
        console.counted(counts[name], noun, plural)
        for name, noun, plural in (
            ("documents", "document", ""),
            ("collections", "collection", ""),
            ("models", "reader", ""),
            ("functions", "script with functions", "scripts with functions"),
            ("api_keys", "API key", ""),
        )
    ]
    console.say(f"{', '.join(shown)} saved in {made.path} ({manifest.size / 1e6:.1f} MB)")
    if manifest.written_meanwhile:
        console.notice(
            f"{console.counted(manifest.written_meanwhile, 'document')} written or removed meanwhile; the backup has"
            " what came last"
        )
    for shard in manifest.shards:
        if not shard.exact:
            console.notice(
                f"shard {shard.address} was written to all the time: each of its documents is whole and of one version,"
                " but they are not all of one moment (--hold-writes makes one)"
            )
    if made.unreadable:
        more = f" and {len(made.unreadable) - _NAMED} more" if len(made.unreadable) > _NAMED else ""
        console.notice(
            f"{console.counted(len(made.unreadable), 'text')} not saved, no document can be made of it:"
            f" {', '.join(map(repr, made.unreadable[:_NAMED]))}{more}"
        )
