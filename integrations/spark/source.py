"""The data source `qacluster`: the documents of a collection as a DataFrame, for reading and writing.

Register the data source once per session: ``spark.dataSource.register(QAClusterDataSource)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

from qa_cluster.client import NotFound
from qa_cluster.errors import InvalidInput
from qa_cluster.types import Document

from .options import SparkOptions, concurrently
from .writing import DocumentsWriter, check_columns

SCHEMA = "id string, text string, title string, metadata string, version string, sentences int"


class QAClusterDataSource(DataSource):
    """The documents of one collection as a data source. `SparkOptions` has the options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "qacluster"

    def schema(self) -> str:
        """Return the columns of a read; `metadata` is JSON."""
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of the documents. If the user has set a schema, only its columns are read.

        Raises InvalidInput if the schema has an unknown column, or an option is invalid.
        """
        names = tuple(field.name for field in schema.fields)
        known = [column.split()[0] for column in SCHEMA.split(",")]
        if unknown := sorted(set(names) - set(known)):
            raise InvalidInput(f"qacluster has no column {unknown[0]!r}, its columns are {', '.join(known)}")
        return DocumentsReader(SparkOptions.of(self.options), names)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Return the writer of documents. Raise InvalidInput if a column is missing, is unknown or has a wrong type.

        With `overwrite`, the commit deletes the documents of the collection that are in no row.
        """
        check_columns([(field.name, field.dataType.typeName()) for field in schema.fields])
        options = SparkOptions.of(self.options)
        return DocumentsWriter(options, overwrite=overwrite)


@dataclass
class DocumentIds(InputPartition):
    """The ids of the documents in one partition."""

    ids: tuple[str, ...]


class DocumentsReader(DataSourceReader):
    """Lists the documents on the driver, and reads them on the executors.

    `names` are the columns to read, in the order of the resulting rows.
    """

    def __init__(self, options: SparkOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        """Return the ids of all documents to read, divided into partitions. The ids are in the order of document lists.

        Pending documents are missing, because document lists do not contain them.
        """
        listed = self._options.client().list_documents(
            collection=self._options.collection, prefix=self._options.prefix, filter=self._options.filter
        )
        ids = list(dict.fromkeys(entry.id for entry in listed))
        size = self._options.documents_per_partition
        return [DocumentIds(tuple(ids[first : first + size])) for first in range(0, len(ids), size)] or [
            DocumentIds(())
        ]

    def read(self, partition: DocumentIds) -> Iterator[tuple[Any, ...]]:
        """Yield the current versions of a partition's documents, without deleted documents."""
        for document in concurrently(self._document, partition.ids, self._options.connections):
            if document is not None:
                yield tuple(_value(document, name) for name in self._names)

    def _document(self, id: str) -> Document | None:
        try:
            return self._options.client().get_document(id, collection=self._options.collection)
        except NotFound as error:
            if str(error).startswith("no such document"):
                return None  # the document was deleted after the listing
            raise


def _value(document: Document, name: str) -> Any:
    if name == "metadata":
        import orjson

        return orjson.dumps(dict(document.metadata)).decode()
    return getattr(document, name)
