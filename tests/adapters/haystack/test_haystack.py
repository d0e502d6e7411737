"""The store passes Haystack's test suite. Retriever and reader work in pipelines, also in saved and loaded ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from haystack import Document, Pipeline
from haystack.dataclasses import ExtractedAnswer
from haystack.document_stores.errors import DocumentStoreError, DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing.document_store import DocumentStoreBaseExtendedTests
from haystack.utils import Secret
from haystack_integrations.components.readers.qa_cluster import QAClusterReader
from haystack_integrations.components.retrievers.qa_cluster import QAClusterPassageRetriever
from haystack_integrations.document_stores.qa_cluster import QAClusterDocumentStore

from qa_cluster.client import Client
from qa_cluster.errors import ClusterError, NotFound
from qa_cluster.types import MetadataUpdate
from tests.adapters.conftest import TEXT
from tests.adapters.pages import run_page
from tests.harness.system import System

QUESTION = "Who wrote the first program?"
SECONDS = 120.0
_names = count()


@pytest.fixture
def url(framework_service: System) -> str:
    return f"http://127.0.0.1:{framework_service.port}"


@pytest.fixture
def document_store(url: str) -> Iterator[QAClusterDocumentStore]:
    """A store with a separate collection."""
    name = f"haystack-{next(_names)}"
    with Client(url, timeout=SECONDS) as client:
        client.create_collection(name)
        yield QAClusterDocumentStore(url, collection=name, timeout=SECONDS)
        while not client.delete_collection(name).complete:
            pass


class TestSuiteOfHaystack(DocumentStoreBaseExtendedTests):
    """Haystack's own tests of document stores."""

    @pytest.fixture
    def document_store(self, document_store: QAClusterDocumentStore) -> QAClusterDocumentStore:
        return document_store

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """Compare without embeddings and order: qa-cluster stores no embeddings, and its lists have another order."""

        def plain(documents: list[Document]) -> list[Document]:
            return sorted((replace(each, embedding=None) for each in documents), key=lambda each: each.id)

        assert plain(received) == plain(expected)

    def test_write_documents(self, document_store: QAClusterDocumentStore) -> None:
        """Each store must test its default policy, which is FAIL for this store."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError, match=document.id):
            document_store.write_documents([document])
        self.assert_documents_are_equal(document_store.filter_documents(), [document])


def test_only_documents_with_text_are_stored(document_store: QAClusterDocumentStore) -> None:
    with pytest.raises(ValueError, match="has no content"):
        document_store.write_documents([Document(content=None), Document(content="text")])
    assert document_store.count_documents() == 0
    with pytest.raises(NotFound, match="missing-collection"):
        QAClusterDocumentStore(document_store.base_url, collection="missing-collection").count_documents()


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({"field": "meta.nobody_has_it", "operator": "==", "value": 1}, set()),
        ({"field": "meta.nobody_has_it", "operator": "!=", "value": 1}, {"a", "b"}),
        ({"field": "meta.nobody_has_it", "operator": "not in", "value": [1]}, {"a", "b"}),
        ({"field": "meta.nobody_has_it", "operator": ">", "value": 1}, set()),
        ({"operator": "NOT", "conditions": [{"field": "meta.n", "operator": ">", "value": None}]}, {"a", "b"}),
        ({"field": "id", "operator": "in", "value": ["a"]}, {"a"}),
    ],
)
def test_a_missing_field_is_null(
    document_store: QAClusterDocumentStore, filters: dict[str, Any], ids: set[str]
) -> None:
    document_store.write_documents([Document(id="a", content="One.", meta={"n": 1}), Document(id="b", content="Two.")])
    assert {each.id for each in document_store.filter_documents(filters)} == ids
    assert document_store.count_documents_by_filter(filters) == len(ids)


@pytest.mark.parametrize(
    "filters",
    [
        {"field": "content", "operator": "==", "value": "x"},
        {"field": "meta.n", "operator": "like", "value": "x"},
        {"operator": "AND", "conditions": []},
        {"operator": "AND", "conditions": ["x"]},
    ],
)
def test_wrong_filters_are_named(url: str, filters: dict[str, Any]) -> None:
    store = QAClusterDocumentStore(url, timeout=SECONDS)
    with pytest.raises(FilterError):
        store.filter_documents(filters)
    with pytest.raises(FilterError):
        QAClusterPassageRetriever(store, filters=filters).run("x")


def pipeline(url: str, **reader: Any) -> Pipeline:
    made = Pipeline()
    store = QAClusterDocumentStore(url, timeout=SECONDS)
    made.add_component("retriever", QAClusterPassageRetriever(store, top_k=3))
    made.add_component("reader", QAClusterReader(url, timeout=SECONDS, **reader))
    made.connect("retriever.documents", "reader.documents")
    return made


def ask(asked: Pipeline) -> list[ExtractedAnswer]:
    result = asked.run({"retriever": {"query": QUESTION}, "reader": {"query": QUESTION}})
    return list(result["reader"]["answers"])


def test_a_saved_and_loaded_pipeline_answers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QA_CLUSTER_API_KEY", "qac_secret")
    saved = pipeline(url, top_k=1).dumps()
    assert "qac_secret" not in saved
    assert "QA_CLUSTER_API_KEY" in saved
    monkeypatch.delenv("QA_CLUSTER_API_KEY")
    best, nothing = ask(Pipeline.loads(saved))
    assert (best.data, nothing.data) == ("Ada Lovelace", None)
    assert best.document is not None and best.document.content is not None and best.document_offset is not None
    assert best.document.content[best.document_offset.start : best.document_offset.end] == best.data
    start = best.document.meta["start"] + best.document_offset.start
    assert TEXT[start : start + len("Ada Lovelace")] == "Ada Lovelace"
    assert best.document.meta["document_id"] == "ada"


def test_only_a_key_from_an_environment_variable_can_be_saved(url: str) -> None:
    store = QAClusterDocumentStore(url, api_key=Secret.from_token("qac_secret"))
    with pytest.raises(ValueError, match="Cannot serialize"):
        store.to_dict()
    assert "qac_secret" not in repr(store.api_key)


def test_the_reader_reads_documents_of_any_store(url: str) -> None:
    documents = [
        Document(content="Herman Melville wrote Moby-Dick."),
        Document(content=None),
        Document(content="Ada Lovelace wrote the first program. It computed Bernoulli numbers."),
    ]
    reader = QAClusterReader(url, timeout=SECONDS)
    answers = reader.run(QUESTION, documents, top_k=2)["answers"]
    assert len(answers) == 3
    assert answers == sorted(answers, key=lambda each: -each.score)
    found = [each for each in answers if each.data is not None]
    assert found[0].data == "Ada Lovelace" and found[0].document is documents[2]
    assert found[0].query == QUESTION
    (nothing,) = [each for each in answers if each.data is None]
    assert nothing.score == pytest.approx((1 - found[0].score) * (1 - found[1].score))
    without = reader.run(QUESTION, documents, top_k=1, no_answer=False)["answers"]
    assert [each.data for each in without] == ["Ada Lovelace"]
    assert reader.run(QUESTION, documents, score_threshold=2.0)["answers"] == []
    assert reader.run(QUESTION, [], no_answer=False)["answers"] == []
    (only,) = reader.run(QUESTION, [])["answers"]
    assert (only.data, only.score) == (None, 1.0)
    with pytest.raises(ValueError, match="top_k must be 1 or more, got 0"):
        reader.run(QUESTION, documents, top_k=0)


def test_overlapping_answers_are_merged(url: str) -> None:
    document = Document(content="Ada Lovelace, Countess of Lovelace, wrote the first program.")
    spans = [
        each.document_offset
        for each in QAClusterReader(url, timeout=SECONDS, no_answer=False).run(QUESTION, [document])["answers"]
    ]
    assert len(spans) > 1
    for i, one in enumerate(spans):
        for other in spans[i + 1 :]:
            assert one is not None and other is not None
            assert min(one.end, other.end) <= max(one.start, other.start)
    all_of_them = QAClusterReader(url, timeout=SECONDS, no_answer=False, overlap_threshold=None)
    assert len(all_of_them.run(QUESTION, [document])["answers"]) > len(spans)


def test_many_documents_are_read_in_several_requests(url: str) -> None:
    documents = [Document(content=f"Person {number} wrote program {number}.") for number in range(130)]
    answers = QAClusterReader(url, timeout=SECONDS, top_k=5).run("Who wrote program 129?", documents)["answers"]
    assert len(answers) == 6


def test_the_asynchronous_calls(url: str) -> None:
    store = QAClusterDocumentStore(url, timeout=SECONDS)
    reader = QAClusterReader(url, timeout=SECONDS)

    async def both() -> list[ExtractedAnswer]:
        try:
            found = (await QAClusterPassageRetriever(store, top_k=2).run_async(QUESTION))["documents"]
            return (await reader.run_async(QUESTION, found))["answers"]
        finally:
            await store.connection.aclose()
            await reader.connection.aclose()

    for _ in range(2):
        assert asyncio.run(both())[0].data == "Ada Lovelace"


def test_filters_of_the_retriever_and_of_a_call(url: str) -> None:
    store = QAClusterDocumentStore(url, timeout=SECONDS)
    year = {"field": "meta.year", "operator": "==", "value": 1843}
    retriever = QAClusterPassageRetriever(store, filters=year, filter_policy="merge")
    assert {each.meta["document_id"] for each in retriever.run("wrote")["documents"]} == {"ada"}
    other = {"field": "id", "operator": "==", "value": "moby"}
    assert retriever.run("wrote", filters=other)["documents"] == []
    replacing = QAClusterPassageRetriever(store, filters=year)
    assert {each.meta["document_id"] for each in replacing.run("wrote", filters=other)["documents"]} == {"moby"}
    assert len(replacing.run("wrote", filters={}, top_k=1)["documents"]) == 1


def test_errors_name_the_cause() -> None:
    with pytest.raises(ClusterError, match="cannot be reached"):
        QAClusterReader("http://127.0.0.1:1", attempts=1).run(QUESTION, [Document(content="x")])


@pytest.mark.parametrize("busy", [1, 10])
def test_an_update_is_repeated_for_documents_that_others_write(
    document_store: QAClusterDocumentStore, monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    document_store.write_documents([Document(id=name, content=TEXT, meta={"state": "draft"}) for name in "ab"])
    client = document_store.connection.client
    update, calls = client.update_documents, count(1)

    def updated(*words: Any, **options: Any) -> MetadataUpdate:
        return MetadataUpdate(0, 0, 2, complete=False) if next(calls) <= busy else update(*words, **options)

    monkeypatch.setattr(client, "update_documents", updated)
    drafts = {"field": "meta.state", "operator": "==", "value": "draft"}
    if busy == 1:
        assert document_store.update_by_filter(drafts, {"state": "final"}) == 2
        assert document_store.count_documents_by_filter(drafts) == 0
    else:
        with pytest.raises(DocumentStoreError, match=r"2 documents of collection .* were not updated"):
            document_store.update_by_filter(drafts, {"state": "final"})


def test_an_update_without_progress_ends(
    document_store: QAClusterDocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = MetadataUpdate(0, 0, 0, complete=False, next_cursor="same")
    monkeypatch.setattr(document_store.connection.client, "update_documents", lambda *_, **__: stuck)
    with pytest.raises(DocumentStoreError, match="makes no progress"):
        document_store.update_by_filter({"field": "meta.a", "operator": "==", "value": 1}, {"a": 2})


def test_an_existing_document_can_be_overwritten(document_store: QAClusterDocumentStore) -> None:
    one = Document(id="a", content="One.", meta={"title": "T"})
    assert document_store.write_documents([one], policy=DuplicatePolicy.OVERWRITE) == 1
    assert document_store.write_documents([one], policy=DuplicatePolicy.OVERWRITE) == 1
    assert document_store.filter_documents() == [one]


def test_the_programs_of_the_page_run(url: str) -> None:
    assert "Ada Lovelace" in run_page("haystack", url)
