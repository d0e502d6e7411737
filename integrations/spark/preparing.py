"""Prepares documents on the executors: extracts the texts of files, and computes the vectors of passages.

An executor reads the same formats as `qa-cluster ingest`. It must have the same encoder as the shards, which discard
vectors of other encoders.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from qa_cluster.documents.stored import check_document
from qa_cluster.errors import InputTooLong, InvalidInput
from qa_cluster.types import Document

from .writing import document_of

if TYPE_CHECKING:
    from qa_cluster.vectors.local_encoder import LocalEncoder

DOCUMENT_COLUMNS = "id string, text string, title string, metadata string, error string"
MAX_BYTES = 64 * 1024 * 1024
# The number of documents that are encoded together, so that the encoder can run passages of similar lengths together.
ENCODED_TOGETHER = 64

# The encoders of this process.
_encoders: dict[tuple[str, int], LocalEncoder] = {}
_loading = threading.Lock()


def extract_files(frame: Any, *, root: str = "", prefix: str = "", format: str = "", max_bytes: int = MAX_BYTES) -> Any:
    """Return the documents of the files in a DataFrame of ``spark.read.format("binaryFile")``.

    The result has `DOCUMENT_COLUMNS`. An unreadable file gives a row with `error` and without a text. A JSONL file
    gives a row for each document.

    Args:
        root: the path to remove from the start of the ids, such as the loaded folder; empty: the ids are whole paths.
        prefix: the text before every id.
        format: the format of all files; empty: detected from the name or from the contents.
        max_bytes: the maximum size of a file and of a document's text, in bytes.
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


def embed_documents(frame: Any, *, encoder: str = "", threads: int = 1) -> Any:
    """Add a column `vectors` to documents, with the vectors of their passages.

    Shards that get vectors do not run their encoder, which needs most of the processor time for indexing a document. A
    document with an error, without sentences, or with too many passages gets no vectors.

    Args:
        encoder: the folder of the shards' encoder; empty: the bundled encoder.
        threads: the number of threads with which the encoder runs in each Python worker.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    for name in ("id", "text"):
        if name not in frame.columns:
            raise InvalidInput(f"the DataFrame has no column {name!r}: a document needs id and text")
    for column in frame.schema.fields:
        if column.name in ("id", "text", "title", "metadata") and column.dataType.typeName() != "string":
            raise InvalidInput(
                f"column {column.name!r} has the type {column.dataType.typeName()}, must be string: convert a struct"
                " or map to JSON with to_json"
            )
    kept = [column for column in frame.schema.fields if column.name != "vectors"]
    schema = StructType([*kept, StructField("vectors", StringType())])

    def embed(tables: Iterator[Any]) -> Iterator[Any]:
        made = _encoder(encoder, threads)
        for table in tables:
            yield table.assign(vectors=_vectors(table, made))

    return frame.mapInPandas(embed, schema)


def _encoder(folder: str, threads: int) -> LocalEncoder:
    with _loading:
        if (folder, threads) not in _encoders:
            from qa_cluster.vectors.local_encoder import LocalEncoder

            _encoders[folder, threads] = LocalEncoder(Path(folder) if folder else None, threads=threads)
        return _encoders[folder, threads]


def _vectors(table: Any, encoder: LocalEncoder) -> list[str | None]:
    """Return the vectors of each row as JSON; None for a row that gets no vectors."""
    import orjson

    found: list[str | None] = [None] * len(table)
    documents: list[tuple[int, Document]] = []
    for number, row in enumerate(table.to_dict("records")):
        texts = {name: value if isinstance(value, str) else None for name, value in row.items()}
        with suppress(InvalidInput, InputTooLong):  # the write of this row will report the error
            fields = document_of(texts)
            document = Document(fields["id"], fields["text"], fields["title"], fields["metadata"])
            check_document(document.id, document.text, document.title, document.metadata)
            documents.append((number, document))
    for first in range(0, len(documents), ENCODED_TOGETHER):
        some = documents[first : first + ENCODED_TOGETHER]
        for (number, _), vectors in zip(some, encoder.prepare([document for _, document in some]), strict=True):
            found[number] = None if vectors is None else orjson.dumps(vectors.to_dict()).decode()
    return found


def file_name(path: str, root: str) -> str:
    """Return the path of a file relative to `root`, without scheme and host.

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
        """Collects unreadable files and documents."""

        def __init__(self) -> None:
            self.found: list[Skip] = []

        def skipped(self, skip: Skip) -> None:
            """Record an unreadable file or document."""
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
        yield skip.document_id or prefix + name, None, None, None, skip.reason
