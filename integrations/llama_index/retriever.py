"""The retriever: returns passages of a collection as LlamaIndex nodes.

>>> retriever = QAClusterNodeRetriever("http://127.0.0.1:8080", k=3)
>>> retriever.retrieve("Who wrote the first program?")[0].text
'Ada Lovelace wrote the first program.'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeWithScore, QueryBundle

from qa_cluster.integrations.service.connection import DEFAULT_URL, TIMEOUT_SECONDS, ServiceConnection
from qa_cluster.integrations.service.passages import of_search

from .nodes import node_of


class QAClusterNodeRetriever(BaseRetriever):
    """Retrieves passages from a qa-cluster service.

    Args:
        base_url: the address of the service.
        api_key: the API key; None: the environment variable QA_CLUSTER_API_KEY, if it is set.
        tls_ca: the PEM file of the certificate authority of an `https` service; empty: the authorities that the system
            trusts.
        timeout: the time limit for a call with all its retries, in seconds.
        attempts: the maximum number of attempts for a call; None: as many as the timeout allows.
        k: the number of passages to retrieve.
        collection: the collection to search.
        filter, filters: conditions on the metadata: in the short form (`year>=2020`), and in Haystack's form.
        ranking: `words`, `meaning` or `both`; None: the default of the service.
        neighbours: the number of sentences before and after a found sentence to include in its passage.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        tls_ca: str = "",
        timeout: float = TIMEOUT_SECONDS,
        attempts: int | None = None,
        k: int = 4,
        collection: str = "default",
        filter: str | Iterable[str] = (),
        filters: Mapping[str, Any] | None = None,
        ranking: str | None = None,
        neighbours: int = 1,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if k < 1:
            raise ValueError(f"k must be 1 or more, got {k}")
        self.connection = ServiceConnection(
            base_url, api_key=api_key, tls_ca=tls_ca, timeout=timeout, attempts=attempts
        )
        self._options: dict[str, Any] = {
            "top_k": k,
            "collection": collection,
            "filter": filter if isinstance(filter, str) else tuple(filter),
            "filters": filters,
            "retriever": ranking,
            "context": neighbours,
        }
        super().__init__(callback_manager=callback_manager)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self.connection.client.search(query_bundle.query_str, **self._options)
        return [node_of(passage) for passage in of_search(found)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = await self.connection.async_client.search(query_bundle.query_str, **self._options)
        return [node_of(passage) for passage in of_search(found)]
