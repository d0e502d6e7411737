"""Reads documents from users' files and from folders of such files.

The formats are plain text, Markdown, JSON lines, SQuAD JSON and CORD-19 JSON. With an extractor (`sources.process`),
this module also reads manual pages, HTML, PDF and the other formats of `sources.formats`. The result is then clean text
with a source map (`source_map`). Without an extractor, a text is read unchanged and must be UTF-8. The module `files`
finds and opens the files.

Only one file is in memory at a time. Of a file of JSON lines, only one line is in memory. InvalidInput is raised if a
document cannot be read or repeats an id. The error names the file, the line or entry, and the reason. With
``on_error="skip"``, the error is reported to the observer and reading continues.

>>> for document in read_documents([Path("articles.jsonl")]):
...     print(document.id, len(document.text))
"""

from __future__ import annotations

import gzip
import json
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from qa_cluster.documents.metadata_limits import MAX_METADATA_BYTES
from qa_cluster.errors import InputTooLong, InvalidInput, RequestError
from qa_cluster.sources.decoding import gunzip, is_gzip
from qa_cluster.sources.extracted import EXTRACTOR_VERSION, Extracted, NoText
from qa_cluster.sources.formats import may_be_document
from qa_cluster.types import Document

from .files import FolderListing, SourceFile, without_gz
from .folder_reading import FolderReading, ReadingObserver, Skip
from .given_files import GivenFile
from .site_titles import SiteTitles
from .source_map import FIELD, URL, write_map
from .stored import check_document
from .unicode import name_of

ON_ERROR = ("stop", "skip")
MAX_JSON_BYTES = 512 * 1024 * 1024
MAX_TITLE = 300
_PART = 1 << 20
_JSON = (".json", ".jsonl")
_FIELDS = {"id", "title", "text", "metadata"}


class FileExtractor(Protocol):
    """Extracts clean text from a file.

    Attributes:
        forced: the format in which all files are read. If it is empty, the format of each file is detected.
        max_bytes: the size limit of a file.
    """

    forced: str
    max_bytes: int

    def extract(self, data: bytes, name: str) -> tuple[str, Extracted]:
        """Return the format of a file and its text. `data` are the bytes of the file.

        The ending of `name`, the name of the file, helps to detect the format.
        """


class RepeatedId(InvalidInput):
    """A document has the same id as a previous document.

    Attributes:
        document_id: the repeated id.

    Args:
        where: the file of the document, with the line or entry.
        before: the file of the previous document, with the line or entry.
    """

    def __init__(self, where: str, document_id: str, before: str) -> None:
        super().__init__(f"{where}: the id {document_id!r} is also used by a document in {before}: rename one")
        self.document_id = document_id


# One attempt to read a document: the document's position in the file, and a function that returns the document or
# raises a RequestError.
_Attempt = tuple[str, Callable[[], Document]]


def read_documents(
    paths: Iterable[Path], *, max_bytes: int = 8 * 1024 * 1024, extractor: FileExtractor | None = None
) -> Iterator[Document]:
    """Yield the documents of files and folders, in the order of `paths`.

    Each document is checked against the limits.

    Args:
        paths: the files and folders.
        max_bytes: the size limit of a document's text, and of a text file that is read without the extractor.
        extractor: reads all files except JSON, and with a forced format also JSON. If it is None, only text files and
            JSON are read.

    Raises:
        InvalidInput: a document cannot be read, or repeats an id (`RepeatedId`).
        InputTooLong: a file or a document exceeds a limit.
    """
    return (document for _, document in read_from(paths, max_bytes=max_bytes, extractor=extractor))


def read_from(
    paths: Iterable[Path],
    *,
    on_error: str = "stop",
    observer: ReadingObserver | None = None,
    max_bytes: int = 8 * 1024 * 1024,
    id_prefix: str = "",
    extractor: FileExtractor | None = None,
    reading: FolderReading | None = None,
) -> Iterator[tuple[Path, Document]]:
    """Yield the documents of files and folders, each with the element of `paths` that it comes from.

    Each document is checked against the limits.

    Args:
        paths: the files and folders, in the order of reading.
        on_error: ``stop`` raises the first error; ``skip`` reports each error to `observer` and continues.
        observer: receives the events of reading; None means that events are ignored.
        max_bytes: the size limit of a document's text, and of a text file that is read without the extractor.
        id_prefix: precedes every id.
        extractor: reads all files except JSON, and with a forced format also JSON. If it is None, only text files and
            JSON are read.
        reading: which files of folders are read, and the address and metadata that all documents get; None means the
            defaults of `FolderReading`.

    Raises:
        InvalidInput: `on_error` is invalid; or, with ``stop``, a document cannot be read or repeats an id
            (`RepeatedId`).
        InputTooLong: with ``stop``, a file or a document exceeds a limit.
    """
    seen = observer if observer is not None else ReadingObserver()
    chosen = reading if reading is not None else FolderReading()
    refuse = _refuser(on_error, seen)
    files = [(path, file) for path in paths for file in _files_of(path, chosen, extractor, seen, refuse)]
    seen.listed([file for _, file in files])
    titles = SiteTitles([file for _, file in files] if extractor is not None else [])
    yield from _documents_of(
        files, refuse, seen, chosen, titles, max_bytes=max_bytes, prefix=id_prefix, extractor=extractor
    )


def read_given(
    files: Iterable[SourceFile],
    *,
    on_error: str = "stop",
    observer: ReadingObserver | None = None,
    max_bytes: int = 8 * 1024 * 1024,
    id_prefix: str = "",
    extractor: FileExtractor | None = None,
    reading: FolderReading | None = None,
) -> Iterator[Document]:
    """Yield the documents of files whose contents are in memory (`given_files`), with the options of `read_from`."""
    seen = observer if observer is not None else ReadingObserver()
    chosen = reading if reading is not None else FolderReading()
    found = _documents_of(
        ((Path(), file) for file in files),
        _refuser(on_error, seen),
        seen,
        chosen,
        SiteTitles([]),  # shared titles are found only if all files are known
        max_bytes=max_bytes,
        prefix=id_prefix,
        extractor=extractor,
    )
    for _, document in found:
        yield document


def _refuser(on_error: str, seen: ReadingObserver) -> Callable[[Skip], None]:
    """Return the function that handles a document that cannot be read; InvalidInput if `on_error` is invalid.

    With ``stop``, the function raises the error. With ``skip``, it reports the document to the observer `seen`.
    """
    if on_error not in ON_ERROR:
        raise InvalidInput(f"on_error is {on_error!r}, must be one of {', '.join(ON_ERROR)}")

    def refuse(skip: Skip) -> None:
        if on_error == "stop":
            raise skip.error
        seen.skipped(skip)

    return refuse


def _documents_of(
    files: Iterable[tuple[Path, SourceFile]],
    refuse: Callable[[Skip], None],
    seen: ReadingObserver,
    reading: FolderReading,
    titles: SiteTitles,
    *,
    max_bytes: int,
    prefix: str,
    extractor: FileExtractor | None,
) -> Iterator[tuple[Path, Document]]:
    """Yield the documents of files, each with the path that the user gave.

    `files` are pairs of this path and a file. `refuse` handles a document that cannot be read. `seen` is the observer.
    """
    places: dict[str, str] = {}
    for path, file in files:
        seen.begun(file)
        try:
            for where, attempt in _attempts(file, max_bytes, extractor, titles):
                named = ""
                try:
                    document = _completed(attempt(), path, file, reading, prefix)
                    named = document.id
                    yield path, _checked(document, where, max_bytes, places)
                except RequestError as error:
                    refuse(Skip(where, error, named or _own_id(file, extractor, prefix)))
        except RequestError as error:
            refuse(Skip(file.shown, error, _own_id(file, extractor, prefix)))


def _files_of(
    path: Path,
    reading: FolderReading,
    extractor: FileExtractor | None,
    seen: ReadingObserver,
    refuse: Callable[[Skip], None],
) -> list[SourceFile]:
    if not path.is_dir():
        return _named_file(path, refuse, extractor)
    left_out = Counter[str]()

    def wanted(name: str) -> bool:
        if _ending(name) in _READERS:
            return True
        if extractor is None:
            return False
        # With --include patterns and a forced format, every file that the patterns match is wanted.
        return may_be_document(name) or bool(extractor.forced and reading.rules.has_include)

    def leave_out(file: Path, reason: str) -> None:
        left_out[reason] += 1
        seen.left_out(file, reason)

    def unlisted(within: str, error: InvalidInput) -> None:
        refuse(Skip(name_of(path / within), error, folder=within))

    files = FolderListing(path, wanted, reading.follow_links, leave_out, unlisted, reading.rules.start(path)).files()
    if not files:
        refuse(Skip(name_of(path), _no_documents(path, extractor, left_out), folder=""))
    return files


def _completed(document: Document, path: Path, file: SourceFile, reading: FolderReading, prefix: str) -> Document:
    """Return the document with its id prefix, its address, and the metadata that all documents get.

    `path` is the path that the user gave. `file` is the file that contains the document.
    """
    given = file.metadata if isinstance(file, GivenFile) else {}
    metadata = {**reading.metadata, **given, **document.metadata}
    if reading.addresses is not None and (FIELD in metadata or not _is_json(file)):
        own = document.metadata.get(URL)
        format = str(metadata.get(FIELD, {}).get("format", "markdown" if _ending(file.name) == ".md" else "text"))
        within = str(file.path.relative_to(path)) if file.path != path else file.path.name
        if isinstance(own, str) and own:
            metadata[URL] = reading.addresses.join(own)
        elif own is None:
            metadata[URL] = reading.addresses.of(within, format)
    return replace(document, id=prefix + document.id, metadata=metadata)


def _own_id(file: SourceFile, extractor: FileExtractor | None, prefix: str) -> str:
    """Return the id of a file's document, with the prefix; empty for a file that is read as JSON.

    A JSON file may contain many documents, and states their ids.
    """
    many = _is_json(file) and not (extractor is not None and extractor.forced)
    return "" if many else prefix + file.document_name


def _is_json(file: SourceFile) -> bool:
    return _ending(file.name) in _JSON


def _ending(name: str) -> str:
    """Return the ending of a name without ``.gz``, in lower case."""
    return Path(without_gz(name)).suffix.lower()


def _attempts(
    file: SourceFile, max_bytes: int, extractor: FileExtractor | None, titles: SiteTitles
) -> Iterator[_Attempt]:
    if extractor is None or (_is_json(file) and not extractor.forced):
        yield from _READERS[_ending(file.name)](file, max_bytes)
    else:
        yield file.shown, lambda: _extracted(file, extractor, titles)


def _no_documents(folder: Path, extractor: FileExtractor | None, left_out: Mapping[str, int]) -> InvalidInput:
    kinds = f"ends in {', '.join(_READERS)}" if extractor is None else "looks like a document by its name"
    reasons = "; ".join(f"{count}: {reason}" for reason, count in left_out.items())
    found = f" and is not left out ({reasons})" if reasons else ""
    return InvalidInput(f"{name_of(folder)}: no file in this folder {kinds}{found}")


def _named_file(path: Path, refuse: Callable[[Skip], None], extractor: FileExtractor | None) -> list[SourceFile]:
    shown = name_of(path)
    if not path.exists():
        refuse(Skip(shown, InvalidInput(f"{shown}: no such file or folder")))
    elif _ending(path.name) not in _READERS and extractor is None:
        what = repr(path.suffix) if path.suffix else "'a file without an ending'"
        refuse(Skip(shown, InvalidInput(f"{shown}: cannot read {what}, only {', '.join(_READERS)}")))
    else:
        return [SourceFile(path, name_of(path.name))]
    return []


def _read_text(file: SourceFile, limit: int) -> str:
    data = file.read(limit, spare=len(BOM_UTF8))
    if file.name != file.document_name and is_gzip(data):
        try:
            data = gunzip(data, limit + len(BOM_UTF8))
        except RequestError as error:
            raise type(error)(f"{file.shown}: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file.shown}: not UTF-8 at byte {error.start}") from error


def _checked(document: Document, where: str, max_bytes: int, places: dict[str, str]) -> Document:
    """Check a document, add its id to `places`, and return the document.

    Raise an error if it exceeds a limit, or if `places` already has its id. `places` maps the ids of earlier documents
    to their places: the file with the line or entry.
    """
    size = len(document.text.encode())
    if size > max_bytes:
        raise InputTooLong(f"{where}: document {document.id!r} has {size} bytes, the limit is {max_bytes}")
    if (before := places.get(document.id)) is not None:
        raise RepeatedId(where, document.id, before)
    try:
        check_document(document.id, document.text, document.title, document.metadata)
    except RequestError as error:
        raise type(error)(f"{where}: {error}") from error
    places[document.id] = where
    return document


def _document(where: str, id: Any, text: Any, title: Any = "", metadata: Any = None) -> Document:
    """Create a document from values in a file; InvalidInput if a value is invalid, NoText if the text is empty.

    The error names the first invalid value, and `where`: the file, with the line or entry.
    """
    if not isinstance(id, str) or not id.strip():
        raise InvalidInput(f"{where}: 'id' is {_shown(id)}, must be non-empty text")
    if not isinstance(text, str):
        raise InvalidInput(f"{where}: 'text' is {_shown(text)}, must be text")
    if not text.strip():
        raise NoText(f"{where}: the text is empty")
    if not isinstance(title, str):
        raise InvalidInput(f"{where}: 'title' is {_shown(title)}, must be text")
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidInput(f"{where}: 'metadata' is {_shown(metadata)}, must be an object")
    try:
        f"{id}{title}{text}".encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{where}: contains a lone surrogate, which is not valid Unicode") from error
    return Document(id=id, text=text, title=title, metadata=metadata or {})


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


def _plain(file: SourceFile, max_bytes: int) -> Iterator[_Attempt]:
    where, stem = file.shown, Path(file.document_name).stem
    yield where, lambda: _document(where, file.document_name, _read_text(file, max_bytes), stem)


def _extracted(file: SourceFile, extractor: FileExtractor, titles: SiteTitles) -> Document:
    """Return the document of a file: the clean text from the extractor, with its source map in the metadata."""
    data = file.read(extractor.max_bytes)
    try:
        format, found = extractor.extract(data, file.shown)
    except RequestError as error:
        raise type(error)(f"{file.shown}: {error}") from error
    sections: list[tuple[int, tuple[str, ...]]] = []
    end = 0
    for section in found.sections:
        if section.start > end and sections:
            sections.append((end, ()))
        sections.append((section.start, section.path))
        end = section.end
    places = [(place.start, place.number) for place in found.places]
    source = write_map(file.name, format, EXTRACTOR_VERSION, sections, unit=found.unit, places=places)
    return _document(
        file.shown,
        file.document_name,
        found.text,
        _shortened(titles.own(file, found)),
        {**found.metadata, FIELD: source},
    )


def _shortened(title: str) -> str:
    return title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 2] + ".."


def _markdown(file: SourceFile, max_bytes: int) -> Iterator[_Attempt]:
    def read() -> Document:
        text = _read_text(file, max_bytes)
        headings = (line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#"))
        title = next(headings, "") or Path(file.document_name).stem
        return _document(file.shown, file.document_name, text, title)

    yield file.shown, read


def _json_lines(file: SourceFile, max_bytes: int) -> Iterator[_Attempt]:
    """Yield an attempt for each line that is not blank. A line contains one document with its id.

    The attempt for a line that is too long raises InputTooLong.
    """
    limit = _line_limit(max_bytes)
    with file.opened() as opened, _unpacked(opened, file) as lines:
        number = 0
        while line := lines.readline(limit + 1):
            number += 1
            where = f"{file.shown}:{number}"
            if len(line) > limit:
                while line and not line.endswith(b"\n"):
                    line = lines.readline(_PART)
                yield where, partial(_raise, f"{where}: the line has more than {limit} bytes", InputTooLong)
            elif line.strip():
                yield where, partial(_json_line, where, line)


@contextmanager
def _unpacked(opened: BinaryIO, file: SourceFile) -> Iterator[BinaryIO | gzip.GzipFile]:
    if file.name == file.document_name:
        yield opened
        return
    try:
        with gzip.GzipFile(fileobj=opened) as unpacked:
            yield unpacked
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInput(f"{file.shown}: a damaged gzip file: {error}") from error


def _line_limit(max_bytes: int) -> int:
    """Return the size limit of a line of JSON lines, in bytes.

    A line has room for a text of `max_bytes` and for metadata of `MAX_METADATA_BYTES`, both in their longest JSON form
    (``\\u0041`` for each byte), and for 1 MiB of other fields.
    """
    return 6 * (max_bytes + MAX_METADATA_BYTES) + _PART


def _json_line(where: str, line: bytes) -> Document:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{where}: not UTF-8 at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{where}: must be an object with 'id' and 'text', got {_shown(value)}")
    if unknown := sorted(set(value) - _FIELDS):
        raise InvalidInput(f"{where}: unknown field {unknown[0]!r}, known are {', '.join(sorted(_FIELDS))}")
    return _document(where, value.get("id"), value.get("text"), value.get("title") or "", value.get("metadata"))


def _json_file(file: SourceFile, max_bytes: int) -> Iterator[_Attempt]:
    """Yield attempts for the documents of a SQuAD or CORD-19 file. The file's top-level fields identify the format."""
    del max_bytes  # the limit applies to each document, and the file contains many
    try:
        value = json.loads(_read_text(file, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{file.shown}: not JSON: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        yield from _squad(Path(file.shown), value["data"])
    elif isinstance(value, dict) and "paper_id" in value:
        yield file.shown, lambda: _cord19(Path(file.shown), value)
    else:
        raise InvalidInput(
            f"{file.shown}: neither SQuAD ('data': a list of articles) nor CORD-19 ('paper_id', 'body_text'); put your"
            " own documents into a .jsonl file"
        )


def _squad(file: Path, articles: list[Any]) -> Iterator[_Attempt]:
    """Yield an attempt for each paragraph of the articles. The id of its document is `<title>:<n>`.

    `<n>` counts the paragraphs from 0, and continues through all articles with the same title.
    """
    counts: dict[str, int] = {}
    for index, article in enumerate(articles):
        where = f"{file}: data[{index}]"
        if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
            yield where, partial(_raise, f"{where}: must be an object with a list 'paragraphs'")
            continue
        title = article.get("title") or f"{Path(without_gz(file.name)).stem}-{index}"
        if not isinstance(title, str):
            yield where, partial(_raise, f"{where}: 'title' is {_shown(title)}, must be text")
            continue
        for number, paragraph in enumerate(article["paragraphs"]):
            place = f"{where}.paragraphs[{number}]"
            if not isinstance(paragraph, dict):
                yield place, partial(_raise, f"{place}: must be an object with 'context'")
                continue
            count = counts.get(title, 0)
            counts[title] = count + 1
            yield place, partial(_document, place, f"{title}:{count}", paragraph.get("context"), title)


def _cord19(file: Path, article: dict[str, Any]) -> Document:
    parts = []
    for section in ("abstract", "body_text"):
        entries = article.get(section) or []
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) and isinstance(entry.get("text"), str) for entry in entries
        ):
            raise InvalidInput(f"{file}: {section!r} must be a list of objects with 'text'")
        parts += [entry["text"] for entry in entries if entry["text"].strip()]
    about = article.get("metadata")
    title = about.get("title", "") if isinstance(about, dict) else ""
    return _document(str(file), article["paper_id"], "\n\n".join(parts), title)


def _raise(message: str, kind: type[RequestError] = InvalidInput) -> Document:
    raise kind(message)


_READERS: dict[str, Callable[[SourceFile, int], Iterator[_Attempt]]] = {
    ".txt": _plain,
    ".md": _markdown,
    ".jsonl": _json_lines,
    ".json": _json_file,
}
