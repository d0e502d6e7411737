"""`qa-cluster ingest`: stores documents."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from qa_cluster.config import Settings
from qa_cluster.documents.addresses import STYLES, PageAddresses
from qa_cluster.documents.folder_reading import FolderReading
from qa_cluster.documents.folders.rules import FolderRules
from qa_cluster.keys import DEFAULT_COLLECTION
from qa_cluster.ranking.filters import metadata_of
from qa_cluster.sources.formats import FORMATS
from qa_cluster.sources.process.extractor import Extractor

from ..fetching.site import MAX_PAGES, Site
from ..ingestion.given import GivenReading, listed_pages, pages, standard_input
from ..ingestion.reading import SourceReading
from ..ingestion.report import IngestReport
from ..ingestion.run import IngestRun
from ..provision.preview import preview
from ..provision.storing import check_storable
from ..servers.local import with_cluster
from ..terminal import console
from .shared_options import (
    CollectionOption,
    Json,
    audit_of,
    choice_option,
    load_settings,
    refusals_as_usage,
    text_option,
)

_FAILED = 1
_STDIN = Path("-")
_USUAL_PAGES = 1000
_ON_ERROR = ("report", "skip", "stop")
# A prefix for --sync must end with one of these characters. Otherwise `news` would also match the ids of `newsletter`.
_PREFIX_ENDS = ("/", ":")


def ingest(  # noqa: PLR0917 - one parameter is one option
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files and folders, or - for standard input.",
            metavar="PATH",
            show_default=False,
        ),
    ] = None,
    sitemap: Annotated[
        str,
        text_option(
            "URL",
            "Store the pages that this sitemap lists and that are on its host. The id of a page is the path of its"
            " address. The metadata field url of the document is the address. The command obeys robots.txt.",
        ),
    ] = "",
    urls: Annotated[
        Path | None,
        typer.Option(
            help="Store the pages whose addresses are in this file, one on each line. The id of a page is its host and"
            " path.",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    max_pages: Annotated[
        int,
        typer.Option(
            help="With --sitemap and --urls: maximum number of pages. More pages are an error.", min=1, max=MAX_PAGES
        ),
    ] = _USUAL_PAGES,
    allow_private: Annotated[
        bool,
        typer.Option(
            "--allow-private",
            help="With --sitemap and --urls: also fetch from this machine and from private networks. Anyone who can"
            " change the site or its DNS can then make the command store pages of these networks.",
        ),
    ] = False,
    name: Annotated[
        str,
        text_option(
            "NAME",
            "With PATH -: a file name for standard input, such as notes.md. The name is also the id of the document.",
        ),
    ] = "",
    tracked: Annotated[
        bool,
        typer.Option(
            "--tracked", help="In a folder, read only the files that git tracks. The folder must be in a git checkout."
        ),
    ] = False,
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
            help="Delete the documents whose ids start with --prefix and whose files are no longer in PATH or contain"
            " no text. It needs one folder, --sitemap or --urls. The documents of unreadable files stay.",
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="With --sync: delete even more than a tenth of the documents of the collection. Without --yes, the"
            " command asks first on a terminal; elsewhere, it deletes nothing and exits with 1.",
        ),
    ] = False,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="With --sync: also delete the documents that were stored from this folder without a prefix. The files"
            " are stored again with the prefix.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be stored and deleted, and change nothing.")
    ] = False,
    include: Annotated[
        list[str] | None,
        text_option(
            "PATTERN",
            "In a folder, read only files that match this pattern in .gitignore syntax, such as '*.md' or"
            " 'guide/'. Repeatable.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        text_option(
            "PATTERN",
            "In a folder, leave out files and folders that match this pattern, even if --include names them."
            " Repeatable.",
        ),
    ] = None,
    no_ignore: Annotated[
        bool,
        typer.Option(
            "--no-ignore",
            help="In a folder, also read the files that .gitignore names, and the folders _build, _sources, _static,"
            " _templates and node_modules. Hidden files are always left out.",
        ),
    ] = False,
    base_url: Annotated[
        str,
        text_option(
            "URL",
            "Address of a site that has a page for each file. The metadata field url of a document becomes the"
            " address of its page. A url in the front matter of a file has priority.",
        ),
    ] = "",
    url_style: Annotated[
        str,
        choice_option(
            STYLES,
            "Address of a page below --base-url. For a.rst, html means a.html, dirhtml means a/, and file means a.rst.",
        ),
    ] = STYLES[0],
    metadata: Annotated[
        list[str] | None,
        text_option(
            "NAME=VALUE",
            "Metadata of every document: year=2024, public=true, 'version=\"10\"' (text), tags=one,two. Metadata"
            " in the document itself has priority. Repeatable.",
        ),
    ] = None,
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
            help="In a folder, also read links to folders and links that lead out of the folder. Without it, the"
            " command leaves them out and prints their number.",
        ),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the documents are indexed and can answer questions.")
    ] = True,
    json: Json = False,
) -> None:
    """Store documents: manual pages, HTML, RST, Markdown, text, changelogs, PDF, Office files, e-books, e-mail, JSON.

    The command stores the readable text of each file without its markup. For each part of the text, it also stores the
    section and the line or page. Files may be compressed with gzip. In a folder, the command leaves out hidden files,
    files with an unknown extension, generated folders, and what .gitignore names; at the end, it lists them. JSON means
    .jsonl, SQuAD and CORD-19 files; their texts are stored unchanged.

    A line of .jsonl is {"id": "..", "title": "..", "text": "..", "metadata": {..}}; title and metadata are optional. A
    document replaces the stored document with the same id. The command counts the documents that replaced a document of
    another source. A source is a --prefix or, without a prefix, a PATH. If an id occurs twice in one run, the first
    document is stored and the second is an error.

    Limits: a text has at most 5,000,000 characters, 100,000 sentences and body_max_bytes bytes in UTF-8 (a setting, 8
    MiB by default). An id has at most 512 bytes, a title 4,096 bytes, metadata 65,536 bytes as JSON. A file has at most
    64 MiB (.json: 512 MiB; .jsonl: no limit). Depending on its size, a file may take 10 to 60 s of CPU time and 0.5 to
    1.5 GiB of memory. After 3 files of a format have exceeded these limits, the other files of the format get a tenth
    of the time.

    Examples:

        qa-cluster ingest articles/ notes.md

        qa-cluster ingest articles/ --prefix articles/ --sync

        qa-cluster ingest docs/ --prefix docs/ --sync --base-url https://docs.example.org/

        qa-cluster ingest novels/ --collection books --exclude 'drafts/' --metadata language=en

        qa-cluster ingest --sitemap https://docs.example.org/sitemap.xml --prefix docs/ --sync

        pandoc notes.tex -t gfm | qa-cluster ingest - --name notes.md

        qa-cluster ingest --on-error skip dump.jsonl

        qa-cluster ingest --show /usr/share/man/man1/ls.1.gz
    """
    _check_format(format, raw)
    if show is not None:
        _preview(load_settings(context).settings, show, paths, format, raw)
        return
    paths = paths or []
    is_web = bool(sitemap) or urls is not None
    _check_source(paths, sitemap, urls, name, raw)
    _check(paths, on_error, prefix, sync, is_web=is_web)
    choosing = bool(include or exclude or no_ignore or tracked)
    _check_effects(paths, sync=sync, yes=yes, adopt=adopt, choosing=choosing, is_web=is_web)
    if (allow_private or max_pages != _USUAL_PAGES) and not is_web:
        raise typer.BadParameter("--allow-private and --max-pages have an effect only with --sitemap or --urls")
    reading = _reading(include, exclude, no_ignore, tracked, follow_links, base_url, url_style, metadata)
    audit = audit_of(context)
    settings = with_cluster(load_settings(context).settings)
    if not dry_run:
        check_storable(settings)
    extractor = None if raw else Extractor(forced=format)
    stop = on_error == "stop"
    with ExitStack() as opened:
        if is_web:
            site = opened.enter_context(Site(allow_private=allow_private, max_pages=max_pages))
            with refusals_as_usage(option="--sitemap" if sitemap else "--urls"):
                listed = listed_pages(site, sitemap, urls)
            given, label = pages(site, listed, with_host=urls is not None), sitemap or str(urls)
            source: SourceReading = GivenReading(
                settings, (), prefix, extractor, reading, stop, given=given, label=label, count=len(listed)
            )
        elif _STDIN in paths:
            with refusals_as_usage(option="--name"):
                file = standard_input(name, is_raw=raw)
            source = GivenReading(
                settings, (), prefix, extractor, reading, stop, given=lambda _: [file], label="standard input"
            )
        else:
            source = SourceReading(settings, paths, prefix, extractor, reading, stop)
        run = IngestRun(source, collection, sync=sync, yes=yes, adopt=adopt, dry_run=dry_run)
        report = _stored(run, wait)
    if not dry_run:
        audit.note("documents.ingest", collection=collection, new=report.stored.new, changed=report.stored.changed)
    report.say_stored(json)
    complete = run.remove(report, json=json) if sync else True
    if report.deleted is not None:
        audit.note("documents.delete", collection=collection, deleted=report.deleted)
    if json:
        console.say_json(report.to_dict())
    if not complete or ((source.skips or report.stored.failed) and on_error == "report"):
        raise typer.Exit(_FAILED)


def _stored(run: IngestRun, wait: bool) -> IngestReport:
    extractor = run.source.extractor
    try:
        return run.store(wait=wait)
    except KeyboardInterrupt as interrupt:
        console.notice(f"interrupted: {str(interrupt) or 'no document was stored'}")
        raise
    except Exception:
        if run.sync:
            console.notice("no document was deleted, because the run was not completed")
        raise
    finally:
        if extractor is not None:
            extractor.close()


def _reading(  # noqa: PLR0917 - one parameter is one option
    include: list[str] | None,
    exclude: list[str] | None,
    no_ignore: bool,
    tracked: bool,
    follow_links: bool,
    base_url: str,
    url_style: str,
    metadata: list[str] | None,
) -> FolderReading:
    with refusals_as_usage():
        rules = FolderRules(include or (), exclude or (), ignore=not no_ignore, tracked=tracked)
    with refusals_as_usage(option="--base-url"):
        addresses = PageAddresses.below(base_url, url_style) if base_url else None
    with refusals_as_usage(option="--metadata"):
        return FolderReading(rules, follow_links, addresses, metadata_of(metadata or ()))


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


def _check_source(paths: list[Path], sitemap: str, urls: Path | None, name: str, raw: bool) -> None:
    """Refuse options that name no source of documents, or sources that cannot be combined. The sources are PATH,
    --sitemap and --urls.
    """
    is_web = bool(sitemap) or urls is not None
    if sum((bool(paths), bool(sitemap), urls is not None)) != 1:
        what = "give only one of PATH, --sitemap and --urls" if is_web else "name the files and folders to store"
        raise typer.BadParameter(what, param_hint="PATH")
    missing = next((path for path in paths if path != _STDIN and not path.exists()), None)
    if missing is not None:
        raise typer.BadParameter(f"path {str(missing)!r} does not exist", param_hint="PATH")
    if (_STDIN in paths) != bool(name) or (_STDIN in paths and len(paths) > 1):
        raise typer.BadParameter("PATH - reads standard input: it needs --name and no other PATH", param_hint="--name")
    if is_web and raw:
        raise typer.BadParameter("--raw stores files unchanged, but pages are HTML", param_hint="--raw")


def _check(paths: list[Path], on_error: str, prefix: str, sync: bool, *, is_web: bool) -> None:
    if on_error not in _ON_ERROR:
        raise typer.BadParameter(f"{on_error!r} is not one of {', '.join(_ON_ERROR)}", param_hint="--on-error")
    if sync and not prefix.endswith(_PREFIX_ENDS):
        raise typer.BadParameter(
            f"--sync needs a --prefix that ends with {' or '.join(_PREFIX_ENDS)}, got {prefix!r}",
            param_hint="--prefix",
        )
    if sync and not is_web and (len(paths) != 1 or not paths[0].is_dir()):
        raise typer.BadParameter(f"--sync needs exactly one folder, got {' '.join(map(str, paths))}", param_hint="PATH")


def _check_effects(paths: list[Path], *, sync: bool, yes: bool, adopt: bool, choosing: bool, is_web: bool) -> None:
    """Refuse options that have no effect with the other options. `choosing` says whether an option is given that
    chooses the files of a folder (--include, --exclude, --no-ignore, --tracked).
    """
    if (yes or adopt) and not sync:
        option = "--yes" if yes else "--adopt"
        raise typer.BadParameter(f"{option} has an effect only with --sync", param_hint=option)
    if adopt and is_web:
        raise typer.BadParameter("--adopt has an effect only with a folder", param_hint="--adopt")
    if choosing and not any(path.is_dir() for path in paths):
        options = "--include, --exclude, --no-ignore and --tracked"
        raise typer.BadParameter(f"{options} have an effect only in a folder: name a folder")
