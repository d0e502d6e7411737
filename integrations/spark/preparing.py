"""Extracts the texts of files on the executors: PDF, HTML, Office and the other formats of `qa-cluster ingest`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from qa_cluster.errors import InvalidInput

DOCUMENT_COLUMNS = "id string, text string, title string, metadata string, error string"
MAX_BYTES = 64 * 1024 * 1024


def extract_files(frame: Any, *, root: str = "", prefix: str = "", format: str = "", max_bytes: int = MAX_BYTES) -> Any:
    """Return the documents of the files in a DataFrame of ``spark.read.format("binaryFile")``.

    The result has `DOCUMENT_COLUMNS`. A file that cannot be read has a row with `error` and without a text. A JSONL
    file has a row for each document.

    Args:
        root: the path that the ids leave out, such as the folder that was loaded.
        prefix: precedes every id.
        format: the format of all files; default: detected from the name, else from the contents.
        max_bytes: the limit of a file and of a document's text.
    """
    for name in ("path", "content"):
        if name not in frame.columns:
            raise InvalidInput(f"the DataFrame has no column {name!r}: load files with the format binaryFile")

    def extract(tables: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        from qa_cluster.sources.process.extractor import Extractor

        with Extractor(forced=format) as extractor:
            extractor.max_bytes = max_bytes
            for table in tables:
                rows = [
                    row
                    for path, content in zip(table["path"], table["content"], strict=True)
                    for row in _rows(file_name(path, root), bytes(content), extractor, prefix, max_bytes)
                ]
                yield pd.DataFrame(rows, columns=["id", "text", "title", "metadata", "error"], dtype=object)

    return frame.select("path", "content").mapInPandas(extract, DOCUMENT_COLUMNS)


def file_name(path: str, root: str) -> str:
    """The path of a file within `root`, without its scheme and host.

    >>> file_name("file:/data/a%20b/c.md", "/data")
    'a b/c.md'
    """
    found, start = (unquote(urlsplit(each).path) if ":/" in each else each for each in (path, root))
    start = start.rstrip("/") + "/"
    return found.removeprefix(start if root else "/").lstrip("/")


def _rows(name: str, content: bytes, extractor: Any, prefix: str, max_bytes: int) -> Iterator[tuple[Any, ...]]:
    import orjson

    from qa_cluster.documents.corpus import read_given
    from qa_cluster.documents.folder_reading import ReadingObserver, Skip
    from qa_cluster.documents.given_files import GivenFile

    class Skips(ReadingObserver):
        """Collects what could not be read."""

        def __init__(self) -> None:
            self.found: list[Skip] = []

        def skipped(self, skip: Skip) -> None:
            """Keep it for a row."""
            self.found.append(skip)

    try:
        file = GivenFile.named(name, content)
    except InvalidInput as error:
        yield prefix + name, None, None, None, str(error)
        return
    seen = Skips()
    documents = read_given(
        [file], on_error="skip", observer=seen, max_bytes=max_bytes, id_prefix=prefix, extractor=extractor
    )
    for document in documents:
        metadata = orjson.dumps(dict(document.metadata)).decode()
        yield document.id, document.text, document.title, metadata, None
    for skip in seen.found:
        yield skip.id or prefix + name, None, None, None, str(skip.error)
