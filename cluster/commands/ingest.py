"""`qa-cluster ingest`: stores documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.config import Settings
from qa_cluster.documents.corpus import RepeatedId, read_from
from qa_cluster.documents.files import FOLLOWED, LINK, SPECIAL
from qa_cluster.documents.unicode import name_of
from qa_cluster.errors import RequestError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.sources.formats import FORMATS
from qa_cluster.sources.process.extractor import Extractor
from qa_cluster.types import Document

from ..provision.preview import preview
from ..provision.storing import StoredDocuments, check_storable, remove_gone, store
from ..servers.local import with_cluster
from ..terminal import console
from .shared_options import Audit, CollectionOption, audit_of, load_settings

_FAILED = 1
_ON_ERROR = ("report", "skip", "stop")
# A prefix for --sync must end with one of these: otherwise `news` would also match the ids of `newsletter`.
_PREFIX_ENDS = ("/", ":")
# A message lists at most this many documents or errors.
_MAX_LISTED = 5


def ingest(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files and folders.", exists=True, metavar="PATH", show_default=False)
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            help="What to do if a document cannot be read or is refused. report: store the other documents and exit"
            " with 1; skip: store the other documents and exit with 0; stop: stop at this document."
        ),
    ] = "report",
    prefix: Annotated[
        str, typer.Option(help="Prefix of every id. Give each source its own prefix to keep their ids apart.")
    ] = "",
    sync: Annotated[
        bool,
        typer.Option(
            "--sync",
            help="Delete the documents whose ids start with --prefix and that are no longer in PATH, which must be one"
            " folder. If a file in the folder cannot be read or is refused, nothing is deleted.",
        ),
    ] = False,
    collection: CollectionOption = DEFAULT_COLLECTION,
    format: Annotated[
        str,
        typer.Option(
            help=f"The format of every file: {', '.join(FORMATS)}. By default, the command detects the format from the"
            " file name, else from the contents.",
            show_default=False,
        ),
    ] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Store the text unchanged, with its markup; only for .txt and .md in UTF-8.")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(
            help="Print the text that would be stored for this file, section by section, and store nothing. Needs no"
            " cluster.",
            exists=True,
            dir_okay=False,
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    follow_links: Annotated[
        bool,
        typer.Option(
            "--follow-links",
            help="In a folder, also read links to folders and links that lead out of the folder. Without it, they are"
            " left out, and the command says how many.",
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the documents are indexed and can answer questions.")
    ] = True,
) -> None:
    """Store documents: manual pages, HTML, RST, Markdown, text, changelogs, PDF, Office files, e-books, e-mail, JSON.

    The command stores the readable text of each file without its markup. For each part of the text, it also stores the
    section and the line or page. Files may be compressed with gzip. In a folder, the command skips hidden files and
    files with an unknown extension. JSON means .jsonl, SQuAD
    and CORD-19 files; their texts are stored unchanged.

    A line of .jsonl is {"id": "..", "title": "..", "text": "..", "metadata": {..}}; title and metadata are optional. A
    document replaces the stored document with the same id. The command counts the documents that replaced a document
    of another source; a source is a --prefix or, without a prefix, a PATH. If an id occurs twice in one run, the first
    document is stored and the second is an error.

    Limits: a text has at most 5,000,000 characters, 100,000 sentences and body_max_bytes bytes in UTF-8 (a setting,
    8 MiB by default). An id has at most 512 bytes, a title 4,096 bytes, metadata 65,536 bytes as JSON. A file has at
    most 64 MiB (.json: 512 MiB; .jsonl: no limit). Reading a file takes at most 10 to 60 s of CPU time and
    0.5 to 1.5 GiB of memory, by its size; after 3 files of a format that exceed this, others have a tenth of the time.

    Examples:

        qa-cluster ingest articles/ notes.md

        qa-cluster ingest articles/ --prefix articles/ --sync

        qa-cluster ingest novels/ --collection books

        qa-cluster ingest --on-error skip dump.jsonl

        qa-cluster ingest --show /usr/share/man/man1/ls.1.gz
    """
    _check_format(format, raw)
    if show is not None:
        _preview(load_settings(context).settings, show, paths, format, raw)
        return
    paths = paths or []
    _check(paths, on_error, prefix, sync)
    audit = audit_of(context)
    settings = with_cluster(load_settings(context).settings)
    check_storable(settings)
    extractor = None if raw else Extractor(forced=format)
    source = _Source(settings, paths, prefix, collection, extractor, follow_links, stop=on_error == "stop")
    try:
        stored = source.store(wait=wait)
    except KeyboardInterrupt as interrupt:
        console.notice(f"interrupted: {str(interrupt) or 'no document was stored'}")
        raise
    except Exception:
        if sync:
            console.notice("no document was deleted, because the run was not completed")
        raise
    finally:
        if extractor is not None:
            extractor.close()
    audit.note("documents.ingest", collection=collection, new=stored.new, changed=stored.changed)
    _report(stored, source.skipped, extractor)
    _report_links(source.left_out)
    if sync:
        _remove(source, stored, audit)
    if (source.skipped or stored.failed) and (sync or on_error == "report"):
        raise typer.Exit(_FAILED)


@dataclass
class _Source:
    """The documents to store, and the errors of the documents that could not be stored."""

    settings: Settings
    paths: list[Path]
    prefix: str
    collection: str
    extractor: Extractor | None
    follow_links: bool
    stop: bool
    skipped: list[RequestError] = field(default_factory=list)
    left_out: dict[str, list[Path]] = field(default_factory=dict)

    def store(self, *, wait: bool) -> StoredDocuments:
        documents = read_from(
            self.paths,
            on_error="stop" if self.stop else "skip",
            on_skip=self._skip,
            max_bytes=self.settings.body_max_bytes,
            id_prefix=self.prefix,
            extractor=self.extractor,
            follow_links=self.follow_links,
            on_left_out=self._left_out,
        )
        return store(
            self.settings,
            ((self.prefix or name_of(path.resolve()), document) for path, document in documents),
            collection=self.collection,
            wait=wait,
            on_refused=None if self.stop else self._refused,
        )

    def _skip(self, error: RequestError) -> None:
        self.skipped.append(error)
        console.notice(f"skipped: {error}")

    def _left_out(self, path: Path, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(path)

    def _refused(self, document: Document, error: RequestError) -> None:
        self._skip(type(error)(f"document {document.id!r}: {error}"))


def _check_format(format: str, raw: bool) -> None:
    if format and format not in FORMATS:
        raise typer.BadParameter(f"{format!r} is not one of {', '.join(FORMATS)}", param_hint="--format")
    if format and raw:
        raise typer.BadParameter(
            f"--raw stores text unchanged, so --format {format} has no effect: leave one of them out",
            param_hint="--raw",
        )


def _preview(settings: Settings, show: Path, paths: list[Path] | None, format: str, raw: bool) -> None:
    if paths:
        raise typer.BadParameter(
            f"--show prints one file and stores nothing: leave out {' '.join(map(str, paths))}", param_hint="--show"
        )
    if raw:
        preview(show, None, settings.body_max_bytes)
        return
    with Extractor(forced=format) as extractor:
        preview(show, extractor, settings.body_max_bytes)


def _check(paths: list[Path], on_error: str, prefix: str, sync: bool) -> None:
    if not paths:
        raise typer.BadParameter("name the files and folders to store", param_hint="PATH")
    if on_error not in _ON_ERROR:
        raise typer.BadParameter(f"{on_error!r} is not one of {', '.join(_ON_ERROR)}", param_hint="--on-error")
    if sync and not prefix.endswith(_PREFIX_ENDS):
        raise typer.BadParameter(
            f"--sync needs a --prefix that ends with {' or '.join(_PREFIX_ENDS)}, got {prefix!r}",
            param_hint="--prefix",
        )
    if sync and (len(paths) != 1 or not paths[0].is_dir()):
        raise typer.BadParameter(f"--sync needs exactly one folder, got {' '.join(map(str, paths))}", param_hint="PATH")


def _report(stored: StoredDocuments, skipped: list[RequestError], extractor: Extractor | None) -> None:
    console.say(
        f"{console.counted(len(stored.ids), 'document')} stored"
        + (f", {len(skipped)} skipped" if skipped else "")
        + f" ({stored.new} new, {stored.changed} changed, {stored.unchanged} unchanged)"
    )
    if stored.replaced:
        shown = [
            f"{document_id!r} ({f'from {source}' if source else 'source not recorded'})"
            for document_id, source in stored.replaced.items()
        ]
        console.notice(
            f"{console.counted(len(shown), 'document')} replaced a document of another source:"
            f" {_some(shown, ', ')}; give each source its own --prefix to keep their ids apart"
        )
    if extractor is not None and extractor.counts:
        console.step("read as " + ", ".join(f"{name}: {count}" for name, count in extractor.counts.most_common()))
        _report_remarks(extractor.remarks)
    repeated = [error.document_id for error in skipped if isinstance(error, RepeatedId)]
    if repeated:
        console.notice(
            f"{console.counted(len(repeated), 'document')} not stored, because an earlier document of this run has the"
            f" same id: {_some(list(map(repr, dict.fromkeys(repeated))), ', ')}"
        )
    if stored.failed:
        shown = [f"{document_id!r}: {reason}" for document_id, reason in stored.failed.items()]
        console.error(
            f"{console.counted(len(shown), 'document')} stored, but not indexed and not tried again until written"
            f" again: {_some(shown, '; ')}"
        )
    if skipped:
        console.error(f"{len(skipped)} not stored: {_some(list(map(str, skipped)), '; ')}")


def _report_remarks(remarks: list[tuple[str, str]]) -> None:
    """Print a line for each file in which something was guessed, replaced or left out."""
    if remarks:
        shown = [f"{path}: {remark}" for path, remark in remarks]
        console.notice(f"{console.counted(len(shown), 'file')} to check:\n  {_some(shown, chr(10) + '  ')}")


def _report_links(left_out: dict[str, list[Path]]) -> None:
    for reason, what in (
        (LINK, "left out that lead out of the folder, to a folder or to a hidden file (--follow-links reads them)"),
        (FOLLOWED, "followed"),
    ):
        if paths := left_out.get(reason):
            console.notice(f"{console.counted(len(paths), 'link')} {what}: {_some(list(map(str, paths)), ', ')}")
    if paths := left_out.get(SPECIAL):
        console.notice(
            f"{console.counted(len(paths), 'pipe, device or socket', 'pipes, devices and sockets')} left out:"
            f" {_some(list(map(str, paths)), ', ')}"
        )


def _remove(source: _Source, stored: StoredDocuments, audit: Audit) -> None:
    if source.skipped:
        console.notice(
            f"no document was deleted: {len(source.skipped)} could not be stored, so the command does not know all"
            " documents of the folder"
        )
        return
    removed = remove_gone(source.settings, source.prefix, set(stored.ids), source.collection)
    audit.note("documents.delete", collection=source.collection, deleted=removed)
    console.say(f"{console.counted(removed, 'document')} deleted")


def _some(texts: list[str], between: str) -> str:
    more = len(texts) - _MAX_LISTED
    return between.join(texts[:_MAX_LISTED]) + (f"{between}and {more} more" if more > 0 else "")
