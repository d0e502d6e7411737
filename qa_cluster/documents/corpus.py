"""Reads documents from users' files: plain text, Markdown, JSON lines, SQuAD JSON, CORD-19 JSON, and folders of these.

With an extractor (`sources.limited`), it also reads manual pages, HTML, PDF and the other formats of `sources.formats`.
The result is clean text with a source map (`source_map`). Without an extractor, a text is read unchanged and must be
UTF-8.

Only one file (of JSON lines, one line) is in memory at a time. InvalidInput is raised for a document that cannot be
read or that repeats an id; it names the file, the line or entry, and the reason. With ``on_error="skip"``, the error is
reported and reading continues.

>>> for document in read_documents([Path("articles.jsonl")]):
...     print(document.id, len(document.text))
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from qa_cluster.errors import InputTooLong, InvalidInput, RequestError
from qa_cluster.sources.extracted import EXTRACTOR_VERSION, Extracted
from qa_cluster.sources.formats import may_be_document
from qa_cluster.types import Document

from .source_map import FIELD, write_map
from .stored import check_document

ON_ERROR = ("stop", "skip")
MAX_JSON_BYTES = 512 * 1024 * 1024
MAX_TITLE = 300
_JSON = (".json", ".jsonl")
_FIELDS = {"id", "title", "text", "metadata"}


class FileExtractor(Protocol):
    """Extracts clean text from a file; `forced` is the format of all files, or empty."""

    forced: str

    def extract(self, data: bytes, name: str) -> tuple[str, Extracted]:
        """Return the format of a file and its text."""


class RepeatedId(InvalidInput):
    """A document repeats the id of an earlier document.

    Attributes:
        document_id: the repeated id.
    """

    def __init__(self, where: str, document_id: str, before: str) -> None:
        super().__init__(f"{where}: the id {document_id!r} is also used by a document in {before}: rename one")
        self.document_id = document_id


# One attempt to read a document: its position in the file, and a function that returns it or raises a RequestError.
_Attempt = tuple[str, Callable[[], Document]]


def read_documents(
    paths: Iterable[Path],
    *,
    on_error: str = "stop",
    on_skip: Callable[[RequestError], None] = lambda error: None,
    max_bytes: int = 8 * 1024 * 1024,
    id_prefix: str = "",
    extractor: FileExtractor | None = None,
) -> Iterator[Document]:
    """Yield the documents of files and folders in order, each checked against the limits.

    `max_bytes` also limits a document's text. `id_prefix` precedes every id. An `extractor` reads all files except
    JSON.
    """
    found = read_from(
        paths, on_error=on_error, on_skip=on_skip, max_bytes=max_bytes, id_prefix=id_prefix, extractor=extractor
    )
    for _, document in found:
        yield document


def read_from(
    paths: Iterable[Path],
    *,
    on_error: str = "stop",
    on_skip: Callable[[RequestError], None] = lambda error: None,
    max_bytes: int = 8 * 1024 * 1024,
    id_prefix: str = "",
    extractor: FileExtractor | None = None,
) -> Iterator[tuple[Path, Document]]:
    """Yield the same documents, each with the element of `paths` that it comes from."""
    if on_error not in ON_ERROR:
        raise InvalidInput(f"on_error is {on_error!r}, must be one of {', '.join(ON_ERROR)}")

    def refuse(error: RequestError) -> None:
        if on_error == "stop":
            raise error
        on_skip(error)

    places: dict[str, str] = {}
    for path in paths:
        for name, file in _files(path, refuse, extractor):
            try:
                for where, attempt in _attempts(file, name, extractor):
                    try:
                        document = attempt()
                        named = replace(document, id=id_prefix + document.id) if id_prefix else document
                        yield path, _checked(named, where, max_bytes, places)
                    except RequestError as error:
                        refuse(error)
            except RequestError as error:
                refuse(error)


def _attempts(file: Path, name: str, extractor: FileExtractor | None) -> Iterator[_Attempt]:
    ending = file.suffix.lower()
    if extractor is None or (ending in _JSON and not extractor.forced):
        yield from _READERS[ending](file, name)
    else:
        yield str(file), lambda: _extracted(file, name, extractor)


def _files(
    path: Path, refuse: Callable[[RequestError], None], extractor: FileExtractor | None
) -> Iterator[tuple[str, Path]]:
    """Yield the readable files at `path`, each with a name for its document (in a folder, the path within it)."""
    if path.is_dir():
        found = _files_below(path, refuse, extractor)
        if not found and extractor is None:
            refuse(InvalidInput(f"{path}: no file in this folder ends in {', '.join(_READERS)}"))
        elif not found:
            refuse(InvalidInput(f"{path}: no file in this folder looks like a document by its name"))
        yield from ((file.relative_to(path).as_posix(), file) for file in found)
    elif not path.exists():
        refuse(InvalidInput(f"{path}: no such file or folder"))
    elif path.suffix.lower() not in _READERS and extractor is None:
        refuse(
            InvalidInput(
                f"{path}: cannot read {path.suffix or 'a file without an ending'!r}, only {', '.join(_READERS)}"
            )
        )
    else:
        yield path.name, path


def _files_below(folder: Path, refuse: Callable[[RequestError], None], extractor: FileExtractor | None) -> list[Path]:
    """Return the readable files of a folder and its subfolders, in order.

    A folder that cannot be listed is always refused. The result includes files that cannot be examined, such as a
    broken link: the attempt to read them reports the error.
    """

    def unlisted(error: OSError) -> None:
        refuse(InvalidInput(f"{error.filename}: cannot list this folder: {error.strerror}"))

    below = (Path(at) / name for at, _, names in os.walk(folder, onerror=unlisted) for name in names)
    return sorted(file for file in below if _is_document(file, folder, extractor) and _may_be_read(file))


def _is_document(file: Path, folder: Path, extractor: FileExtractor | None) -> bool:
    if file.suffix.lower() in _READERS:
        return True
    # Hidden files belong to programs. For example, `.git` contains many files without an ending.
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return extractor is not None and not hidden and may_be_document(file.name)


def _may_be_read(file: Path) -> bool:
    try:
        return file.is_file() or not file.exists()
    except OSError:
        return True


def _read_text(file: Path) -> str:
    try:
        size = file.stat().st_size
        if size > MAX_JSON_BYTES:
            raise InputTooLong(f"{file}: {size} bytes, the limit for one file is {MAX_JSON_BYTES}")
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> InvalidInput:
    link = f", it is a link to {str(file.readlink())!r}" if file.is_symlink() else ""
    return InvalidInput(f"{file}: cannot be read: {error.strerror}{link}")


def _checked(document: Document, where: str, max_bytes: int, places: dict[str, str]) -> Document:
    """Return the document unless it exceeds a limit or repeats an id; `places` maps each id so far to its file."""
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
    """Create a document from values of a file; `where` starts the error message about the first invalid value."""
    if not isinstance(id, str) or not id.strip():
        raise InvalidInput(f"{where}: 'id' is {_shown(id)}, must be non-empty text")
    if not isinstance(text, str):
        raise InvalidInput(f"{where}: 'text' is {_shown(text)}, must be text")
    if not text.strip():
        raise InvalidInput(f"{where}: the text is empty")
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


def _plain(file: Path, name: str) -> Iterator[_Attempt]:
    yield str(file), lambda: _document(str(file), name, _read_text(file), file.stem)


def _extracted(file: Path, name: str, extractor: FileExtractor) -> Document:
    """Return the clean text of a file with its source map."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from error
    try:
        format, found = extractor.extract(data, file.name)
    except RequestError as error:
        raise type(error)(f"{file}: {error}") from error
    sections: list[tuple[int, tuple[str, ...]]] = []
    end = 0
    for section in found.sections:
        if section.start > end and sections:
            sections.append((end, ()))
        sections.append((section.start, section.path))
        end = section.end
    places = [(place.start, place.number) for place in found.places]
    source = write_map(name, format, EXTRACTOR_VERSION, sections, unit=found.unit, places=places)
    return _document(str(file), name, found.text, _shortened(found.title), {FIELD: source})


def _shortened(title: str) -> str:
    return title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 2] + ".."


def _markdown(file: Path, name: str) -> Iterator[_Attempt]:
    def read() -> Document:
        text = _read_text(file)
        headings = (line.lstrip("#").strip() for line in text.splitlines() if line.startswith("#"))
        return _document(str(file), name, text, next(headings, "") or file.stem)

    yield str(file), read


def _json_lines(file: Path, name: str) -> Iterator[_Attempt]:
    del name  # every line has its own id
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    where = f"{file}:{number}"
                    yield where, partial(_json_line, where, line)
    except OSError as error:
        raise _unreadable(file, error) from error


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


def _json_file(file: Path, name: str) -> Iterator[_Attempt]:
    """Yield the documents of a SQuAD or CORD-19 file; the fields show which of the two it is."""
    try:
        value = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{file}: not JSON: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        yield from _squad(file, value["data"])
    elif isinstance(value, dict) and "paper_id" in value:
        yield str(file), lambda: _cord19(file, value)
    else:
        raise InvalidInput(
            f"{file}: neither SQuAD ('data': a list of articles) nor CORD-19 ('paper_id', 'body_text'); put your"
            " own documents into a .jsonl file"
        )
    del name  # every entry has its own id


def _squad(file: Path, articles: list[Any]) -> Iterator[_Attempt]:
    """Yield a document `<title>:<n>` for each paragraph; `<n>` continues through articles with the same title."""
    counts: dict[str, int] = {}
    for index, article in enumerate(articles):
        where = f"{file}: data[{index}]"
        if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
            yield where, partial(_raise, f"{where}: must be an object with a list 'paragraphs'")
            continue
        title = article.get("title") or f"{file.stem}-{index}"
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


def _raise(message: str) -> Document:
    raise InvalidInput(message)


_READERS: dict[str, Callable[[Path, str], Iterator[_Attempt]]] = {
    ".txt": _plain,
    ".md": _markdown,
    ".jsonl": _json_lines,
    ".json": _json_file,
}
