"""The retriever component: finds passages for a query in the collection of a document store."""

from __future__ import annotations

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import FilterPolicy
from haystack.document_stores.types.filter_policy import apply_filter_policy
from haystack.errors import FilterError
from haystack_integrations.document_stores.qa_cluster import QAClusterDocumentStore

from qa_cluster.integrations.haystack.filters import FilterProblem, Filters, service_filters
from qa_cluster.integrations.service.passages import FoundPassage, of_search


@component
class QAClusterPassageRetriever:
    """Retrieves the best sentences with their neighbours, ranked by the service.

    Each returned document is a passage. Its `meta` has the metadata of the stored document, and `document_id`, `title`,
    `start`, `end` and `score`. Offsets count code points of the stored text.

    Args:
        document_store: the store.
        filters: a filter on the metadata, in Haystack's form.
        top_k: the number of passages to retrieve.
        neighbours: the number of sentences before and after a found sentence to include in its passage.
        ranking: `words`, `meaning` or `both`; None: the default of the service.
        filter_policy: whether the filters of a call replace the filters of the component, or both apply.
    """

    def __init__(
        self,
        document_store: QAClusterDocumentStore,
        *,
        filters: Filters | None = None,
        top_k: int = 10,
        neighbours: int = 1,
        ranking: str | None = None,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, QAClusterDocumentStore):
            raise ValueError(f"document_store must be a QAClusterDocumentStore, got {type(document_store).__name__}")
        self.document_store = document_store
        self.filters = filters
        self.top_k = top_k
        self.neighbours = neighbours
        self.ranking = ranking
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a dictionary, for `from_dict`.

        The dictionary has the name of the environment variable instead of the document store's key.
        """
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            neighbours=self.neighbours,
            ranking=self.ranking,
            filter_policy=self.filter_policy.value,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> QAClusterPassageRetriever:
        """Create a component from the result of `to_dict`."""
        given = data["init_parameters"]
        given["document_store"] = QAClusterDocumentStore.from_dict(given["document_store"])
        made: QAClusterPassageRetriever = default_from_dict(cls, data)
        return made

    @component.output_types(documents=list[Document])
    def run(self, query: str, filters: Filters | None = None, top_k: int | None = None) -> dict[str, list[Document]]:
        """Return the passages, the best first, as `documents`. `top_k` overrides the component's number of passages;
        None: use the component's number.

        `filter_policy` decides how `filters` and the filters of the component are combined.
        """
        found = self.document_store.connection.client.search(query, **self._options(filters, top_k))
        return {"documents": [_document(passage) for passage in of_search(found)]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: Filters | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the same as `run`, without blocking the event loop."""
        found = await self.document_store.connection.async_client.search(query, **self._options(filters, top_k))
        return {"documents": [_document(passage) for passage in of_search(found)]}

    def _options(self, filters: Filters | None, top_k: int | None) -> dict[str, Any]:
        chosen = apply_filter_policy(self.filter_policy, self.filters, filters)
        try:
            checked = service_filters(chosen)
        except FilterProblem as error:
            raise FilterError(str(error)) from error
        return {
            "top_k": self.top_k if top_k is None else top_k,
            "filters": checked,
            "collection": self.document_store.collection,
            "context": self.neighbours,
            "retriever": self.ranking,
        }


def _document(passage: FoundPassage) -> Document:
    return Document(id=passage.id, content=passage.text, meta=dict(passage.facts), score=passage.score)
