"""qa-cluster as a retriever and a query engine of LlamaIndex. Install the extra `llama-index`."""

from .query_engine import QAClusterQueryEngine
from .retriever import QAClusterNodeRetriever

__all__ = ["QAClusterNodeRetriever", "QAClusterQueryEngine"]
