"""`qa-cluster ingest`: stores documents."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.config import Settings
from qa_cluster.documents.corpus import RepeatedId, read_from
from qa_cluster.errors import RequestError
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.sources.formats import FORMATS
from qa_cluster.sources.limited import Extractor
from qa_cluster.types import Document

from ..provision.preview import preview
from ..provision.storing import Stored, check_storable, remove_gone, store
from ..servers.local import with_cluster
from ..terminal import console
from .shared_options import Audit, CollectionOption, audit_of, load_settings

_FAILED = 1
_ON_ERROR = ("report", "skip", "stop")
# A prefix for --sync must end with one of these: `news` would otherwise be a prefix of `newsletter` too.
_ENDS = ("/", ":")
_NAMED = 5


def ingest(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files and folders.", exists=True, metavar="PATH", show_default=False)
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            help="What to do with a document that cannot be read or is refused. report: store the rest and exit with 1;"
            " skip: store the others and exit with 0; stop: end there."
        ),
    ] = "report",
    prefix: Annotated[
        str, typer.Option(help="Put before every id: one prefix for each source keeps their ids apart.")
    ] = "",
    sync: Annotated[
        bool,
        typer.Option(
            "--sync",
            help="Remove the documents whose ids begin with --prefix and that are no longer in PATH, one folder."
            " Nothing is removed if anything in the folder could not be read or was refused.",
        ),
    ] = False,
    collection: CollectionOption = DEFAULT_COLLECTION,
    format: Annotated[
        str,
        typer.Option(
            help=f"Read every file as this: {', '.join(FORMATS)}. Without it, its name tells, else its contents.",
            show_default=False,
        ),
    ] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Store text as it is, with its markup: .txt and .md only, in UTF-8.")
    ] = False,
    show: Annotated[
        Path | None,
        typer.Option(
            help="Print what would be stored of this file, section by section, and store nothing; needs no cluster.",
            exists=True,
            dir_okay=False,
            show_default=False,
            metavar="FILE",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until questions are answered from the documents.")
    ] = True,
) -> None:
    """Store documents: manual pages, HTML, RST, Markdown, text, changelogs, PDF, .docx, .odt, and JSON.

    What is stored is the clean text that a person would read, with the section and the line or page that each part
    comes from. Files may be gzip'd. In a folder, hidden files and those whose names have an ending of no known format
    are left out. PDF and .docx need `pip install 'qa-cluster[sources]'`. JSON is .jsonl, SQuAD and CORD-19: its texts
    are stored as they are.

    A line of .jsonl is {"id": "..", "title": "..", "text": "..", "metadata": {..}}; title and metadata may be left out.
    A document replaces the one that was stored before under its id; the command says how many replaced one that had not
    come from the same source: the same --prefix or, without one, the same PATH. The same id twice in one run is an
    error, and the first document is stored.

    Limits: a text has at most 5,000,000 characters, 100,000 sentences and body_max_bytes (a setting, 8 MiB by default)
    in UTF-8, an id 512 bytes, a title 4,096 bytes, metadata 65,536 bytes as JSON, a file 64 MiB (.json: 512 MiB,
    .jsonl: any size); reading a file may take 60 s of processor time and 1.5 GiB of memory.

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
    source = _Source(settings, paths, prefix, collection, extractor, stop=on_error == "stop")
    try:
        stored = source.store(wait=wait)
    except KeyboardInterrupt as interrupt:
        console.notice(f"interrupted: {str(interrupt) or 'nothing was stored'}")
        raise
    except Exception:
        if sync:
            console.notice("nothing was removed: the run did not get to its end")
        raise
    finally:
        if extractor is not None:
            extractor.close()
    audit.note("documents.ingest", collection=collection, new=stored.new, changed=stored.changed)
    _report(stored, source.skipped, extractor)
    if sync:
        _remove(source, stored, audit)
    if source.skipped and (sync or on_error == "report"):
        raise typer.Exit(_FAILED)


@dataclass
class _Source:
    """The documents to store, and the errors of those that could not be stored."""

    settings: Settings
    paths: list[Path]
    prefix: str
    collection: str
    extractor: Extractor | None
    stop: bool
    skipped: list[RequestError] = field(default_factory=list)

    def store(self, *, wait: bool) -> Stored:
        """Store the documents."""
        documents = read_from(
            self.paths,
            on_error="stop" if self.stop else "skip",
            on_skip=self._skip,
            max_bytes=self.settings.body_max_bytes,
            id_prefix=self.prefix,
            extractor=self.extractor,
        )
        return store(
            self.settings,
            ((self.prefix or str(path.resolve()), document) for path, document in documents),
            collection=self.collection,
            wait=wait,
            on_refused=None if self.stop else self._refused,
        )

    def _skip(self, error: RequestError) -> None:
        self.skipped.append(error)
        console.notice(f"skipped: {error}")

    def _refused(self, document: Document, error: RequestError) -> None:
        self._skip(type(error)(f"document {document.id!r}: {error}"))


def _check_format(format: str, raw: bool) -> None:
    if format and format not in FORMATS:
        raise typer.BadParameter(f"{format!r} is not one of {', '.join(FORMATS)}", param_hint="--format")
    if format and raw:
        raise typer.BadParameter("--raw stores text as it is: --format has no meaning with it", param_hint="--raw")


def _preview(settings: Settings, show: Path, paths: list[Path] | None, format: str, raw: bool) -> None:
    if paths:
        raise typer.BadParameter("--show prints one file: leave PATH out", param_hint="--show")
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
    if sync and not prefix.endswith(_ENDS):
        raise typer.BadParameter(
            f"--sync needs a --prefix that ends with one of {' '.join(_ENDS)}, got {prefix!r}", param_hint="--prefix"
        )
    if sync and (len(paths) != 1 or not paths[0].is_dir()):
        raise typer.BadParameter("--sync needs one folder and nothing else", param_hint="PATH")


def _report(stored: Stored, skipped: list[RequestError], extractor: Extractor | None) -> None:
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
            f"{console.counted(len(shown), 'document')} replaced one that had not come from this source:"
            f" {_some(shown, ', ')}; a --prefix for each source keeps their ids apart"
        )
    if extractor is not None and extractor.counts:
        console.step("read as " + ", ".join(f"{name}: {count}" for name, count in extractor.counts.most_common()))
    repeated = [error.document_id for error in skipped if isinstance(error, RepeatedId)]
    if repeated:
        console.notice(
            f"{console.counted(len(repeated), 'document')} had the id of another one of this run, which was stored:"
            f" {_some(list(map(repr, dict.fromkeys(repeated))), ', ')}"
        )
    if skipped:
        console.error(f"{len(skipped)} not stored: {_some(list(map(str, skipped)), '; ')}")


def _remove(source: _Source, stored: Stored, audit: Audit) -> None:
    if source.skipped:
        console.notice(
            f"nothing was removed: {len(source.skipped)} could not be stored, so the folder's contents are not fully"
            " known"
        )
        return
    removed = remove_gone(source.settings, source.prefix, set(stored.ids), source.collection)
    audit.note("documents.delete", collection=source.collection, deleted=removed)
    console.say(f"{console.counted(removed, 'document')} removed")


def _some(texts: list[str], between: str) -> str:
    more = len(texts) - _NAMED
    return between.join(texts[:_NAMED]) + (f"{between}and {more} more" if more > 0 else "")
