"""An oracle and indexes with the same history. A watch, if there is one, learns of each write."""

from __future__ import annotations

from collections.abc import Sequence

from tests.module.indexes import packed

from .native_index import EXISTS, MISSING, OK, NativeIndex
from .native_watch import NativeWatch
from .oracle import Document, Fields, Oracle, Sentence, pack_fields


class Pair:
    """The writes of a history, with the calls of a writer."""

    watch: NativeWatch | None = None

    def __init__(self, *indexes: NativeIndex) -> None:
        """Takes empty indexes."""
        self.oracle, self.indexes = Oracle(), list(indexes)
        self.open: list[Document] = []

    @property
    def index(self) -> NativeIndex:
        """The index, or the first of several."""
        return self.indexes[0]

    def put(self, name: str, sentences: Sequence[Sentence], fields: Fields | None = None) -> Document:
        """Writes a document, which replaces the document of the same name."""
        fields = fields or {}
        self._removing(name)
        self._adding(name, fields, sentences)
        document = self.oracle.begin(name, fields)
        self.oracle.add(document, sentences)
        for index in self.indexes:
            handle = index.begin(name, fields)
            assert index.add(handle, sentences) == OK
            self._commit(index, document, handle)
        self.oracle.commit(document)
        self.settle("put")
        return document

    def begin(self, name: str, fields: Fields) -> None:
        """Opens a document in parts."""
        for index in self.indexes:
            index.keep_open(index.begin(name, fields))
        self.open.append(self.oracle.begin(name, fields))
        self.open[-1].in_parts = True

    def add(self, document: Document, sentences: Sequence[Sentence]) -> None:
        """Adds a part to an open document."""
        self.oracle.add(document, sentences)
        self._adding(document.id, document.fields, sentences)
        for index in self.indexes:
            assert index.add(index.open_at(document.head), sentences) == OK
        self.settle("add")

    def commit(self, document: Document) -> None:
        """Commits an open document, which replaces its earlier version."""
        self.open.remove(document)
        self._removing(document.id)
        for index in self.indexes:
            handle = index.open_at(document.head)
            if self.watch:
                self.watch.committing(handle)
            self._commit(index, document, handle)
        self.oracle.commit(document)
        self.settle("commit")

    def remove(self, name: str) -> None:
        """Removes a document, which may be missing."""
        self._removing(name)
        status = OK if self.oracle.live.pop(name, None) else MISSING
        assert [index.remove(name) for index in self.indexes] == [status] * len(self.indexes)
        self.settle("remove")

    def settle(self, write: str) -> None:
        """Ends a write of this kind."""
        if self.watch:
            self.watch.settle(self.index)

    def _commit(self, index: NativeIndex, document: Document, handle: object) -> None:
        if document.id in self.oracle.live:
            assert index.commit(handle) == EXISTS
            assert index.remove(document.id) == OK
        assert index.commit(handle) == OK

    def _removing(self, name: str) -> None:
        if self.watch:
            self.watch.removing(self.index, name)

    def _adding(self, name: str, fields: Fields, sentences: Sequence[Sentence]) -> None:
        if self.watch:
            self.watch.adding(self.index, name, pack_fields(fields), packed(sentences))
