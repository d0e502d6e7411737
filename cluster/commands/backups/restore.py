"""`qa-cluster restore`: stores a backup in the cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from qa_cluster.errors import InvalidInput

from ...backup.document_restoring import FAIL, POLICIES
from ...backup.folder import reading
from ...backup.manifest import DamagedBackup, NoBackup
from ...backup.restoring import RestoreOutcome, Restoring
from ...terminal import console
from ..shared_options import Audit, Json, audit_of, collection_name, load_settings

_FAILED = 1
_NAMED = 5


def policy_name(text: str) -> str:
    """What to do with what differs; anything else is wrong usage."""
    if text not in POLICIES:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(POLICIES)}")
    return text


def restore(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(help="A folder that `qa-cluster backup` made.", exists=True, file_okay=False, metavar="DIR"),
    ],
    collection: Annotated[
        list[str] | None,
        typer.Option(
            help="Only the documents of this collection; can be repeated. Without it everything is restored.",
            parser=collection_name,
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    on_conflict: Annotated[
        str,
        typer.Option(
            help="What to do if the cluster has something else under the same name. fail: restore nothing; skip: keep"
            " what it has; replace: take what the backup has.",
            parser=policy_name,
            metavar="|".join(POLICIES),
        ),
    ] = FAIL,
    check: Annotated[
        bool, typer.Option("--check", help="Only verify the files of the backup; needs no cluster.")
    ] = False,
    json: Json = False,
) -> None:
    """Store a backup in the cluster, beside what it holds. Start the cluster with `qa-cluster up` first.

    All files are verified before anything is written. The shards then index the documents as if they were new, so their
    number, the server and the version may be others than those of the backup. What is there already, equal, is left
    alone: after an interruption, repeat the command, and it goes on. A cluster takes one restore at a time.

    The backup's default reader becomes the default (not with --on-conflict skip); the present one stays loaded. A key
    that was revoked stays revoked. The scripts of functions run again: restore only backups that you trust.

    Examples:

        qa-cluster restore /var/backups/qa/monday

        qa-cluster restore /var/backups/qa/monday --on-conflict replace

        qa-cluster restore /var/backups/qa/monday --check
    """
    audit = audit_of(context)
    settings = load_settings(context).settings
    chosen = None if collection is None else frozenset(collection)
    with reading(folder):
        try:
            restoring = Restoring(settings, folder, chosen=chosen, policy=on_conflict)
        except DamagedBackup:
            raise
        except (NoBackup, InvalidInput) as error:
            raise typer.BadParameter(str(error)) from error
        restoring.check()
        if check:
            _report_check(restoring, json)
            return
        outcome = _run(restoring, audit, {"folder": str(folder), "collections": collection})
    if json:
        console.say_json(_summary(outcome))
    else:
        _report(outcome)
    for what, problem in {**outcome.failed, **outcome.documents.refused}.items():
        console.error(f"not restored: {what}: {problem}")
    if not outcome.complete:
        raise typer.Exit(_FAILED)


def _run(restoring: Restoring, audit: Audit, what: dict[str, object]) -> RestoreOutcome:
    """Restore, with a line in the audit log before the first write and one about all that was written."""
    begun = complete = False

    def begin() -> None:
        nonlocal begun
        begun = True
        audit.note("restore.begin", **what)

    try:
        restoring.run(begin)
        complete = restoring.outcome.complete
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or begun:
            how = "interrupted" if isinstance(error, KeyboardInterrupt) else "not all is restored"
            console.notice(f"{how}: what was restored stays; repeat the command to go on")
        raise
    finally:
        made = restoring.outcome
        numbers = {"new": made.documents.new, "changed": made.documents.replaced, "api_keys": made.api_keys}
        numbers |= {"models": made.models, "functions": made.functions}
        if begun:
            audit.note("restore", **what, **numbers, complete=complete)
    return restoring.outcome


def _report_check(restoring: Restoring, json: bool) -> None:
    manifest = restoring.manifest
    if json:
        console.say_json({"whole": True, "created": manifest.created, "counts": dict(manifest.counts)})
        return
    console.say(
        f"whole: {console.counted(manifest.counts['documents'], 'document')} of {manifest.created},"
        f" {len(manifest.files)} files, {manifest.size / 1e6:.1f} MB"
    )


def _summary(outcome: RestoreOutcome) -> dict[str, Any]:
    return asdict(outcome) | {"complete": outcome.complete}


def _report(outcome: RestoreOutcome) -> None:
    documents = outcome.documents
    console.say(
        f"{console.counted(documents.new + documents.replaced, 'document')} restored ({documents.new} new,"
        f" {documents.replaced} replaced, {documents.unchanged} unchanged, {documents.skipped} skipped)"
    )
    others = (
        (outcome.collections, "collection", ""),
        (outcome.models, "reader", ""),
        (outcome.functions, "script with functions", "scripts with functions"),
        (outcome.api_keys, "API key", ""),
    )
    if any(number for number, _, _ in others):
        console.say(", ".join(console.counted(number, *noun) for number, *noun in others if number) + " restored")
    if outcome.kept:
        console.notice(f"the cluster's own {'; '.join(outcome.kept)} kept")
    if documents.other_version:
        some = ", ".join(documents.other_version[:_NAMED])
        console.notice(
            f"{console.counted(len(documents.other_version), 'document')} restored under another version than before:"
            f" {some}"
        )
