"""Reports the result of `ingest`. The counts, or with `--json` the report, go to standard output. Messages and the
table of files go to standard error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_cluster.documents.corpus import RepeatedId
from qa_cluster.documents.files import FOLLOWED, LINK, SPECIAL
from qa_cluster.documents.folder_reading import Skip
from qa_cluster.documents.folders.rules import EXCLUDED, GENERATED, HIDDEN, IGNORED, NOT_INCLUDED, OTHER_KIND, UNTRACKED
from qa_cluster.documents.unicode import name_of
from qa_cluster.sources.process.extractor import Extractor

from ..provision.storing import StoredDocuments
from ..terminal import console, tables
from .reading import SourceReading

# Maximum number of documents or files in a message, and of rows in the table. The output of --json lists all.
_MAX_LISTED = 5
_MAX_ROWS = 50
# The messages about files that are left out, by reason: the singular, the plural, and how to read such files.
_LEFT_OUT = {
    HIDDEN: ("hidden file or folder", "hidden files and folders", "left out"),
    GENERATED: ("generated folder", "generated folders", "left out (--no-ignore reads them)"),
    IGNORED: ("file or folder", "files and folders", "left out by .gitignore (--no-ignore reads them)"),
    EXCLUDED: ("file or folder", "files and folders", "left out by --exclude"),
    UNTRACKED: ("file or folder", "files and folders", "left out by --tracked"),
    NOT_INCLUDED: ("file", "files", "left out by --include"),
    OTHER_KIND: ("file", "files", "left out, because the format is not known from the name"),
    LINK: (
        "link",
        "links",
        "left out: the target is outside the folder, or is a folder or a hidden file (--follow-links reads them)",
    ),
    FOLLOWED: ("link", "links", "followed"),
    SPECIAL: ("pipe, device or socket", "pipes, devices and sockets", "left out"),
}


@dataclass
class IngestReport:
    """The result of a run: one execution of `qa-cluster ingest`.

    Attributes:
        dry_run: whether the run only reports, and stores and deletes nothing.
        gone: the ids of the documents that are gone (see `sync`). They stay if `dry_run` or `kept` is set.
        moved: the old ids of the adopted documents (--adopt). This run has stored the files of these documents again,
            under ids with the prefix.
        deleted: the number of deleted documents, including adopted documents; None if the run does not delete.
        kept: why no document was deleted; empty if some were deleted, or if there was nothing to delete.
    """

    stored: StoredDocuments
    source: SourceReading
    dry_run: bool = False
    gone: Sequence[str] = ()
    moved: Sequence[str] = ()
    deleted: int | None = None
    kept: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        extractor = self.source.extractor
        return {
            "dry_run": self.dry_run,
            "stored": len(self.stored.ids),
            "new": self.stored.new,
            "changed": self.stored.changed,
            "unchanged": self.stored.unchanged,
            "deleted": self.deleted,
            "gone": list(self.gone),
            "adopted": list(self.moved),
            "kept": self.kept,
            "skipped": [
                {"file": skip.where, "id": skip.document_id, "reason": skip.reason} for skip in self.source.skips
            ],
            "left_out": [
                {"path": name_of(path), "reason": reason}
                for reason, paths in self.source.left_out_paths.items()
                for path in paths
                if reason != FOLLOWED
            ],
            "remarks": [
                {"file": file, "remark": remark}
                for file, remark in (extractor.remarks if extractor is not None else ())
            ],
            "replaced": [{"id": id, "source": source} for id, source in self.stored.replaced.items()],
            "failed": [{"id": id, "reason": reason} for id, reason in self.stored.failed.items()],
            "formats": dict(extractor.counts) if extractor is not None else {},
        }

    def say_stored(self, json: bool) -> None:
        """Print what was replaced or left out, and a table of the files that were not stored or not indexed, or whose
        text should be checked.

        Without `json`, print the counts first.
        """
        stored, skips, extractor = self.stored, self.source.skips, self.source.extractor
        if not json:
            console.say(
                f"{console.counted(len(stored.ids), 'document')} {'would be ' if self.dry_run else ''}stored"
                + (f", {len(skips)} skipped" if skips else "")
                + f" ({stored.new} new, {stored.changed} changed, {stored.unchanged} unchanged)"
            )
        _note_replaced(stored.replaced)
        if extractor is not None and extractor.counts:
            _note_formats(extractor)
        _note_left_out(self.source.left_out_paths)
        _note_skips(skips, stored.failed)
        self._show_table()

    def _show_table(self) -> None:
        """Print a row for each file that was not stored or not indexed, or whose text should be checked."""
        extractor = self.source.extractor
        rows = [(skip.where, "not stored", skip.reason) for skip in self.source.skips]
        rows += [(document_id, "not indexed", reason) for document_id, reason in self.stored.failed.items()]
        rows += [(file, "to check", remark) for file, remark in (extractor.remarks if extractor is not None else ())]
        tables.table([{"file": file, "what": what, "why": why} for file, what, why in rows[:_MAX_ROWS]], to=console.err)
        if len(rows) > _MAX_ROWS:
            console.notice(f"the table has the first {_MAX_ROWS} of {len(rows)} rows; --json lists all")


def _note_replaced(replaced: Mapping[str, str]) -> None:
    if replaced:
        shown = [
            f"{document_id!r} ({f'from {source}' if source else 'source not recorded'})"
            for document_id, source in replaced.items()
        ]
        console.notice(
            f"{console.counted(len(shown), 'document')} replaced a document of another source:"
            f" {some(shown, ', ')}; give each source its own --prefix to keep their ids apart"
        )


def _note_formats(extractor: Extractor) -> None:
    console.step("read as " + ", ".join(f"{name}: {count}" for name, count in extractor.counts.most_common()))


def _note_left_out(left_out: Mapping[str, Sequence[Path]]) -> None:
    for reason, (one, many, what) in _LEFT_OUT.items():
        if paths := left_out.get(reason):
            shown = _endings(paths) if reason == OTHER_KIND else [name_of(path) for path in paths]
            console.notice(f"{console.counted(len(paths), one, many)} {what}: {some(shown, ', ')}")


def _endings(paths: Sequence[Path]) -> list[str]:
    """Return the file name extensions of the paths, each with the number of its paths: `.png (12)`. The most frequent
    extension is first. A name without an extension counts as a whole.
    """
    counts = Counter(path.suffix.lower() or path.name for path in paths)
    return [f"{name_of(ending)} ({count})" for ending, count in counts.most_common()]


def _note_skips(skips: Sequence[Skip], failed: Mapping[str, str]) -> None:
    repeated = [skip.error.document_id for skip in skips if isinstance(skip.error, RepeatedId)]
    if repeated:
        console.notice(
            f"{console.counted(len(repeated), 'document')} not stored, because an earlier document of this run has the"
            f" same id: {some(list(map(repr, dict.fromkeys(repeated))), ', ')}"
        )
    if failed:
        console.error(f"{console.counted(len(failed), 'document')} stored, but not indexed; write them again to retry")
    if skips:
        console.error(f"{len(skips)} not stored")


def some(texts: Sequence[str], between: str) -> str:
    """Return the first `_MAX_LISTED` texts, joined with `between`, and the number of the remaining texts if there are
    any.
    """
    more = len(texts) - _MAX_LISTED
    return between.join(texts[:_MAX_LISTED]) + (f"{between}and {more} more" if more > 0 else "")
