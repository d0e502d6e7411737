"""`qa-cluster restore`: stores a backup in the cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.errors import InvalidInput

from ...backup.document_restoring import FAIL, POLICIES
from ...backup.folder import reading
from ...backup.manifest import DamagedBackup, NoBackup
from ...backup.restoring import RestoreOutcome, Restoring
from ...terminal import console
from ..shared_options import Audit, Json, audit_of, choice_option, collections_option, load_settings

_FAILED = 1
_MAX_LISTED = 5


def restore(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(help="A folder from `qa-cluster backup`.", exists=True, file_okay=False, metavar="DIR"),
    ],
    collection: Annotated[
        list[str] | None,
        collections_option(
            "Restore only the documents of this collection; repeatable. By default, everything is restored."
        ),
    ] = None,
    on_conflict: Annotated[
        str,
        choice_option(
            POLICIES,
            "What to do if the cluster has different contents under the same name. fail: restore nothing; skip:"
            " keep the contents of the cluster; replace: use the contents of the backup.",
        ),
    ] = FAIL,
    check: Annotated[
        bool, typer.Option("--check", help="Only verify the files of the backup. Needs no cluster.")
    ] = False,
    json: Json = False,
) -> None:
    """Add the contents of a backup to the cluster. Start the cluster with `qa-cluster up` first.

    The command verifies all files before it writes anything. The shards then index the documents as new documents. So
    the cluster may have a different number of shards, server program and version. The command skips contents that the
    cluster already has. To continue after an interruption, repeat the command. Only one restore at a time can run on a
    cluster.

    The default reader of the backup becomes the default, except with --on-conflict skip; the current default reader
    stays loaded. A revoked API key stays revoked. The scripts of functions run again: restore only backups you trust.
    With --collection, the command restores no readers, functions and API keys.

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
        console.say_json(asdict(outcome) | {"complete": outcome.complete})
    else:
        _report(outcome)
    for what, problem in {**outcome.failed, **outcome.documents.refused}.items():
        console.error(f"not restored: {what}: {problem}")
    if not outcome.complete:
        raise typer.Exit(_FAILED)


def _run(restoring: Restoring, audit: Audit, what: dict[str, object]) -> RestoreOutcome:
    """Restore, and write one line to the audit log before the first write to the cluster, and one line at the end.
    `what` has the values that both lines contain. If the restore fails before the first write, the log gets no line.
    """
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
            how = "interrupted" if isinstance(error, KeyboardInterrupt) else "the restore is incomplete"
            console.notice(f"{how}: restored contents stay; repeat the command to continue")
        raise
    finally:
        done = restoring.outcome
        numbers = {"new": done.documents.new, "changed": done.documents.replaced, "api_keys": done.api_keys}
        numbers |= {"models": done.models, "functions": done.functions}
        if begun:
            audit.note("restore", **what, **numbers, complete=complete)
    return restoring.outcome


def _report_check(restoring: Restoring, json: bool) -> None:
    manifest = restoring.manifest
    if json:
        console.say_json({"whole": True, "created": manifest.created, "counts": dict(manifest.counts)})
        return
    console.say(
        f"the backup is complete: {console.counted(manifest.counts['documents'], 'document')} of {manifest.created},"
        f" {len(manifest.files)} files, {manifest.size / 1e6:.1f} MB"
    )


def _report(outcome: RestoreOutcome) -> None:
    documents = outcome.documents
    console.say(
        f"{console.counted(documents.new + documents.replaced, 'document')} restored ({documents.new} new,"
        f" {documents.replaced} replaced, {documents.unchanged} unchanged, {documents.skipped} skipped)"
    )
    others = (
        (outcome.collections, "collection", ""),
        (outcome.models, "model", ""),
        (outcome.functions, "script with functions", "scripts with functions"),
        (outcome.api_keys, "API key", ""),
    )
    if any(number for number, _, _ in others):
        console.say(", ".join(console.counted(number, *noun) for number, *noun in others if number) + " restored")
    if outcome.kept:
        console.notice(f"not restored, because the cluster keeps its own contents: {'; '.join(outcome.kept)}")
    if documents.other_version:
        listed = ", ".join(documents.other_version[:_MAX_LISTED])
        console.notice(
            f"{console.counted(len(documents.other_version), 'document')} restored, but with another version than in"
            f" the backup: {listed}"
        )
