"""The query engine: returns the service's answer to a question, without a language model.

>>> engine = QAClusterQueryEngine("http://127.0.0.1:8080")
>>> str(engine.query("Who wrote the first program?"))
'Ada Lovelace'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import QueryBundle

from qa_cluster.client import AskResult
from qa_cluster.integrations.service.connection import DEFAULT_URL, TIMEOUT_SECONDS, ServiceConnection
from qa_cluster.integrations.service.passages import of_answers

from .nodes import node_of


class QAClusterQueryEngine(BaseQueryEngine):
    """Answers questions with exact quotes.

    The text of a response is the best quote; it is empty if there is no answer. The source nodes are the passages of
    all answers, the best first. The metadata has `answerable`, `no_answer_score`, and the quotes with their offsets.

    Args:
        base_url: the address of the service.
        api_key: the API key; None: the environment variable QA_CLUSTER_API_KEY, if it is set.
        tls_ca: the PEM file of the certificate authority of an `https` service; empty: the authorities that the system
            trusts.
        timeout: the time limit for a call with all its retries, in seconds.
        attempts: the maximum number of attempts for a call; None: as many as the timeout allows.
        top_k: the maximum number of answers.
        collection: the collection to search for answers.
        filter, filters: conditions on the metadata: in the short form (`year>=2020`), and in Haystack's form.
        model: the reader; empty: the service's reading plan.
        no_answer: whether "no answer" is a possible result.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        tls_ca: str = "",
        timeout: float = TIMEOUT_SECONDS,
        attempts: int | None = None,
        top_k: int = 3,
        collection: str = "default",
        filter: str | Iterable[str] = (),
        filters: Mapping[str, Any] | None = None,
        model: str = "",
        no_answer: bool = True,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        self.connection = ServiceConnection(
            base_url, api_key=api_key, tls_ca=tls_ca, timeout=timeout, attempts=attempts
        )
        self._options: dict[str, Any] = {
            "top_k": top_k,
            "collection": collection,
            "filter": filter if isinstance(filter, str) else tuple(filter),
            "filters": filters,
            "model": model,
            "no_answer": no_answer,
        }
        super().__init__(callback_manager=callback_manager)

    def _query(self, query_bundle: QueryBundle) -> Response:
        return _response(self.connection.client.ask(query_bundle.query_str, **self._options))

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return _response(await self.connection.async_client.ask(query_bundle.query_str, **self._options))

    def _get_prompt_modules(self) -> dict[str, Any]:
        return {}


def _response(result: AskResult) -> Response:
    shown = ("answer", "score", "confidence", "pinned", "document_id", "start", "end")
    quotes = [{name: getattr(each, name) for name in shown} for each in result.answers]
    return Response(
        response=result.answers[0].answer if result.answers else "",
        source_nodes=[node_of(passage) for passage in of_answers(result)],
        metadata={
            "answerable": result.answerable,
            "no_answer_score": result.no_answer_score,
            "model": result.model.id,
            "answers": quotes,
        },
    )
