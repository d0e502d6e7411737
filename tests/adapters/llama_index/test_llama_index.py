"""The retriever and the query engine return LlamaIndex nodes with offsets and sources."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import get_response_synthesizer
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import QueryEngineTool

from qa_cluster.errors import ClusterError, InvalidInput
from qa_cluster.integrations.llama_index import QAClusterNodeRetriever, QAClusterQueryEngine
from tests.adapters.conftest import TEXT
from tests.adapters.pages import run_page
from tests.harness.system import System

QUESTION = "Who wrote the first program?"
SECONDS = 120.0


@pytest.fixture
def url(framework_service: System) -> str:
    return f"http://127.0.0.1:{framework_service.port}"


def retriever(url: str, **options: Any) -> QAClusterNodeRetriever:
    return QAClusterNodeRetriever(url, timeout=SECONDS, **options)


def check(found: NodeWithScore) -> None:
    node = found.node
    assert isinstance(node, TextNode)
    assert node.text == TEXT[node.start_char_idx : node.end_char_idx]
    source = node.relationships[NodeRelationship.SOURCE]
    assert source.node_id == node.ref_doc_id == node.metadata["document_id"] == "ada"  # type: ignore[union-attr]
    assert found.score is not None and found.score > 0


def test_nodes_have_offsets_and_their_source(url: str) -> None:
    for found in (retriever(url, k=1).retrieve(QUESTION), retriever(url, k=1).retrieve(QueryBundle(QUESTION))):
        (one,) = found
        check(one)
        assert "Ada Lovelace wrote" in one.text
        assert one.metadata["year"] == 1843


def test_a_language_model_sees_no_offsets(url: str) -> None:
    (one,) = retriever(url, k=1).retrieve(QUESTION)
    content = one.get_content(metadata_mode="llm")  # type: ignore[arg-type]
    assert "year: 1843" in content
    assert "start" not in content


def test_k_filters_and_neighbours(url: str) -> None:
    assert len(retriever(url, k=2).retrieve("wrote")) == 2
    assert {each.metadata["document_id"] for each in retriever(url, filter="year=1843").retrieve("wrote")} == {"ada"}
    (one,) = retriever(url, k=1, neighbours=0).retrieve(QUESTION)
    assert one.text == "Ada Lovelace wrote the first program in 1843."
    with pytest.raises(ValueError, match="k must be 1 or more, got 0"):
        retriever(url, k=0)


def test_asynchronous_calls_in_several_event_loops(url: str) -> None:
    one, engine = retriever(url, k=1), QAClusterQueryEngine(url, timeout=SECONDS)

    async def several() -> tuple[list[list[NodeWithScore]], str]:
        try:
            found = await asyncio.gather(*(one.aretrieve(QUESTION) for _ in range(8)))
            return found, str(await engine.aquery(QUESTION))
        finally:
            await one.connection.aclose()
            await engine.connection.aclose()

    for _ in range(2):
        found, answer = asyncio.run(several())
        assert len(found) == 8
        for each in found:
            check(each[0])
        assert answer == "Ada Lovelace"


def test_the_query_engine_answers_with_quotes(url: str) -> None:
    response = QAClusterQueryEngine(url, timeout=SECONDS, top_k=1).query(QUESTION)
    assert str(response) == "Ada Lovelace"
    (one,) = response.source_nodes
    check(one)
    quote = response.metadata["answers"][0]  # type: ignore[index]
    assert TEXT[quote["start"] : quote["end"]] == "Ada Lovelace"
    assert quote["confidence"] in ("sure", "likely", "unsure") and quote["pinned"] is False
    assert response.metadata["answerable"] is True  # type: ignore[index]


def test_no_answer_is_an_empty_response(url: str) -> None:
    response = QAClusterQueryEngine(url, timeout=SECONDS).query("How much does a ticket to Hamburg cost?")
    assert (response.response, response.source_nodes) == ("", [])  # type: ignore[union-attr]
    assert response.metadata["answerable"] is False  # type: ignore[index]


def test_the_retriever_works_with_other_components_of_llama_index(url: str) -> None:
    synthesizer = get_response_synthesizer(llm=MockLLM())
    engine = RetrieverQueryEngine(retriever(url, k=2), response_synthesizer=synthesizer)
    assert "Ada Lovelace" in str(engine.query(QUESTION))
    tool = QueryEngineTool.from_defaults(QAClusterQueryEngine(url, timeout=SECONDS), name="quotes", description="d")
    assert "Ada Lovelace" in str(tool.call(QUESTION))


def test_errors_name_the_cause(url: str) -> None:
    with pytest.raises(ClusterError, match="cannot be reached"):
        QAClusterNodeRetriever("http://127.0.0.1:1", attempts=1).retrieve(QUESTION)
    with pytest.raises(InvalidInput, match="top_k"):
        QAClusterQueryEngine(url, top_k=100_000).query(QUESTION)


def test_the_programs_of_the_page_run(url: str) -> None:
    assert "Ada Lovelace" in run_page("llama_index", url)
