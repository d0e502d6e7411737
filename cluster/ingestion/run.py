"""One run of `qa-cluster ingest`: stores the documents and, with --sync, deletes the documents that are gone."""

from __future__ import annotations

from dataclasses import dataclass

from ..provision.storing import store
from ..terminal import console
from ..terminal.file_progress import FileProgress
from .reading import SourceReading
from .report import IngestReport, some
from .sync import Gone, Uncertain, compare, delete, find_gone


@dataclass
class IngestRun:
    """One run of the command. `sync`, `yes`, `adopt` and `dry_run` are the options of the command with these names.

    `store` stores the documents. Then `remove` deletes the documents that are gone (see `sync`).
    """

    source: SourceReading
    collection: str
    sync: bool
    yes: bool
    adopt: bool
    dry_run: bool

    def store(self, *, wait: bool) -> IngestReport:
        """Store the documents. With `dry_run`, instead compare the documents with the stored documents. With `wait`,
        wait until the shards have indexed the documents.
        """
        settings = self.source.settings
        if self.dry_run:
            progress = FileProgress("reading documents")
            with progress.shown():
                stored = compare(settings, self.source.documents(progress), self.collection)
            return IngestReport(stored, self.source, dry_run=True)
        progress = FileProgress("storing documents")
        stored = store(
            settings,
            self.source.documents(progress),
            collection=self.collection,
            wait=wait,
            on_refused=None if self.source.stop else self.source.refused,
            bar=progress.shown(),
        )
        return IngestReport(stored, self.source)

    def remove(self, report: IngestReport, *, json: bool) -> bool:
        """Delete the documents that are gone (see `sync`), and the adopted documents. With `dry_run`, only list them.

        Write the result to `report`, and print it. Return False if no document is deleted because the folder has no
        documents or cannot be listed, or because the deletion is not confirmed.
        """
        source = self.source
        uncertain = Uncertain(source.skips, source.prefix)
        if uncertain.everything:
            report.kept = "the folder has no documents or cannot be listed"
            console.notice(f"no document was deleted: {report.kept}")
            return False
        folder = source.paths[0] if self.adopt else None
        present = set(report.stored.ids)
        gone = find_gone(source.settings, source.prefix, self.collection, present, uncertain, folder)
        report.gone = [entry.id for entry in gone.documents]
        report.moved = [entry.id for entry in gone.moved]
        if uncertain.incomplete:
            console.notice(
                f"{uncertain.incomplete} could not be read completely, so documents of JSON files, documents of --raw"
                " and failed documents were not deleted"
            )
        if self.dry_run:
            _say_gone(report, json)
            return True
        if gone.is_large and not self.yes and not self._confirmed(report, gone):
            return False
        documents = [*gone.moved, *gone.documents]
        report.deleted = delete(source.settings, documents, self.collection)
        if not json:
            moved = f" ({len(gone.moved)} adopted)" if gone.moved else ""
            console.say(f"{console.counted(report.deleted, 'document')} deleted{moved}")
        return True

    def _confirmed(self, report: IngestReport, gone: Gone) -> bool:
        what = f"{len(gone.documents)} of the {console.counted(gone.total, 'document')} of collection {self.collection}"
        if console.is_answered():
            if console.confirm(f"{what} are no longer in the folder: {some(report.gone, ', ')}. Delete them?"):
                return True
            report.kept = "the deletion was not confirmed"
            console.notice(f"no document was deleted: {report.kept}")
            return False
        report.kept = f"{what} are no longer in the folder, which is more than a tenth"
        console.error(
            f"no document was deleted: {report.kept}: {some(report.gone, ', ')}. Repeat the command with --yes to"
            " delete them, or with --dry-run to list them"
        )
        return False


def _say_gone(report: IngestReport, json: bool) -> None:
    if not json:
        console.say(f"{console.counted(len(report.gone) + len(report.moved), 'document')} would be deleted")
        for document_id in (*report.moved, *report.gone):
            console.say(f"  {document_id}")
