"""The retriever: returns passages of a collection as LangChain documents, with exact offsets.

>>> retriever = QAClusterRetriever(base_url="http://127.0.0.1:8080", k=3)
>>> retriever.invoke("Who wrote the first program?")[0].page_content
'Ada Lovelace wrote the first program.'
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.utils import secret_from_env
from pydantic import Field, PrivateAttr, SecretStr

from qa_cluster.integrations.service.connection import DEFAULT_URL, KEY_VARIABLE, TIMEOUT_SECONDS, ServiceConnection
from qa_cluster.integrations.service.passages import ASK, SEARCH, FoundPassage, of_answers, of_search


class QAClusterRetriever(BaseRetriever):
    """Retrieves passages from a qa-cluster service.

    Each returned document is a passage. Its `id` is the id of the stored document with offsets. Its `metadata` has the
    metadata of the stored document, and `document_id`, `title`, `start`, `end` and `score`.

    `page_content` equals ``stored_text[start:end]``, except that each white space character between two sentences is a
    space in `page_content`.

    A call can override `k`, `collection`, `filter` and `filters`: ``retriever.invoke("first program", k=2,
    filter="year>=1840")``.
    """

    base_url: str = DEFAULT_URL
    """The address of the service."""
    api_key: SecretStr = Field(default_factory=secret_from_env(KEY_VARIABLE, default=""))
    """The API key; by default the environment variable QA_CLUSTER_API_KEY. Empty: requests are sent without a key."""
    tls_ca: str = ""
    """The PEM file of the certificate authority of an `https` service; empty: the authorities that the system
    trusts."""
    timeout: float = Field(default=TIMEOUT_SECONDS, gt=0)
    """The time limit for a call with all its retries, in seconds."""
    attempts: int | None = Field(default=None, ge=1)
    """The maximum number of attempts for a call; None: as many as the timeout allows."""
    k: int = Field(default=4, ge=1)
    """The number of passages to retrieve."""
    mode: Literal["search", "ask"] = SEARCH  # type: ignore[assignment]
    """`search`: the best sentences. `ask`: the sentences with an answer; their metadata has `answer` and its
    offsets."""
    collection: str = "default"
    """The collection to search."""
    filter: str | tuple[str, ...] = ()
    """Conditions on the metadata in the short form, such as `year>=2020`."""
    filters: dict[str, Any] | None = None
    """A filter on the metadata in Haystack's form."""
    ranking: Literal["words", "meaning", "both"] | None = None
    """The ranking: `words`, `meaning` or `both`; None: the default of the service."""
    neighbours: int = Field(default=1, ge=0)
    """With `search`, the number of sentences before and after a found sentence to include in its passage."""

    _connection: ServiceConnection | None = PrivateAttr(default=None)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        client, given = self.connection.client, self._options(options)
        if self.mode == ASK:
            return _documents(of_answers(client.ask(query, **given)))
        return _documents(of_search(client.search(query, **given)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        client, given = self.connection.async_client, self._options(options)
        if self.mode == ASK:
            return _documents(of_answers(await client.ask(query, **given)))
        return _documents(of_search(await client.search(query, **given)))

    @property
    def connection(self) -> ServiceConnection:
        """The connections to the service, which are opened at the first use. Call `close` and `aclose` of this object
        to close them."""
        if self._connection is None:
            self._connection = ServiceConnection(
                self.base_url,
                api_key=self.api_key.get_secret_value(),
                tls_ca=self.tls_ca,
                timeout=self.timeout,
                attempts=self.attempts,
            )
        return self._connection

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options for a call of the client, with the client's names.

        `options` are the options of one call of the retriever, which override the retriever's own options.
        """
        given: dict[str, Any] = {
            "collection": self.collection,
            "filter": self.filter,
            "filters": self.filters,
            "retriever": self.ranking,
            "top_k": self.k,
        }
        if self.mode == SEARCH:
            given["context"] = self.neighbours
        if "k" in options:
            options = {**options, "top_k": options["k"]}
            del options["k"]
        return given | options


def _documents(found: Iterable[FoundPassage]) -> list[Document]:
    return [Document(id=passage.id, page_content=passage.text, metadata=dict(passage.facts)) for passage in found]
