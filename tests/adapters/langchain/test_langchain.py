"""The retriever passes LangChain's test suite, and returns the service's results with their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_tests.integration_tests import RetrieversIntegrationTests

from qa_cluster.errors import ClusterError, InvalidInput
from qa_cluster.integrations.langchain import QAClusterRetriever
from tests.adapters.conftest import TEXT
from tests.adapters.pages import run_page
from tests.harness.system import System

QUESTION = "Who wrote the first program?"
SECONDS = 120.0


@pytest.fixture
def url(framework_service: System) -> str:
    return f"http://127.0.0.1:{framework_service.port}"


class TestSuiteOfLangChain(RetrieversIntegrationTests):
    """langchain-tests' own tests of retrievers."""

    url = ""

    @pytest.fixture(autouse=True)
    def _service(self, url: str) -> None:
        self.url = url

    @property
    def retriever_constructor(self) -> type[QAClusterRetriever]:
        return QAClusterRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"base_url": self.url, "timeout": SECONDS}

    @pytest.fixture
    async def retriever(self, anyio_backend: str) -> AsyncIterator[QAClusterRetriever]:
        """The suite's fixture. Afterwards, it closes the connections of the event loop."""
        made = QAClusterRetriever(**self.retriever_constructor_params)
        yield made
        await made.connection.aclose()

    @property
    def retriever_query_example(self) -> str:
        return "program engine"


def retriever(url: str, **options: Any) -> QAClusterRetriever:
    return QAClusterRetriever(base_url=url, timeout=SECONDS, **options)


def test_a_search_returns_passages_with_their_offsets(url: str) -> None:
    (found,) = retriever(url, k=1, neighbours=0).invoke(QUESTION)
    assert found.page_content == "Ada Lovelace wrote the first program in 1843."
    about = found.metadata
    assert TEXT[about["start"] : about["end"]] == found.page_content
    assert (about["document_id"], about["title"], about["year"], about["tags"]) == ("ada", "Ada", 1843, ["maths"])
    assert found.id == f"ada:{about['start']}-{about['end']}"
    assert about["score"] > 0


def test_a_passage_includes_its_neighbours(url: str) -> None:
    (found,) = retriever(url, k=1, neighbours=1).invoke(QUESTION)
    about = found.metadata
    assert found.page_content == TEXT[about["start"] : about["end"]]
    assert found.page_content.endswith("Bernoulli numbers.")
    assert TEXT[about["sentence_start"] : about["sentence_end"]].endswith("1843.")


def test_answers_are_exact_quotes(url: str) -> None:
    (found,) = retriever(url, k=1, mode="ask").invoke(QUESTION)
    about = found.metadata
    assert about["answer"] == TEXT[about["answer_start"] : about["answer_end"]] == "Ada Lovelace"
    assert found.page_content == TEXT[about["start"] : about["end"]]
    assert 0 < about["score"] <= 1
    assert about["confidence"] in ("sure", "likely", "unsure") and about["pinned"] is False


def test_a_call_may_name_its_own_options(url: str) -> None:
    one = retriever(url, k=4)
    assert len(one.invoke("wrote", k=2)) == 2
    assert {found.metadata["document_id"] for found in one.invoke("wrote", filter="year=1843")} == {"ada"}
    without = retriever(url, filters={"field": "meta.year", "operator": "==", "value": None})
    assert {found.metadata["document_id"] for found in without.invoke("wrote")} == {"moby"}
    with pytest.raises(InvalidInput, match="colour"):
        one.invoke("wrote", colour=1)


def test_one_retriever_serves_several_event_loops(url: str) -> None:
    one = retriever(url, k=1)

    async def several() -> list[list[Document]]:
        try:
            return await asyncio.gather(*(one.ainvoke(QUESTION) for _ in range(8)))
        finally:
            await one.connection.aclose()

    for _ in range(2):
        found = asyncio.run(several())
        assert [len(each) for each in found] == [1] * 8
    answers = retriever(url, mode="ask", k=1)

    async def answered() -> list[Document]:
        try:
            return await answers.ainvoke(QUESTION)
        finally:
            await answers.connection.aclose()

    assert asyncio.run(answered())[0].metadata["answer"] == "Ada Lovelace"


def test_the_retriever_works_in_a_chain(url: str) -> None:
    joined = RunnableLambda(lambda found: "\n".join(each.page_content for each in found))
    chain = {"context": retriever(url, k=2) | joined, "question": RunnablePassthrough()} | RunnableLambda(
        lambda values: f"{values['question']} {values['context']}"
    )
    text = (chain | StrOutputParser()).invoke(QUESTION)
    assert text.startswith(QUESTION)
    assert "Ada Lovelace" in text


def test_errors_name_the_cause(url: str) -> None:
    with pytest.raises(ClusterError, match="cannot be reached"):
        QAClusterRetriever(base_url="http://127.0.0.1:1", attempts=1).invoke(QUESTION)
    with pytest.raises(InvalidInput, match="top_k"):
        retriever(url).invoke(QUESTION, k=100_000)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        retriever(url, k=0)


def test_the_key_comes_from_the_environment_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QA_CLUSTER_API_KEY", "qac_secret")
    one = QAClusterRetriever()
    assert one.api_key.get_secret_value() == "qac_secret"
    assert "qac_secret" not in repr(one)
    assert "qac_secret" not in one.model_dump_json()


def test_the_programs_of_the_page_run(url: str) -> None:
    assert "Ada Lovelace" in run_page("langchain", url)
